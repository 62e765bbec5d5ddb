"""stream_to_kafka: the number of rows that it prints, counted from Spark's progress reports."""

from __future__ import annotations

from jobs import stream_to_kafka


def test_every_batch_of_a_stream_is_counted_once() -> None:
    def progress(batch: int, timestamp: str, rows: int) -> dict[str, object]:
        return {"batchId": batch, "timestamp": timestamp, "sink": {"numOutputRows": rows}}

    written = stream_to_kafka.WrittenRows()
    first, second, idle, third = progress(0, "a", 10), progress(1, "b", 5), progress(2, "c", -1), progress(2, "d", 1000)
    for recent in ([], [first], [first, second, idle], [first, second, idle], [idle, third]):
        written.add(recent)
    assert str(written) == "1,015 rows written in 3 batches"
