"""The producer: Arrow columns in, acknowledged Kafka records out. Usable without Spark.

docs/design.md follows a row and the end of a transaction by file and function. It says what each thread does, and who wakes a
waiting thread.

Which thread uses which class
    KafkaProducer       callers, with MetadataWait and ColumnSender, which also queues gathered records; TaskProducer is its form
                        for tasks of the sink
    TableSender         callers: reads a table batch by batch, and has ColumnSender queue each
    RecordGatherer      callers add records; a bundle is encoded (ColumnSender) by the caller who fills it, or by the Sender after
                        linger.ms
    AvroSerializers     callers copy objects, encode columns, and ask the registry; objects are encoded with their bundle
    RecordAccumulator   append: callers, and the Sender for gathered records after linger.ms; ready, drainer.drain,
                        take_expired, reenqueue: Sender
    BufferPool          allocate: callers; try_allocate, overdraw, deallocate: callers and the Sender
    ProducerBatch       filled by the threads that append, under its queue's lock and their reservations; then only the Sender
    Delivery            completed by the Sender, or by the caller whose rows get into no batch; awaited by callers
    CallerSide          callers, for transactions; each call posts a TransactionalCall, which the Sender completes and the caller
                        awaits
    exits               the main thread, when the program ends; it uses Sender.close_within and count_lost_rows
    sender/, idempotence/, transactions/, txn_requests/
                        Sender only, except CallerSide and TransactionalMethods. Callers start and stop the Sender, read
                        SenderFailures, and use the methods of sequencers below the headings ANY THREAD and CALLERS
    NetworkClient       Sender only, except `wakeup` and `in_flight_request_count`
    ProducerMetrics     the Sender records, callers record their failures and waits; any thread reads without a lock
    Interceptors        before sending: callers, and the Sender for gathered records after linger.ms; outcomes: the thread that
                        settles the rows
    UserPartitioner     callers, and the Sender for gathered records after linger.ms. The Sender's thread closes all plug-ins

Locks. A thread that holds one of these takes only locks further down (tests/producer/lock_order.py watches it).
    CallerSide._lock              whether a transaction is open, its writers, the last call
    _TopicEncoding.bundle_lock    which bundle of a topic takes records (record_gatherer.py)
    PartitionQueue.lock           one per topic-partition: its deque, and the counters of the batch at its tail
    IncompleteBatches._lock       the batches whose rows have no outcome yet, flushes in progress
    BufferPool._lock              free blocks, charges, waiters
    Delivery._lock                acknowledged rows, first error (RecordBundle._outcome_lock for gathered records)
    ProducerMetrics._lock         what callers and the Sender record: failures, times of flush, metadata and transactional calls
With one of these, a thread takes no other:
    OldestBatch._lock             when the oldest batch was created; taken under PartitionQueue.lock
    TransactionalCall._lock       the outcome of a call; under CallerSide's, when a call is posted to an ended producer
    RecordBundle._lock            the lists that a record is appended to
    KafkaProducer._closer_lock, StickyPartitioner._lock, RoundRobinPartitioner._lock, PartitionQueues._lock, HandOvers._lock,
    Signal._lock; in legacy/ SendQueue._lock and SyncDispatch._lock
No thread takes Metadata's lock while it holds PartitionQueue.lock or one below it.
A thread that waits holds none of these locks, and no reservation (record_accumulator.py). It may hold a lock of its own, which
shows only that its call goes on (LiveCalls in interrupts.py).
"""
