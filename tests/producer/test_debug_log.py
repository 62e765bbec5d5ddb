"""The debug log: whether one can follow a connection and a batch by it, and what it costs while it is off."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kafka_sink
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import Stage

PACKAGE = Path(spark_kafka_sink.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "log"}
OPENINGS = ("> ", "< ", "= ", "- ", "! ")


def log_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of all calls of a logger in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("log", "logger"):
                text = node.args[1 if node.func.attr == "log" else 0]
                assert isinstance(text, ast.Constant), f"{file.name}:{node.lineno} is put together before anybody wants it"
                yield node.lineno, str(text.value)


@pytest.mark.parametrize("package", ["network", "producer"])
def test_every_line_opens_with_the_sign_of_its_kind(package: str) -> None:
    lines = [(file.name, line, text) for file in sorted((PACKAGE / package).rglob("*.py")) for line, text in log_lines(file)]
    assert len(lines) > 5
    assert [line for line in lines if not line[2].startswith(OPENINGS)] == []


def test_nothing_here_adds_a_handler_or_sets_a_level() -> None:
    """Three exceptions, all in processes of Spark's that the user's own logging does not reach: the daemon that users start for
    that very purpose, a commit's one line in a log that they have asked for, and stderr, whose lines would have no time."""
    file_names = {file.name for file in PACKAGE.rglob("*.py") if re.search(r"addHandler|basicConfig|setLevel", file.read_text())}
    assert file_names == {"debug_daemon.py", "commit_report.py", "stderr_log.py"}


def in_order(lines: list[str], *patterns: str) -> None:
    """Each pattern is found in a line behind that of the one before."""
    rest = iter(lines)
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in rest), f"no {pattern!r} behind the one before it in\n" + "\n".join(lines)


def test_a_connection_and_a_batch_can_be_followed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "spark_kafka_sink"), FakeBroker(topics={"orders": 1}) as broker:
        broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": "10"}) as producer:
            producer.send_columns("orders", value=pa.array([b"secret row"])).result(30_000)
    lines = [record.message for record in caplog.records]
    in_order(
        lines,
        r"^= node 0: connecting to 127.0.0.1:\d+",
        r"^> node 0: ApiVersionsRequest v4, correlation id 0, \d+ bytes$",
        r"^< node 0: ApiVersionsRequest v4, correlation id 0 is answered after \d+ ms",
        r"^= node 0: ready",
        r"^> node 0: ProducerBatch\(orders-0, records=1, .*sequence=0, attempts=0\)",
        r"^> node 0: ProduceRequest v13, correlation id (\d+), \d+ bytes: orders-0$",
        r"^< node 0: ProduceRequest v13, correlation id \d+ is answered",
        r"^< node 0: ProducerBatch\(orders-0.*\), correlation id \d+: NOT_ENOUGH_REPLICAS \(19\) -> retry",
        r"^! orders-0: retrying",
        r"^> node 0: ProducerBatch\(orders-0.*sequence=0, attempts=1\)",
        r"^< node 0: ProducerBatch\(orders-0.*\), correlation id \d+: NONE \(0\) -> complete",
    )
    assert "secret row" not in "\n".join(lines)
    assert all(line.startswith(OPENINGS) for line in lines)


def test_time_outs_are_marked(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(enable_idempotence=True, request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    with caplog.at_level(logging.DEBUG, "spark_kafka_sink"):
        stage.clock.advance(1500)
        stage.run()
    assert isinstance(delivery.error, KafkaTimeoutError)
    in_order([record.message for record in caplog.records], r"^- ProducerBatch\(orders-0.*Expiring 1 record")


class Unprintable:
    def __str__(self) -> str:
        raise AssertionError("put together though nobody listens")

    __repr__ = __str__


def test_while_it_is_off_no_line_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_kafka_sink.network import broker_connection
    from spark_kafka_sink.network.kafka_client import InFlightRequest
    from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch

    for kind in (InFlightRequest, ProducerBatch):
        monkeypatch.setattr(kind, "__str__", Unprintable.__str__)
        monkeypatch.setattr(kind, "__repr__", Unprintable.__repr__)
    monkeypatch.setattr(broker_connection, "_partitions_text", Unprintable.__str__)
    with FakeBroker(topics={"orders": 1}) as broker, KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        assert producer.send_columns("orders", value=pa.array([b"a"])).result(30_000).acknowledged == 1
