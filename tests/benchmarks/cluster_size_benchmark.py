"""What a producer costs in large clusters: CPU per record, and how long a round of the Sender takes, by brokers and partitions.

    python -m tests.benchmarks.cluster_size_benchmark [--clusters 3x6,3x300,3x1000,30x3000] [--rows 1200000] [--value-size 100] …

The brokers are objects in this process: each takes up to five requests and answers them all in the next round but one, so no
broker's or network's speed shows in the figures. One thread appends the rows of one call, by default as many as the sink gathers
for it, then runs the Sender's rounds: one a millisecond, of which each call takes as many as its rows do at 2.5 million rows/s.
`caller` is what send_columns costs, without metadata; `sender` the rounds, requests encoded. Rounds in which nothing is sent or
answered are `idle`. Figures are CPU time of this thread.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque

import numpy as np
import pyarrow as pa

from spark_kafka_sink.config.sink_options import BULK_DEFAULTS
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.sink.rows.gathering import MAX_GATHERED_BYTES, MAX_GATHERED_ROWS
from tests.benchmarks.producer_benchmark import SAMPLES, sample_values
from tests.producer.harness import TOPIC, Stage, metadata_response

IN_FLIGHT = 5
ROWS_PER_MS = 2_500  # of the clock


def _accepted(topic: TopicProduceData) -> TopicProduceResponse:
    responses = tuple(PartitionProduceResponse(index=each.index, base_offset=7) for each in topic.partition_data)
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=responses)


class InstantBrokers:
    """The Sender's client, and the brokers behind it."""

    def __init__(self) -> None:
        self._in_flight: Counter[int] = Counter()
        self._rounds: deque[list[ClientRequest]] = deque([[], []])  # by round; the last one is this round's
        self.requests = 0
        self.worked = False

    def ready(self, node_id: int, now_ms: int) -> bool:  # noqa: ARG002 - as NetworkClient
        return self._in_flight[node_id] < IN_FLIGHT

    def poll_delay_ms(self, *_: int) -> int:
        return 1

    def send(self, request: ClientRequest, _: int) -> None:
        request.message.encode(13)
        self._in_flight[request.node_id] += 1
        self._rounds[-1].append(request)
        self.requests += 1
        self.worked = True

    def poll(self, _: int, now_ms: int) -> list[ClientResponse]:
        self._rounds.append([])
        for request in self._rounds.popleft():
            self._in_flight[request.node_id] -= 1
            self.worked = True
            answers = tuple(map(_accepted, request.message.topic_data))
            assert request.callback is not None
            request.callback(ClientResponse(request, ProduceResponse(responses=answers), 13, now_ms))
        return []

    def least_loaded_node(self, _: int) -> int | None:
        return 0

    def login_rejection(self, _: int) -> None:
        return None

    def rejection_by_all(self) -> None:
        return None

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        return self._in_flight.total() if node_id is None else self._in_flight[node_id]

    def wakeup(self) -> None:
        return

    def close(self) -> None:
        return


def _columns(arguments: argparse.Namespace) -> RecordColumns:
    """The rows of one call: as many as the sink gathers, unless the arguments say how many."""
    values = pa.array(sample_values(arguments.value_size), pa.binary())
    keys = pa.array([b"%08d" % number for number in range(SAMPLES)], pa.binary())
    rows = arguments.call_rows or min(MAX_GATHERED_ROWS, MAX_GATHERED_BYTES * SAMPLES // (values.nbytes + keys.nbytes))
    indices = pa.array(np.arange(rows) % SAMPLES)
    return record_columns(values.take(indices), keys.take(indices), None, 1_700_000_000_000)


def measure(nodes: int, partitions: int, arguments: argparse.Namespace) -> None:
    leaders = [partition % nodes for partition in range(partitions)]
    stage = Stage(
        leaders={TOPIC: leaders},
        enable_idempotence=True,
        linger_ms=BULK_DEFAULTS["linger_ms"],
        batch_size=BULK_DEFAULTS["batch_size"],
        compression_type=arguments.codec,
    )
    stage.client.update_metadata(metadata_response({TOPIC: leaders}, nodes=range(nodes)))
    brokers = InstantBrokers()
    sender = Sender(stage.parts._replace(client=brokers), stage.gatherer)
    columns = _columns(arguments)
    row_count = columns.row_count
    random = np.random.default_rng(7)
    positions = np.arange(row_count, dtype=np.int32)
    calls = max(1, arguments.rows // row_count)
    caller: list[float] = []
    working: list[float] = []
    idle: list[float] = []
    least_free = stage.pool.total_memory

    def run_round() -> None:
        stage.clock.advance(1)
        brokers.worked = False
        started = time.thread_time()
        sender.run_once()
        (working if brokers.worked else idle).append(time.thread_time() - started)

    def wake() -> None:
        while stage.accumulator.must_hurry() and stage.pool.available_memory < stage.pool.total_memory // 4:
            run_round()

    stage.on_wake = wake
    for number in range(-(calls // 4) - 1, calls):
        if number == 0:  # what came before was to warm up
            caller, working, idle = [], [], []
            brokers.requests = 0
        chunk = TopicRows(TOPIC, columns, random.integers(0, partitions, row_count, dtype=np.int32), positions)
        delivery = Delivery(row_count, stage.clock)
        of_sender = sum(working) + sum(idle)
        started = time.thread_time()
        for part in chunk.slices(partitions):
            stage.hand_overs.run(stage._append, part, delivery)
        caller.append(time.thread_time() - started - (sum(working) + sum(idle) - of_sender))
        least_free = min(least_free, stage.pool.available_memory)
        for _ in range(row_count // ROWS_PER_MS):
            run_round()
    records = row_count * calls

    def ms(times: list[float], share: float) -> str:
        return f"{sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1e3:.2f}" if times else "-"

    print(
        f"{nodes:>8}{partitions:>12}{sum(caller) / records * 1e6:>12.2f}{sum(working + idle) / records * 1e6:>12.2f}"
        f"{ms(idle, 0.5):>12}{ms(working, 0.5):>12}{ms(working, 0.99):>12}{records / max(1, brokers.requests):>14,.0f}"
        f"{(stage.pool.total_memory - least_free) / 2**20:>12.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default="3x6,3x300,3x1000,30x3000", help="brokers x partitions")
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--call-rows", type=int, help="rows of each call; by default what the sink gathers")
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--codec", default="none")
    arguments = parser.parse_args()
    print(
        f"{'brokers':>8}{'partitions':>12}{'caller s/M':>12}{'sender s/M':>12}{'idle ms':>12}{'work ms':>12}{'99 % ms':>12}"
        f"{'rows/request':>14}{'memory MiB':>12}"
    )
    for cluster in arguments.clusters.split(","):
        nodes, partitions = map(int, cluster.split("x"))
        measure(nodes, partitions, arguments)


if __name__ == "__main__":
    main()
