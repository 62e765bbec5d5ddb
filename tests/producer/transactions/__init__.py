"""Tests of transactions, and where the transactional scenarios of Apache Kafka's and librdkafka's own tests are found here.

Each scenario was gone through by its name: TransactionManagerTest, SenderTest and KafkaProducerTest of Kafka's trunk in 2026, and
librdkafka's tests 0103 and 0105. What Java does for each record is a claim here about rows, for transactions of version 1 and of
version 2 (KIP-890). The idempotent half of these classes is in tests/producer/__init__.py.

    sending, ending, closing, coordinators   test_transactions_….py here: one thread, a manual clock, transaction_stage.py
    errors                                   txn_requests/test_transaction_errors.py: what each error means for each request
    calls, lost_rows                         test_transactions_….py: callers' threads, sockets, FakeBroker
    producer                                 test_transactional_producer.py: whole transactions over FakeBroker
    brokers                                  tests/integration/test_transactions.py: a real broker, Java's reader, librdkafka

TransactionManagerTest
    testFailIfNotReadyForSendNo…, testNotReadyForSendBefore… → sending: test_no_row_is_sent_outside_of_a_transaction;
        producer: test_calls_that_do_not_fit_the_state_raise_and_change_nothing
    testFailIfNotReadyForSendAfter…, testNotReadyForSendAfter… → ending: test_after_a_rejected_batch_a_transaction_can_be_…;
        coordinators: test_an_error_that_does_not_pass_is_named_and_is_abortable_or_fatal
    testHasOngoingTransaction… → sending: test_a_transaction_is_open_from_its_begin_until_its_end_is_answered
    testMaybeAddPartitionToTransaction, testBasicTransaction, testNoDrainWhenPartitionsPending,
    testRaiseErrorWhenNoPartitionsPendingOnDrain, testIsSendToPartitionAllowedWithPartitionNotAdded,
    testHandlingOfUnknownTopicPartitionErrorOnAddPartitions → sending: test_version_1_adds_partitions_before_their_first_batch…
    testMultipleAddPartitionsPerForOneProduce → sending: test_version_1_adds_what_comes_later_with_a_request_of_its_own
    testMaybeAddPartitionToTransactionInTransactionV2, testTransactionV2AddPartitionAndOffsets → sending:
        test_in_version_2_partitions_join_with_their_first_batch
    testAddPartitionToTransactionOverridesRetryBackoff…, …RetainsRetryBackoff… → sending, WHEN IT IS TRIED AGAIN
    testIsSendToPartitionAllowedWith(Pending|InFlight)…AbortableError → sending: test_a_partition_that_was_not_added_yet_is_not…
    testIsSendToPartitionAllowedWithAddedPartitionAfterAbortableError, testAllowDrainInAbortableErrorState,
    resendFailedProduceRequestAfterAbortableError, testRecoveryFromAbortableErrorProduceRequestInRetry → sending:
        test_a_batch_that_is_being_retried_goes_on_after_an_error_elsewhere (rows that were never sent fail, as in Java's Sender)
    testIsSendToPartitionAllowed…FatalError → sending: test_after_a_fatal_error_nothing_is_sent_and_all_rows_fail
    testTransactionManager(Enables|Disables)V2 → ending, VERSIONS
    testDisconnectAndRetry, testLookupCoordinator… → coordinators, COORDINATORS ARE FOUND
    testInitializeTransactionsTwiceRaisesError, testRetryInitTransactionsAfterTimeout → calls: test_init_that_ran_out_of_time…
    testUnsupported(FindCoordinator|InitTransactions) → coordinators: test_a_broker_that_is_too_old_ends_the_producer
    testSendOffsetWithGroupMetadataFailAsAutoDowngrade… → coordinators: test_a_group_member_needs_a_broker_that_knows_members
    testSendOffsetsWithGroupMetadata → calls: test_the_member_of_the_group_is_named_with_its_offsets
    testUnsupportedForMessageFormatInTxnOffsetCommit, testFencedInstanceIdIn…, testUnknownMemberIdIn…, testIllegalGenerationIn…,
    testGroupMetadataMismatchError…, testGroupAuthorizationFailureInTxnOffsetCommit, testTransactionalIdAuthorizationFailureIn…,
    testInvalidTxnStateFailureInAddOffsetsToTxn, testInvalidTxnStateInAddPartitions, testTopicAuthorizationFailureInAddPartitions,
    testHandlingOf(ProducerFenced|TransactionalId|InvalidProducerEpoch|UnsupportedForMessageFormat)…, testProducerFencedIn…,
    testInvalidProducerEpochConvertToProducerFencedIn…, testTransactionAbortableExceptionIn… → coordinators:
        test_an_error_that_does_not_pass_is_named…; errors; ERRORS THAT DO NOT for init and FindCoordinator
    testGroupAuthorizationFailureInFindCoordinator → coordinators: test_a_group_that_may_not_be_looked_for_ends_the_transaction
    testProducerFencedExceptionInInitProducerId → coordinators: test_a_producer_that_is_fenced_at_init_says_so
    testTransactionAbortableExceptionInInitProducerId → coordinators: test_an_init_with_an_abortable_error_ends_the_producer
    testCommitWithTopicAuthorizationFailure…, shouldNotAddPartitionsToTransactionWhenTopicAuthorizationFailed → coordinators:
        test_a_denied_topic_is_named_and_the_others_are_not_blamed
    testRetriableErrors, testCoordinatorNotAvailable, testHandlingOf(UnknownTopicPartition|CoordinatorLoading|NetworkException)…
        → coordinators: test_every_request_is_retried_after_an_error_that_passes, test_partitions_whose_offsets_are_accepted…
    testFindCoordinatorAllowedInAbortableErrorState → coordinators: test_a_coordinator_is_looked_for_in_a_transaction_that_must…
    testTxnOffsetCommit…V6…, testTxnOffsetCommitDowngradesToV5… → not applicable: version 6 is not spoken
    testFatalErrorWhenProduceResponseWithInvalidPidMapping → ending: test_a_leader_whose_coordinator_does_not…
        here, as for librdkafka; errors say why
    testEndTxnNotSentIfIncompleteBatches, testCommitTransactionWith(Unsent|InFlight)ProduceRequest, testFlushPendingPartitions…
        → ending, WHAT A COMMIT WAITS FOR
    testCancelUnsentAddPartitionsAndProduceOnAbort, testAbortResends… → ending, WHAT AN ABORT DROPS
    testRetry(Abort|Commit)Transaction… → calls: test_an_end_that_timed_out_is_waited_for_by_the_same_call…
    testDisallowCommitOnProduceFailure, testAllowAbortOnProduceFailure, testInvalidProducerEpochFromProduce,
    testBumpTransactionalEpochOn(AbortableError|UnknownProducerIdError), testAbortTransactionAnd… → ending, A ROW THAT FAILS and
        test_after_a_failed_batch_the_epoch_is_raised_with_the_abort
    testTransitionToAbortableErrorOn…BatchExpiry, testDropCommitOnBatchExpiry, testBumpTransactionalEpochOnTimeout → ending:
        test_batches_that_expire_in_their_queue_drop_the_commit
    testTransitionToFatalErrorWhenRetriedBatchIsExpired → ending: test_a_coordinator_that_cannot_bump_epochs_makes_a_failed_…:
        fatal for any failed batch there, as brokers before 2.5 are not supported
    testBumpTransactionalEpochOnRecoverable… → ending: test_(partitions|a_group)_… refused_for_the_producer…
    testRecoveryFromAbortableErrorTransactionNotStarted, shouldNotSendAbortTxnRequestWhenOnlyAdd… → coordinators:
        test_a_denied_topic…; ending: test_offsets_that_are_refused_while_the_transaction_is_aborted_change_nothing
    testRecoveryFromAbortableErrorTransactionStarted → sending: test_a_batch_that_is_being_retried_goes_on_after_…
    testAbortableErrorWhileAbortInProgress → ending: test_a_batch_that_fails_while_its_transaction_is_aborted_changes_nothing
    shouldFailAbortIfAddOffsetsFailsWithFatalError → ending: test_a_fatal_error_while_the_transaction_is_aborted_ends_the_producer
    testMaybeResolveSequencesTransactionalProducer → ending: test_a_batch_behind_one_that_expired_does_not_make_the_producer_fatal
    test…UpdateAfter…FromEndTxnResponseInV2 → ending: test_in_version_2_each_end_brings…, test_epochs_used_up_in_a_transaction…
    testNeedToTriggerEpochBumpFromClientDuringCoordinatorDisconnect, testCanBumpEpochDuringCoordinatorDisconnect → ending:
        test_a_lost_connection_to_the_coordinator_makes_no_failed_batch_fatal
    testBackgroundInvalidStateTransitionIsFatal → ending: test_a_move_that_no_state_allows_ends_the_producer
    testForegroundInvalidStateTransitionIsRecoverable → producer: test_calls_that_do_not_fit_the_state_raise_and_change_nothing
    testSenderShutdownWithPendingTransactions → closing: test_close_waits_for_a_commit_that_is_under_way
    testPrepareTransaction → closing: test_a_prepared_transaction_is_whole_and_left_alone
    testInitializeTransactionsWithKeepPreparedTxn, testInitPidResponseWithKeepPrepared… → not applicable: no broker offers it yet
        (KIP-939)

SenderTest
    testTransactionalRequestsSentOnShutdown, testIncompleteTransactionAbortOnShutdown → closing: test_close_ends_the_rows_and_…
    testForceShutdownWithIncompleteTransaction → closing: test_a_forced_close_aborts_nothing_and_tells_who_waits
    testSenderShouldCloseWhenTransactionManagerInErrorState → closing: test_close_ends_at_once_after_a_fatal_error
    testRecordsFlushedImmediatelyOnTransactionCompletion → ending: test_linger_ms_counts_again_in_the_next_transaction
    testAwaitPendingRecordsBeforeCommittingTransaction → ending: test_rows_in_flight_and_rows_that_wait_are_all_part_of_the_commit
    testTransactionAbortedExceptionOnAbortWithoutError → ending: test_an_abort_drops_rows_that_were_not_sent_and_asks_for_nothing
    testTransactionalSplitBatchAndSend, testTooLargeBatchesAreSafelyRemoved → ending: test_a_batch_that_was_split_is_committed_…
    testTransactionalUnknownProducerHandlingWhenRetentionLimitReached → sending: test_a_producer_that_the_leader_has_forgotten_…
    testUnresolvedSequencesAreNotFatal → ending: test_a_batch_behind_one_that_expired_does_not_make_the_producer_fatal
    testReceiveFailedBatchTwiceWithTransactions → ending: test_a_batch_that_expires_in_flight_delays_the_abort_until_its_answer…
    testInvalidTxnStateIsAnAbortableError, testTransactionAbortableExceptionIsAnAbortableError → ending:
        test_after_a_rejected_batch_a_transaction_can_be_aborted_only
    testTransactionShouldTransitionToAbortableForSenderAPI → ending: test_retries_that_are_used_up_make_a_transaction_abortable
    testAbortableErrorIsConvertedToFatalErrorDuringAbort → ending: test_an_abort_that_would_have_to_be_aborted_is_fatal
    senderThreadShouldNotGetStuckWhenThrottledAndAddingPartitionsToTxn → coordinators: test_a_throttled_coordinator_of_partit…

KafkaProducerTest
    testInitTransactionsResponseAfterTimeout, testInitTransactionTimeout, testOnlyCanExecuteCloseAfterInitTransactionsTimeout
        → calls: test_init_that_ran_out_of_time_is_waited_for_by_the_same_call, test_init_keeps_within_its_time_while_nobody_ans…
    testInitTransactionWhileThrottled → coordinators: test_a_throttled_coordinator_is_asked_when_its_time_is_over
    testClusterAuthorizationFailure → calls: test_an_id_that_is_denied_at_init_is_named_and_can_be_asked_for_again
    testAbortTransaction, testTransactionV2Produce → producer, COMMIT AND ABORT
    testTransactionV2ProduceWithConcurrentTransactionError → sending: test_in_version_2_the_first_batch_of_a_transaction_is_…
    testMeasure…Duration… → producer: test_the_time_that_callers_spend_in_each_call_is_counted
    testCommitTransactionWith… → lost_rows, SINGLE RECORDS
    testSendTxnOffsetsWith… → calls: test_no_offsets_are_sent_where_there_are_none, test_the_member_of_the_group_is_named_…
    testNullGroupMetadataInSendOffsets, testInvalidGenerationIdAndMemberIdCombinedInSendOffsets → calls:
        test_a_group_that_cannot_be_meant_is_refused
    testTransactionalMethodThrowsWhenSenderClosed → calls: test_a_closed_producer_refuses_every_call_at_once
    testCloseIsForcedOnPending… → calls: test_who_waits_for_a_coordinator_gets_an_error_when_the_producer_is_closed
    testPartitionAddedToTransaction → sending, PARTITIONS JOIN (…AfterFullBatchRetry: a slice is assigned before it is appended)
    testPrepareTransactionSuccess, test(Send|SendOffsets|BeginTransaction)NotAllowedInPreparedTransactionState → closing:
        test_a_prepared_transaction_is_whole_and_left_alone; producer: test_a_prepared_transaction_is_left_open_for_somebody_else
    testPrepareTransactionFailsWhen2PCDisabled, testInitTransactionsWithKeepPreparedTxn…, testCompleteTransactionWith…
        → not applicable (KIP-939): TransactionClient ends a prepared transaction, see tests/admin

librdkafka 0103, with a broker: transactions with and without compression, consumer and producer, fencing by and of this producer
        → brokers. Misuse → producer, MISUSE; calls, TIME-OUTS. Empty ones, with offsets and without → ending:
        test_no_end_is_asked_for_where_nothing_was_written; producer: test_a_transaction_may_hold_offsets_alone. A time-out that
        the broker refuses → producer: test_what_no_retry_mends_is_fatal_and_named_in_the_error. No broker at all → calls:
        test_init_keeps_within_its_time_while_nobody_answers. Brokers without KIP-360 → as above; watermarks and the leader epoch
        of control records → not applicable: a consumer's.

librdkafka 0105, with mock brokers
    recoverable_errors, send_offsets_concurrent_is_retried → coordinators: test_every_request_is_retried_after_an_error_that_…
    fatal_idempo_errors, requires_abort_errors → ending, A ROW THAT FAILS; coordinators, ERRORS THAT DO NOT
    slow_reinit → calls: test_a_transaction_that_waits_for_its_epoch_may_run_out_of_time
    fenced_reinit, fenced_abort → ending: test_a_producer_that_is_fenced_while_…
    endtxn_errors → coordinators: test_an_error_that_does_not_pass_is_named…; ending: test_a_producer_that_is_said_to_…
        (an error that EndTxn never has is fatal here, as in Java, and abortable there)
    endtxn_infinite, endtxn_timeout, endtxn_timeout_inflight, resumable_calls_timeout, resumable_calls_timeout_error,
    resumable_init, flush_timeout → calls, TIME-OUTS
    req_cnt → coordinators: test_a_transaction_of_offsets_alone_is_ended_though_adding_them_was_tried_twice
    broker_down_in_txn → calls: test_a_broker_that_restarts_in_a_transaction_costs_nothing_but_time
    switch_coordinator, switch_coordinator_refresh → coordinators: test_a_node_that_says_it_is_not_the_coordinator_is_left_for_…
    not_supported → coordinators: test_a_broker_that_is_too_old_ends_the_producer
    send_offsets_non_eligible → calls: test_no_offsets_are_sent_where_there_are_none
    no_timeout_crash → coordinators: test_an_answer_that_does_not_come_in_time_is_asked_for_again
    auth_failure → calls, PERMISSIONS; coordinators: test_an_id_that_may_not_be_looked_for_ends_the_producer
    coord_req_destroy, coord_req_multi_find → coordinators: test_one_request_to_a_coordinator_is_in_flight_at_most
    addparts_req_multi → sending: test_version_1_adds_what_comes_later_with_a_request_of_its_own
    unstable_offset_commit → not applicable: a consumer's; TransactionClient's in tests/admin
    commit_after_msg_timeout → ending: test_batches_that_expire_in_their_queue_drop_the_commit
    out_of_order_seq → sending: test_a_gap_in_the_sequences_makes_the_transaction_abortable_in_its_epoch
    topic_disappears_for_awhile → sending: test_sequences_go_on_when_a_topic_was_gone_from_the_metadata_for_a_while
    disconnected_group_coord → calls: test_a_group_coordinator_that_is_lost_in_the_middle_is_found_again
    coordinator_null_not_fatal → coordinators: test_a_coordinator_that_becomes_unknown_in_the_middle_is_no_fatal_error
    concurrent_operations → calls: test_while_a_call_is_under_way_other_calls_of_other_threads_are_refused_at_once
    offset_commit_doesnt_retry_too_quickly → calls: test_a_group_coordinator_that_is_away_delays_offsets_without_many_requests

Beyond them: an abort that does not wait for a group that nobody coordinates, rows that fail before they are queued in every way
there is, records of many threads at the borders of transactions, and calls of a producer whose Sender has died.
"""
