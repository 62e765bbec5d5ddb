"""Kafka's wire format: messages and error codes as data.

    api_keys.py              the APIs that this client supports, with their versions
    error_codes.py           every error code, and whether a request with it is retried
    messages/                one file for each API: its request and its response
    schema.py                how a dataclass becomes an encoder and a decoder; primitives.py has the types, headers.py the headers
    topic_partition.py       the pair that names a partition
    permissions.py           which permission an error asks for, in words
    producer_identity.py     producer id and epoch, and a transaction that another process can end

Nothing here has sockets, threads or clocks.
"""
