"""Requests to coordinators and brokers that need no producer: end transactions, fence producers, read and commit offsets.

    with TransactionClient({"bootstrap.servers": "localhost:9092"}) as client:
        outcomes = client.end_transactions(prepared, commit=True)

Threads
    A client has no thread of its own. Each call runs on the caller's thread, and blocks until everything is answered or the
    time-out ends. Only one thread at a time may use a client. Short-lived threads look up host names and prepare logins, as for
    producers (network/background.py).

Files
    transaction_client.py      the public methods: transactions, groups, settings of brokers
    transaction_operations.py  EndTxn, InitProducerId, Add…ToTxn, ListTransactions, DescribeTransactions
    offsets.py                 OffsetFetch, OffsetCommit
    brokers.py                 FindCoordinator, DescribeConfigs, ApiVersions
    leaders.py                 DescribeProducers and ListOffsets, and Metadata to find the leaders that answer them
    topics.py                  Metadata and DescribeConfigs of a topic: replicas, settings, permissions
    permissions.py             what the user may do with groups and transactional ids
    operation.py               the interface of operations: messages, batches, meaning of answers. They are in the six files
                               between transaction_client.py and this one
    question.py                asks that make one answer; several questions are asked side by side
    request_client.py          sends many requests to many brokers in parallel, and retries each until a deadline
    call.py                    one call of the request client: queues, look-ups of coordinators and leaders, back-offs
    cluster_access.py          what all calls share: network, metadata, the directories of coordinators and leaders

Uses `network` and `protocol`. `admin` and `producer` do not import each other.
"""
