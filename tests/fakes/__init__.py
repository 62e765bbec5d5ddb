"""Stand-ins for brokers and for what surrounds them. A test takes the first one that has what it needs:

    tests/sink/fake_producer.py              the sink without a producer: acknowledges or fails rows as a test says
    mock_client.py: MockClient               the Sender without a network: a test answers each request
    tests/admin/scripted_network.py          requests without a producer, over MockClient: a script answers
    tests/producer/simulated_brokers.py      the Sender over MockClient, with leaders that keep logs and check sequences
    tests/producer/simulated_cluster.py      transactions, with coordinators, and requests that are lost or arrive late
    tests/producer/simulated_producer.py     whole producers over that cluster, on one thread
    fake_selector.py, fake_worker.py         NetworkClient without sockets and threads
    fake_broker.py: FakeBroker               anything over real sockets: a cluster in threads of this process
    mock_cluster.py: MockCluster             librdkafka's brokers over real sockets, written by others
    fault_proxy.py: ProxiedKafka             a real Kafka, with faults on the way to it
    zookeeper_kafka.py: ZooKeeperKafka       a real Kafka 2.8, the oldest version that works
    tests/schemas/fake_registry.py           a schema registry over HTTP

Tests with a real Kafka and no faults take `broker` of tests/conftest.py. Other files here are parts of these, or tools.
"""
