"""Tests of the network, and where the scenarios of Apache Kafka's own unit tests are found here.

FakeSelector (tests/fakes) takes the sockets away from NetworkClient; test_selector.py has real ones on 127.0.0.1;
network_client/test_with_fake_broker.py joins all over FakeBroker; tests/integration/test_faults.py does so over a real broker
behind a proxy that goes wrong. A claim is ported, not Java's way to it: a handshake is a generator here, a connection knows no
socket.

NetworkClientTest → network_client/
    testSimpleRequestResponse → test_a_request_is_answered
    testSimpleRequestResponseWithStaticNodes, …WithNoBrokerDiscovery → not applicable: metadata is always fetched, versions always
        asked for
    testSendToUnreadyNode → test_sending_to_a_node_that_is_not_ready_is_a_mistake
    testDnsLookupFailure → test_a_name_that_does_not_resolve_is_an_unreachable_broker
    testClose, testCloseConnectingNode → not applicable: only the whole client is closed
    testUnsupportedVersionDuringInternalMetadataRequest → test_a_broker_too_old_for_our_metadata_is_a_fatal_error
    testApiVersionsRequest, testInvalidApiVersionsRequest → test_handshake.py,
        test_a_broker_that_refuses_the_handshake_is_disconnected
    testUnsupportedApiVersionsRequestWithVersionProvidedByTheBroker → test_handshake.py,
        test_a_broker_that_refuses_the_version_and_names_its_own_is_asked_in_that
    testUnsupportedApiVersionsRequestWithoutVersionProvidedByTheBroker → test_a_broker_that_refuses_our_api_versions_…
    test(Default)RequestTimeout → test_a_request_that_takes_too_long_ends_the_connection_and_all_in_flight
    testConnectionSetupTimeout, testConnectionDoesNotRemainStuckInCheckingApiVersionsState… →
        test_a_connection_that_takes_too_long_is_given_up_and_tried_again, test_a_handshake_that_is_never_answered_times_out
    testConnectionThrottling, testConnectionTimeoutAfterThrottling, testThrottlingNotEnabledForConnectionToOlderBroker →
        test_requests.py, section "throttling"
    testLeastLoadedNode… → test_node_choice.py
    testHasNodeAvailableOrConnectionReady → test_while_a_node_is_connected_and_busy_nobody_bootstraps_again
    testConnectionDelay… → test_broker_connection.py, test_reconnecting_waits_for_back_off
    testDisconnectWithMultipleInFlights → test_a_lost_connection_cancels_everything_in_flight_in_order
    testDisconnectDuringUserMetadataRequest → not applicable: only the client asks for metadata
    testServerDisconnectAfterInternalApiVersionRequest → test_a_connection_that_ends_during_its_handshake_is_tried_again
    testClientDisconnectAfterInternalApiVersionRequest → test_a_handshake_that_is_never_answered_times_out
    testCallDisconnect → not applicable: the client itself decides when to disconnect
    testCorrelationId → test_framing: test_correlation_ids_count_up
    testReconnectAfterAddressChange, testFailedConnectionToFirstAddress(AfterReconnect) → test_every_address_of_a_broker_is_tried,
        test_broker_connection.py
    testAuthenticationFailureWithInFlightMetadataRequest → test_refused_authentication_reaches_whoever_waits
    testTelemetryRequest → not applicable: no telemetry is sent

ClusterConnectionStatesTest → test_broker_connection.py        all
InFlightRequestsTest → test_broker_connection.py               all
NodeApiVersionsTest → test_handshake.py                        all but the texts of toString
ApiVersionsTest → not applicable: record batches of version 2 only, and versions are kept per node
ClientUtilsTest → tests/config/test_producer_config.py (addresses), test_dns.py (canonical names)
NetworkReceiveTest, NetworkSendTest → test_framing.py

SelectorTest → test_selector.py
    testNormalOperation, testLargeMessageSequence, testSendLargeRequest → section "sending and receiving"
    testCantSendWithInProgress → test_a_second_request_waits_for_the_first_to_be_written
    testSendWithoutConnecting, testExistingConnectionId → test_sending_without_a_connection_…, test_connecting_twice_is_a_mistake
    testNoRouteToHost, testConnectionRefused, testConnectException → test_an_address_that_cannot_be_used_raises_at_once,
        test_a_refused_connection_is_reported_with_the_systems_words
    testServerDisconnect → test_a_broker_that_closes_is_reported, test_a_reset_connection_is_reported
    testGracefulClose, testPartialReceiveGracefulClose → test_answers_that_came_before_the_end_are_delivered_with_it,
        test_half_an_answer_before_the_end_is_none
    testChannelCloseWhileProcessingReceives → test_a_refusal_that_comes_with_the_end_of_the_connection_is_one_failure
    testConnectDisconnectDuringInSinglePoll → test_a_connection_that_was_made_and_lost_in_the_same_moment_is_lost
    testClearCompletedSendsAndReceives → test_what_happened_is_listed_until_the_next_poll
    testCloseAllChannels, registerFailure → test_closing_everything_closes_the_rest_when_one_cannot_be_closed
    testImmediatelyConnectedCleaned → test_a_connection_made_at_once_is_listed_by_the_next_poll_which_does_not_wait
    testCloseOldestConnection, testIdleExpiryWithoutReadyKeys → test_idle_connections_are_closed_oldest_first_one_per_poll
    test(Expire|CloseOldest)…PendingReceives, testExpireClosedConnection… → not applicable: what has arrived is read before idle
        connections are looked for, and makes its connection the youngest
    testEmptyRequest → not applicable: a frame has a header
    testMute, testMuteOnOOM, testLowestPriorityChannel, testInbound… → not applicable: a broker's
    testWriteCompletesSendWithNoBytesWritten → the transport's that keeps bytes back (TLS)
    test…Metric(s)…, testMetricsCleanupOnSelectorClose, testIoMetricsHaveCorrectDoc → tests/producer/test_producer_metrics.py

MetadataTest → test_metadata.py
    testUpdateMetadataAllowedImmediatelyAfterBootstrap → test_metadata_starts_from_the_bootstrap_servers
    testTimeToNextUpdate(RetryBackoff), testFailedUpdate, testRequestUpdate → section "when to update"
    testRequestVersion, testPartialMetadataUpdate → test_a_topic_added_while_a_request_is_under_way_is_asked_for_next,
        test_a_new_topic_is_fetched_alone_and_at_once
    testStaleMetadata, testRejectOldMetadata, testUpdateLastEpoch → test_an_older_epoch_does_not_replace_a_newer_one,
        test_the_same_epoch_is_taken_over
    testEpochUpdateAfterTopicDeletion, testEpochUpdateOnChangedTopicIds → test_a_re_created_topic_starts_a_new_count_of_epochs,
        test_epochs_outlive_an_answer_…, test_an_older_epoch_counts_only_with_another_topic_id
    testIgnoreLeaderEpochInOlderMetadataResponse, testNoEpoch → test_brokers_without_reliable_epochs_are_always_believed,
        test_a_partition_without_an_epoch_is_believed
    testLeaderMetadataInconsistentWithBrokerMetadata → test_a_leader_of_an_older_epoch_stays_out_though_its_node_has_come
    testOutOfBandEpochUpdate, testTopicMetadataOnUpdatePartitionLeadership → section "hints"
    testInvalidTopicError, testTopicAuthorizationError, testMetadataTopicErrors →
        test_an_invalid_or_unauthorized_topic_is_reported_once, test_a_later_answer_clears_topic_errors
    testMetadataMerge → test_a_new_topic_is_fetched_alone_and_at_once; …OnIdDowngrade → "id is told no longer"
    testMetadataUpdateAfterClose → test_an_answer_after_close_is_ignored
    testClusterCopy → test_a_cluster_once_taken_never_changes
    testConcurrentUpdateAndFetchForSnapshotAndCluster → test_many_threads_read_and_add_while_answers_come
    testNodeIf… → not applicable: for consumers that read from followers
    testClusterListenerGetsNotifiedOfUpdate → not applicable: no listeners; beyond Java, another cluster id is an error

ProducerMetadataTest → test_metadata.py        all, under "when to update", "topics" and "waiting"
MetadataSnapshotTest → test_metadata.py        testTopicNamesCache… not applicable: Produce knows the names of its ids

Beyond Java: test_hostile_brokers.py (any bytes, any values), answers to requests that are still being written, answers of another
cluster, a resolver that hangs (here and in tests/producer/test_broker_trouble.py), connections that wait for an answer and are
therefore not idle, and the debug log (tests/producer/test_debug_log.py).
"""
