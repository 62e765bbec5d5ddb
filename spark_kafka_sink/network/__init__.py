"""Connections to brokers, the requests on them, and the metadata of the cluster. Knows nothing of records and batches.

Requests and metadata
    network_client.py        requests to many brokers: send, poll, callbacks. Start here
    node_choice.py           which node can take a request, and which is the least loaded
    metadata.py              what is known about the cluster, and callers that wait for it; cluster.py is one snapshot
    metadata_updater.py      sends Metadata requests
    kafka_client.py          what users of the network see: KafkaClient, requests and responses; and what is not answered yet
    coordinators.py          which broker coordinates a group or transactional id
A connection
    connection_setup.py      from a host name to a connection that is ready: DNS, TCP, TLS, login
    broker_connection.py     the state of the connection to each node; back-off
    connection_failures.py   why connections failed, and when that is final
    node_connection.py       what belongs to one connection
    connection.py            frames in, frames out, without a socket
    handshake.py             the first requests on a connection; sasl_detection.py finds out that a listener demands a login
    selector.py              the only place that waits for sockets; transport.py and tls.py are its two kinds of connections
    ssl_context.py           the ssl.* options as Python's ssl.SSLContext
    sasl/                    the SASL mechanisms
Helpers
    dns.py                   host names to addresses
    background.py            threads for work that may block
    backoff.py, network_metrics.py
"""
