"""Requests to coordinators and brokers that need no producer: end transactions, fence producers, read and commit offsets.

    with TransactionClient({"bootstrap.servers": "localhost:9092"}) as client:
        outcomes = client.end_transactions(prepared, commit=True)

Threads
    There is none but the caller's: every call blocks until all is answered or its time is up, and moves the bytes itself. A
    client belongs to one thread at a time. Names are looked up and logins prepared beside it, as for producers
    (network/background.py).

Files
    transaction_client.py   what can be asked for, in terms of transactions, groups and settings
    transactions.py         EndTxn, InitProducerId, ListTransactions, DescribeTransactions
    offsets.py              OffsetFetch, OffsetCommit
    brokers.py              FindCoordinator, DescribeConfigs
    producers.py            DescribeProducers, and Metadata to find the leaders that answer it
    operation.py            what each of these tells the request client: messages, batches, what an answer means
    request_client.py       many requests to many brokers, in parallel, each retried until a deadline
    call.py                 how one such call goes: queues, look-ups of coordinators, back-offs
    cluster_access.py       what all calls share

Stands on `network` and `protocol`, beside `producer`; neither of the two imports the other.
"""
