"""Connections to brokers, the requests on them, and the metadata of the cluster. Knows nothing of records and batches.

"NetworkClient's thread" is the one thread that uses a NetworkClient, or one of its parts, at that time. It is the Sender, the
caller of an admin client, or a thread of `pykafka-sink check`.

Requests and metadata
    network_client.py        requests to many brokers: send, poll, callbacks; which broker is the least loaded. Start here
    kafka_client.py          what callers of NetworkClient see: KafkaClient, requests and responses
    metadata.py              what is known about the cluster, and callers that wait for it; cluster.py is one snapshot
    metadata_updater.py      sends Metadata requests
    coordinators.py          which broker coordinates a group or transactional id
A connection
    broker_connection.py     all of one broker's connection: state, back-off, requests in flight, session
    connection_setup.py      from a host name to a connection that is ready: DNS, TCP, TLS, login
    connection_failures.py   why connections failed, and when a failed login is final
    framing.py               requests to frames, frames to responses, without a socket
    handshake.py             the first requests on a connection; finds out that a listener demands a login
    selector.py              the only place that waits for brokers' sockets; transport.py and tls/ are its kinds of connections
    tls/, sasl/              TLS connections and the ssl.* options; the SASL mechanisms
Helpers
    dns.py                   host names to addresses
    https.py                 TLS and the proxy of token servers and schema registries
    background.py            threads for work that may block
    backoff.py, network_metrics.py
"""
