"""Tests with real brokers and real Spark, and where the sink scenarios of Spark's own Kafka connector are found here.

The tests of the sink are in test_sink_batch.py, test_sink_streaming.py, test_sink_errors.py, test_sink_faults.py,
test_sink_rows.py (outcomes of rows, rates, reports), test_sink_parity.py (compared with format("kafka")), test_sink_memory.py and
test_sink_deployment.py. The transactional producer's are in test_transactions.py, test_transaction_versions.py and
test_transaction_failures.py (a coordinator that dies). Those of exactly-once writes are test_exactly_once_crashes.py (killed at
each step), …_zombies.py, …_faults.py (time-outs, lost answers, other rows), …_permissions.py, …_lasting.py (limits, and what
hundreds of writes leave), …_traces.py (the model's), …_edges.py, …_spark.py, …_soak.py and test_control_records.py (partitions
without leader). The other files test clusters, broker versions, security, migration and documents. The tests check what Spark's
tests check, by other means: its memory streams are files here, its test partitioner is one of Kafka's.

KafkaSinkMicroBatchStreamingSuite, KafkaContinuousSinkSuite → test_sink_streaming.py
    streaming - write to kafka with topic field → test_two_rounds_go_where_the_topic_column_says
    streaming - write w/o topic field, with topic option → test_the_topic_option_suffices
    streaming - topic field and topic option → test_the_topic_option_overrides_the_column
    streaming - write data with bad schema → test_the_error_of_a_wrong_schema_is_sparks
    streaming - write data with valid schema but wrong types → tests/sink/rows/test_spark_columns.py:
        test_a_wrong_schema_is_an_error_in_sparks_words_which_come_first
    streaming - write to non-existing topic → test_sink_errors: test_a_topic_that_does_not_exist_fails_the_planning_of_a_stream
    streaming - exception on config serializer → test_serializers_are_refused_in_sparks_words_and_with_a_remedy
    streaming - sink progress is produced → test_the_progress_counts_the_rows (append; update mode is Spark's to refuse)
    the same with a continuous trigger → test_the_continuous_trigger_fails_instead_of_losing_rows
    generic - write big data with small producer buffer → test_sink_batch: test_large_rows_pass_through_a_small_buffer

KafkaSinkBatchSuiteV1, …V2 → test_sink_batch.py
    batch - write to kafka → test_topic_value_and_headers_come_back_as_written
    batch - partition column and partitioner priorities → test_the_partition_column_takes_precedence_over_the_key,
        test_sink_parity: test_a_partition_column_precedes_the_partitioner_which_decides_for_nulls,
        tests/config/test_producer_config.py: test_java_classes_are_refused_with_the_ways_out
    batch - null topic field value, and no topic option → test_sink_errors: test_a_null_topic_fails_in_sparks_words
    SPARK-20496: batch - enforce analyzed plans → test_an_analyzed_expression_may_be_the_value
    batch - unsupported save modes (V1) → test_sink_errors: test_overwrite_is_refused_with_the_remedy
    batch - unsupported save modes (V2) → test_migration: test_the_save_mode_that_has_to_be_said_is_named_by_spark
    generic - write big data with small producer buffer → test_large_rows_pass_through_a_small_buffer

InternalKafkaProducerPoolSuite
    Should return same cached instance on calling acquire with same params → tests/sink/test_worker_cache.py:
        test_the_next_task_gets_the_same_producer_with_counters_at_zero
    Should return different cached instances … → test_other_options_make_another_producer
    expire instances → test_an_idle_producer_is_closed_when_its_timeout_ends_and_not_before, test_each_task_restarts_the_timeout
    reference counting with concurrent access → test_many_threads_never_share_a_producer_and_leave_none_open: here a producer
        has one task at a time, not a count of them
KafkaDelegationTokenSuite  not applicable: tokens live in the JVM; docs/migrating.md says what to set instead
KafkaRealTimeIntegrationSuite → test_sink_parity: test_real_time_mode_is_refused_by_spark
KafkaRedactionUtilSuite → tests/config/test_producer_config.py, section secrets
    test_sink_errors: test_no_secret_shows_in_a_traceback_with_locals
KafkaDontFailOnDataLossSuite, KafkaSparkConfSuite  not applicable: they are about reading

What Spark has no test for
    partitions as Java chooses them → test_sink_parity: test_a_hundred_thousand_random_rows_are_the_same_in_both_topics
    null value, duplicate headers in order → the same; test_nulls_stay_nulls_and_empty_stays_empty
    several topics in one task → test_rows_of_one_task_go_to_several_topics
    no rows, no partitions → test_no_rows_write_nothing, test_empty_spark_partitions_do_no_harm
    string, binary and large types → test_text_and_bytes_are_written_as_they_are, test_sink_rows:
        test_large_types_of_arrow_are_written_as_others_are
    offsets of arrays other than 0 → tests/records/test_columns.py; tests/sink/rows/test_find_refused_rows.py
    a retried task → test_sink_deployment: test_executors_in_other_processes_write_and_a_failed_task_is_run_again
    a commit that fails, and the restart → test_a_commit_that_failed_is_made_good_by_writing_the_batch_again
    complete mode, update mode → test_complete_mode_writes_the_whole_result_with_each_batch, test_update_mode_is_refused_by_spark
    a writer that does not read all rows → tests/sink/test_writer.py: test_every_batch_is_sent_flushed_and_counted
    an invalid topic name → tests/config/test_sink_options.py: test_an_impossible_topic_name_is_a_problem, test_sink_rows:
        test_rows_that_can_be_sent_nowhere_are_dead_lettered_before_anything_is_sent
    a topic that does not exist → test_sink_errors: test_rows_for_topics_that_do_not_exist_are_dead_lettered_after_one_wait,
        test_the_option_topic_must_exist_whatever_becomes_of_invalid_rows
    a cancelled job → test_sink_faults: test_a_cancelled_job_says_what_stays_and_leaves_nothing_open
    tables, threads, compressed Arrow, names in other case → test_sink_batch, section ways to write
    time zones of the session → test_sink_rows: test_a_timestamp_is_its_instant_whatever_the_sessions_time_zone
    copies from topic to topic → test_sink_parity: test_a_copy_may_bring_all_of_the_sources_columns
    retried tasks invisible to read_committed, fenced zombies → test_exactly_once_spark.py, test_exactly_once_zombies.py
"""
