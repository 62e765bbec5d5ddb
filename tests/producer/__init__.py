"""Tests of the producer, and where the scenarios of Apache Kafka's own unit tests are found here.

harness.py puts parts together (Accumulation: pool and accumulator; Stage: a Sender on a ManualClock and a MockClient);
transaction_stage.py adds coordinators; simulated_brokers.py keeps logs and judges sequences for test_properties.py;
test_kafka_producer.py, test_flush_and_close.py and test_broker_trouble.py run over sockets against FakeBroker. A claim is ported,
not Java's way per record: rows are columns here, memory is blocks, a handle counts a whole call.

BufferPoolTest → test_buffer_pool.py
    testSimple → test_blocks_are_counted_out_and_back, test_a_block_given_back_is_handed_out_again
    testCantAllocateMoreMemoryThanWeHave → test_more_than_the_whole_pool_is_refused_at_once
    testDelayedAllocation → test_a_waiter_gets_memory_that_is_given_back
    testBufferExhausted…, testBlockTimeout → test_time_runs_out_after_max_block_ms_and_the_error_says_what_to_do
    testCleanupMemoryAvailabilityWaiterOn… → test_a_waiter_whose_time_runs_out_leaves_no_trace, …_is_interrupted_…, …_gives_up_…
    testStressfulSituation → test_ten_threads_that_take_and_give_back_lose_nothing
    testLargeAvailableMemory → test_a_pool_of_more_than_two_gibibytes_counts_right…
    outOfMemoryOnAllocation → test_when_memory_cannot_be_had_from_the_system_nothing_is_taken
    testCloseAllocations, testCloseNotifyWaiters → section CLOSING
    testCleanupMemoryAvailabilityOnMetricsException  not applicable: counters cannot raise
    bufferpool-wait-…, buffer-exhausted-… → test_waits_are_measured, test_producer_metrics.py

RecordAccumulatorTest → test_record_accumulator.py, test_accumulator_memory.py, test_flush_and_abort.py, test_drainer.py,
    test_built_in_partitioner.py, test_slice_layout.py
    testFull, testAppendLarge…, testLinger → test_drainer.py: FULL, LINGER AND DELAYS
    testDrainBatches, testPartialDrain, testDrainWithANodeThatDoesntHostAnyPartitions, testMutedPartitions
        → test_drainer.py: DRAIN
    testNextReadyCheckDelay → test_the_next_check_is_due_when_the_first_batch_has_lingered, …_without_leader_…
    testRetryBackoff, testExponentialRetryBackoff(LeaderChange), testReadyAndDrainWhenABatchIsBeingRetried
        → test_drainer.py: RETRY
    testFlush, testAwaitFlushComplete, testAbortIncompleteBatches → test_flush_and_abort.py: FLUSH, CLOSE, ABORT
    testExpiredBatchSingle(MaxValue), testExpiredBatches, testSoonToExpire…, testExpiredBatchesRetry
        → test_record_accumulator.py: EXPIRY
    testSplitAndReenqueue, testSplitBatchOffAccumulator, testSplitFrequency, …PreventInfiniteRecursion
        → test_accumulator_memory.py: SPLITTING
    testUniformBuiltInPartitioner, testAdaptive…, testBuiltInPartitionerFractionalBatches → test_built_in_partitioner.py,
        plugins/test_partitioner.py
    testStressfulSituation → test_five_callers_at_a_time_lose_nothing_and_keep_their_order
    testHasRoomForAllowsOversizedFirstRecord… → test_a_row_larger_than_batch_size_is_a_batch_of_its_own…,
        test_oversized_rows_in_a_row_…
    testProduceRequestResultAwaitAllDependents → test_flush_waits_for_the_smaller_batches_of_a_split
    testIdempotenceWithOldMagic, …OldMessageFormat…  not applicable: only format v2 is written
    testStickyBatches → not applicable: a slice is assigned before it is appended, there is no second try
    testAbortUnsentBatches, testRecordsDrainedWhenTransactionCompleting → test_flush_and_abort.py: TRANSACTIONS

SenderTest → tests/producer/sender, by section or file
    testSimple, testNodeNotReady, testDoNotPollWhenNoRequestSent, testMetadataTopicExpiry → ONE REQUEST, WAITING AND POLLING
    testQuotaMetrics, testSenderMetricsTemplates → test_producer_metrics.py: test_throttle_times_are_of_every_response,
        test_the_tables_name_everything…; test_a_throttled_node_gets_nothing…
    testRetries, testCanRetryWithoutIdempotence, testSenderShouldRetryWithBackoff…, testDefault/CustomErrorMessage → RETRIES
    testRecordErrorPropagatedToApplication → test_the_row_that_the_broker_blames_is_named; test_delivery.py,
        test_record_bundle.py
    testProducerBatchRetriesWhenPartitionLeaderChanges, testWhenProduceResponse…LeaderShipChangeError… → KIP-951
    testSendInOrder, testWhenFirstBatchExpireNoSendSecondBatchIfGuaranteeOrder → ORDER WITH ONE REQUEST IN FLIGHT
    testInflightBatchesExpire…, testExpiredBatchDoesNot(Retry|Split…), testResetNextBatchExpiry,
    testExpiredBatchesInMultiplePartitions, testNoDoubleDeallocation, testNoBufferReuseWhenBatchExpires,
    testAppendInExpiryCallback → EXPIRY
    testInitProducerId…, testClusterAuthorizationExceptionInInitProducerIdRequest → PRODUCER ID
    testIdempotenceWithMultipleInflights…, testCorrectHandlingOfOutOfOrderResponses…, testCorrectHandlingOfDuplicateSequenceError,
    testSequenceNumberIncrement → SEQUENCES: SEVERAL IN FLIGHT
    testEpochBumpOn…, testBumpEpoch…, testRetryWhenProducerIdChanges, testResetOfProducerState…,
    testBatchesDrainedWithOldProducerId…, …WhereFirstFailsFatally…, testShouldRaiseOutOfOrderSequenceExceptionToUser…
        → EPOCH BUMPS
    test…UnknownProducer… → UNKNOWN_PRODUCER_ID
    testExpiryOf…, testUnresolvedSequencesAreNotFatal (the idempotent half) → UNRESOLVED SEQUENCES
    testClusterAuthorizationExceptionInProduceRequest, testCancelInFlightRequestAfterFatalError, testUnsupported… → FATAL ERRORS
    testIdempotentSplitBatchAndSend, testTooLargeBatchesAreSafelyRemoved → LARGE BATCHES
    test(Force)CloseWithProducerIdReset, testSenderShouldCloseWhenTransactionManagerInErrorState → THE END
    testMessageFormatDownConversion, testDownConversionForMismatchedMagicValues → not applicable: only format v2 is written
    testNodeLatencyStats → test_a_node_that_takes_nothing_for_too_long_gets_no_rows_without_a_key
    everything with Transaction in its name, testReceiveFailedBatchTwice…, testInvalidTxnState…, testAbortableError…,
    testTooLargeBatches… → one by one in transactions/__init__.py

TransactionManagerTest → idempotence/test_sequencer.py, idempotence/test_sequence_numbers.py, sender/test_retry.py
    testDefaultSequenceNumber, testSequenceNumberOverflow, testProducerIdReset → test_sequence_numbers.py
    testBumpEpochAndResetSequenceNumbers…, testBatchFailureAfterProducerReset, testBatchCompletedAfterProducerReset,
    testDuplicateSequenceAfterProducerReset, testHealthyPartitionRetriesDuringEpochBump, testFailedInflightBatchAfterEpochBump,
    testEpochBumpAfterLastInflightBatchFails, testNoProducerIdResetAfterLastInFlightBatchSucceeds,
    testBumpEpochAfterTimeoutWithoutPendingInflightRequests, testNoFailedBatchHandlingWhenTxnManagerIsInFatalError,
    testFailIfNotReadyForSend…IdempotentProducer… → test_sequencer.py,
        test_sequences_in_flight.py, test_kafka_producer.py
    test(Background|Foreground)…StateTransition… → test_states_change_as_the_table_says_and_an_illegal_move_changes_nothing
    the other 120, about transactions → one by one in transactions/__init__.py, with librdkafka's tests 0103 and 0105

ProducerBatchTest → test_producer_batch.py
    all; testBatchExpiration(AfterReenqueue) under TIME, testSplitPreserves… under SPLITTING
BuiltInPartitionerTest → plugins/test_partitioner.py  all; rack and leaderless partitions in test_built_in_partitioner.py
FutureRecordMetadataTest → test_record_bundle.py, test_delivery.py
KafkaProducerTest → test_kafka_producer.py, test_flush_and_close.py, test_broker_trouble.py, test_single_records.py,
    test_user_partitioners.py
    metadata (missing topic, out of range, refresh, invalid topic, waiting while closing), flush, close, headers, null topics,
        negative partitions, size checks, authorization, callbacks, client ids → ported
    configuration conflicts, unused keys, linger against delivery time-out → tests/config/test_producer_rules.py
    serializers → test_serializers.py
    JMX, telemetry, socket buffer sizes → not applicable
    testInterceptorConstructClose → test_an_interceptor_by_name_lives_as_long_as_its_producer
    testInterceptorConstructorConfigurationWithException… → test_a_failing_configure_closes_all_that_were_made
    testInterceptorPartitionSetOnTooLargeRecord → test_interceptors_hear_the_partition_that_a_too_large_record_names
    testCallbackAndInterceptorHandleError → test_callback_and_interceptors_hear_of_a_record_that_cannot_be_gathered
    configurableObjectsShouldSeeGeneratedClientId → test_interceptors_see_the_generated_client_id; plugins/test_partitioner.py
    testPartitionerClose → test_a_partitioner_is_closed_once_with_its_producer
    negativePartitionShouldThrow → test_the_error_of_a_partition_that_does_not_exist_names_class_and_row
        (-1 leaves the choice here)
    onNewBatch → not applicable: deprecated since 3.3, and a slice is assigned before it is appended
    transactions → transactions/__init__.py
ProducerInterceptorsTest → plugins/test_interceptors.py, plugins/test_intercepted_columns.py
    testOnSendChain → test_columns_pass_the_interceptors_in_their_order, test_a_failing_interceptor_is_skipped…
    testOnAcknowledgementChain → test_interceptors_hear_of_a_failure_even_when_one_before_them_raises
    testOnAcknowledgementWithErrorChain → test_interceptors_hear_what_is_known_of_a_failure…,
        test_interceptors_hear_the_partition_of_rows_that_the_broker…
KafkaProducerMetricsTest → test_producer_metrics.py: test_flush_and_waiting_for_metadata_take_time
    txn-…-time-ns-total → test_transactional_producer.py: test_the_time_that_callers_spend_in_each_call_is_counted
    shouldRemoveMetricsOnClose → not applicable: there is no registry to leave
SampledStat, Rate, Avg, Max (MetricsTest, RateTest …) → tests/test_metrics.py
AsyncProducerTest, ProducerTest of the old Scala client (last in Kafka 1.1) → tests/legacy
    testProducerQueueSize, testAsyncSendCanCorrectlyFailWithTimeout → THE QUEUE; testProduceAfterClosed → SYNC
    testBatchSize, testQueueTimeExpired → THE QUEUE, ASYNC; testInvalidConfiguration → OPTIONS
    testPartitionAndCollateEvents, testInvalidPartition, testRandomPartitioner → PARTITIONS
    testSerializeEvents, testIncompatibleEncoder, testSendNullMessage, testJavaProducer → SYNC
    testFailedSendRetryLogic, testNoBroker, testSendWithDeadBroker, testSendToNewTopic → SYNC
    testUpdateBrokerPartitionInfo → not applicable: metadata is KafkaProducer's
ProducerMetadataTest → tests/network

Beyond Java: test_properties.py (any rows, faults, moving leaders and concurrent writers: each row once, in order, memory whole),
reservations of concurrent callers, wake-ups that must not be lost, and the first batch of a partition that a broker does
not know.
"""
