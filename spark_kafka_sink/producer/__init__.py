"""The producer: Arrow columns in, acknowledged Kafka records out. Usable without Spark.

Threads
    caller    whoever calls KafkaProducer: maps rows to partitions, encodes, fills batches, waits for memory, metadata, flush
    Sender    one daemon thread per producer: drains batches, talks to brokers, completes, retries and expires batches
    ProducerSendThread    legacy/producer.py with producer.type=async only: a caller like any other, fed by a queue
    background  a short-lived daemon thread per host name to look up, token or ticket to fetch (network/background.py)

Where each class lives
    KafkaProducer       any caller thread
    RecordGatherer      add: callers; a chunk is encoded by the caller who fills it, or by the Sender when it has lingered
    RecordAccumulator   append: callers; ready, drain, expire, reenqueue: Sender
    BufferPool          allocate: callers; deallocate: both
    ProducerBatch       filled by callers under its queue's lock and its reservations, afterwards Sender only
    Delivery            completed by the Sender (or by a closing caller), awaited by callers
    TransactionManager  Sender only, except for `fatal_error`, which callers read
    NetworkClient       Sender only, except for `wakeup`
    ProducerMetrics     recorded by the Sender, failures and waits by both; read by anybody without a lock
    Interceptors        sending: callers, and the Sender for single records that have lingered; outcomes: whoever settles rows
    UserPartitioner     callers, and the Sender for single records that have lingered; both are closed by the Sender as it ends

Lock order: a thread that holds one of these takes only locks further down.
    1. PartitionQueue.lock        one per topic-partition: its deque, and the counters of the batch at its tail
    2. RecordAccumulator._lock    the set of incomplete batches, flushes in progress
    3. BufferPool._lock           free blocks, charges, waiters
    4. Delivery._condition        acknowledged rows, first error (GatheredRecords._settled for single records)
    5. ProducerMetrics._lock      what both threads record: failures, time in flush and waiting for metadata
Before them all, in legacy/producer.py: SyncDispatch._dispatching, held for a whole dispatch. SendQueue._changed,
EventHandler._back_off and Sender._closing are held while nothing else is taken.
Before the five above: a topic's `encoding` in record_gatherer.py, held while a chunk is encoded (the Sender only tries it), and
its `chunk` lock, which guards which chunk takes records. A chunk's own lock is held for appends to its lists. No memory is waited
for under any of them.
Metadata's lock is never taken while one of these is held. Nothing waits while holding a PartitionQueue's lock, and nobody
waits for memory while holding a reservation: a batch with a reservation is not drained, so its memory would never come back.
"""
