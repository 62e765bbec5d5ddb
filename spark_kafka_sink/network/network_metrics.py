"""Metrics of the network: bytes, requests, connections and waiting, for all nodes together and for each.

Selector and NetworkClient record them, on NetworkClient's thread, per system call or response. The names are those of Java's
Selector and NetworkClient. ProducerMetrics records the latency of Produce requests, and reads all metrics, on any thread.
"""

from __future__ import annotations

from spark_kafka_sink.metrics import Samples, average, average_and_max, count_meter, gauge, meter, snapshot, time_and_share, total

NODE_METRICS = [
    *count_meter("request", "requests", "Requests sent, handshakes and metadata included."),
    *average_and_max("request-size", "requests", "Bytes of a request."),
    *meter("outgoing-byte", "outgoing", "Bytes of requests that were written to connections."),
    *count_meter("response", "responses", "Responses received."),
    *meter("incoming-byte", "incoming", "Bytes of responses that were read from connections."),
    *average_and_max("request-latency", "latency", "Milliseconds from making a Produce request to its response."),
]
NETWORK_METRICS = [
    *[metric for metric in NODE_METRICS if not metric.name.startswith("request-latency")],
    *count_meter("network-io", "transfers", "Reads and writes of sockets."),
    *average_and_max("produce-throttle-time", "throttle", "Milliseconds for which a response throttles the client (quotas)."),
    *total("produce-throttle-time-total", "throttle", "Sum behind `produce-throttle-time-avg`, over responses."),
    *gauge("connection-count", "Connections now."),
    *meter("connection-creation", "creations", "Connections established."),
    *meter("connection-close", "closures", "Connections closed, also those that were never established."),
    *count_meter("select", "waits", "Calls of select."),
    *average("io-wait-time-ns-avg", "waits", "Nanoseconds of a call of select, waiting included."),
    *time_and_share("io-wait", "waits", "Nanoseconds of all calls of select; and as a part of time."),
    *average("io-time-ns-avg", "io", "Nanoseconds of reading and writing after a call of select."),
    *time_and_share("io", "io", "Nanoseconds of all this reading and writing; and as a part of time."),
]


class NodeMetrics:
    """The Stats of one node."""

    def __init__(self, samples: Samples) -> None:
        self.requests = samples.stat()  # bytes of each
        self.outgoing = samples.stat()  # bytes of each write
        self.responses = samples.stat()
        self.incoming = samples.stat()  # bytes of each read
        self.latency = samples.stat()  # ms of each Produce request


class NetworkMetrics:
    """Counts what the Selector and the NetworkClient do.

    Args:
        samples: shared with the reader; without it the numbers go nowhere.
    """

    def __init__(self, samples: Samples | None = None) -> None:
        self.samples = samples or Samples()
        self.nodes: dict[int, NodeMetrics] = {}
        self.connection_count = 0
        self.requests = self.samples.stat()  # as NodeMetrics, of all nodes
        self.outgoing = self.samples.stat()
        self.responses = self.samples.stat()
        self.incoming = self.samples.stat()
        self.transfers = self.samples.stat()
        self.throttle = self.samples.stat()  # ms, of each response
        self.creations = self.samples.stat()
        self.closures = self.samples.stat()
        self.waits = self.samples.stat()  # ns of each select
        self.io = self.samples.stat()  # ns of reading and writing after each select

    def node(self, node_id: int) -> NodeMetrics:
        """The Stats of a node, made at the first call."""
        metrics = self.nodes.get(node_id)
        if metrics is None:
            metrics = self.nodes[node_id] = NodeMetrics(self.samples)
        return metrics

    def record_write(self, node_id: int, size_bytes: int) -> None:
        self.transfers.count += 1
        self.outgoing.record(size_bytes)
        self.node(node_id).outgoing.record(size_bytes)

    def record_request(self, node_id: int, size_bytes: int) -> None:
        self.requests.record(size_bytes)
        self.node(node_id).requests.record(size_bytes)

    def record_read(self, node_id: int, size_bytes: int, response_count: int) -> None:
        self.transfers.count += 1
        self.incoming.record(size_bytes)
        self.responses.count += response_count
        node = self.node(node_id)
        node.incoming.record(size_bytes)
        node.responses.count += response_count

    def snapshot(self, now_ms: int, *, since_start: bool) -> dict[str, float]:
        values = snapshot(self.samples, NETWORK_METRICS, self, now_ms, since_start=since_start)
        return values | {"connection-count": self.connection_count}

    def node_snapshots(self, now_ms: int, *, since_start: bool) -> dict[int, dict[str, float]]:
        """Node id -> metric -> value. Any thread."""
        return {
            node_id: snapshot(self.samples, NODE_METRICS, node, now_ms, since_start=since_start)
            for node_id, node in sorted(self.nodes.copy().items())
        }
