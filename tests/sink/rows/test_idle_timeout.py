"""idle_timeout.py: a task that Spark would kill as idle because of its rates fails before it has sent a row.

Spark killed such tasks again and again, and each attempt wrote its first rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows import idle_timeout
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.idle_timeout import checked_chunks
from spark_kafka_sink.sink.rows.rate_limit import RateLimit
from spark_kafka_sink.sink.rows.row_sender import RowSender
from spark_kafka_sink.sink.task import idle_timeout_s
from tests.fakes.clock import ManualClock
from tests.sink.columns import chunk_of, sink_options
from tests.sink.fake_producer import FakeDelivery, FakeProducer

MAPPING = RowMapping(topic="t", value=0, key=None, partition=None, headers=None, timestamp=None)


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["v" * 10] * rows)], names=["value"])


def write(rates: dict[str, int], timeout_s: float | None, *rows: int, log: list[str] | None = None) -> FakeProducer:
    """Writes batches of so many rows each; `log` records the order in which they are read and sent."""
    events = [] if log is None else log

    def batches() -> Iterator[pa.RecordBatch]:
        for each in rows:
            events.append(f"read {each}")
            yield batch(each)

    def on_send(_: FakeProducer, delivery: FakeDelivery) -> None:
        events.append(f"sent {delivery.rows}")

    producer = FakeProducer(on_send=on_send)
    sender = RowSender(producer, sink_options(), FakeProducer)
    sender.rate_limit = RateLimit(rates.get("records"), rates.get("bytes"), ManualClock()) if rates else None
    for chunk in SparkRows(batches(), MAPPING).chunks(sender.rate_limit, timeout_s):
        sender.send(chunk)
    sender.finish()
    assert sender.acknowledged == sum(rows)
    return producer


@pytest.mark.parametrize(
    ("session", "application", "seconds"),
    [
        ({}, {}, None),
        ({}, {"idleTimeoutSeconds": "60"}, None),
        ({}, {"killOnIdleTimeout": "true"}, None),
        ({}, {"killOnIdleTimeout": "true", "idleTimeoutSeconds": "0"}, None),
        ({}, {"killOnIdleTimeout": "TRUE", "idleTimeoutSeconds": "60"}, 60),
        ({}, {"killOnIdleTimeout": "true", "idleTimeoutSeconds": "2min"}, 120),
        ({"killOnIdleTimeout": "false"}, {"killOnIdleTimeout": "true", "idleTimeoutSeconds": "60"}, None),
        ({"idleTimeoutSeconds": "5s"}, {"killOnIdleTimeout": "true", "idleTimeoutSeconds": "60"}, 5),
    ],
)
def test_the_timeout_counts_only_where_spark_kills_idle_workers(
    session: dict[str, str], application: dict[str, str], seconds: float | None
) -> None:
    properties = {"spark.python.worker." + name: value for name, value in application.items()}
    properties |= {"spark.sql.execution.pyspark.udf." + name: value for name, value in session.items()}
    assert idle_timeout_s(properties.get) == seconds


def test_a_batch_that_takes_longer_than_the_timeout_fails_before_a_row_is_sent() -> None:
    log: list[str] = []
    with pytest.raises(ConfigError) as raised:
        write({"records": 10}, 60, 10_000, 10_000, log=log)
    assert log == ["read 10000"]
    assert "the task needs 1000 s for 10000 rows that Spark may deliver at once" in raised.value.message
    assert "After 60 s Spark would kill the task's Python worker" in raised.value.message


def test_many_small_batches_that_are_delivered_at_once_fail_too() -> None:
    """Each of these takes 10 s, but Spark delivers all of them at once and then counts the worker as idle for 100 s."""
    log: list[str] = []
    with pytest.raises(ConfigError, match="50 s for 500 rows that Spark may deliver at once"):
        write({"records": 10}, 60, *[100] * 10, log=log)
    assert log == ["read 100"] * 5


def test_bytes_count_as_records_do() -> None:
    with pytest.raises(ConfigError, match="100 s for 1000 rows that Spark may deliver at once"):
        write({"bytes": 100}, 60, 1_000)


def test_a_task_whose_rows_take_less_is_written() -> None:
    assert len(write({"records": 10}, 60, 300, 100).deliveries) > 0


def test_rows_that_are_not_delivered_at_once_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Spark has more rows to deliver, each batch that the task reads ends its idle time."""
    monkeypatch.setattr(idle_timeout, "MAX_BYTES_AHEAD", 2 * batch(200).nbytes)
    log: list[str] = []
    write({"records": 10}, 60, *[200] * 5, log=log)
    assert [entry for entry in log if entry.startswith("read")] == ["read 200"] * 5
    assert log.index("sent 2") == 2
    with pytest.raises(ConfigError, match="70 s for 700 rows that Spark may deliver at once"):
        write({"records": 10}, 60, 200, 200, 700)


def test_without_a_timeout_any_rate_is_accepted() -> None:
    assert write({"records": 10}, None, 1_000).deliveries


def test_without_rates_the_timeout_is_not_checked() -> None:
    assert write({}, 0.001, 10_000).deliveries


def test_with_rates_a_batch_is_sent_before_the_next_is_read() -> None:
    """Batches were gathered, up to 32,768 rows: at 100 rows/s the worker was idle for five minutes."""
    log: list[str] = []
    write({"records": 1_000_000}, None, 3, 0, 2, log=log)
    assert log == ["read 3", "sent 3", "read 0", "read 2", "sent 2"]


def test_chunks_come_out_as_they_went_in() -> None:
    chunks = [chunk_of(pa.Table.from_batches([batch(each)]), MAPPING) for each in (3, 0, 5)]
    assert list(map(id, checked_chunks(iter(chunks), lambda each: len(each.numbers), 60))) == list(map(id, chunks))
