"""stream_to_kafka: the number of rows that it prints, counted from Spark's progress reports."""

from __future__ import annotations

from jobs import stream_to_kafka


def test_every_batch_of_a_stream_is_counted_once() -> None:
    def progress(batch: int, timestamp: str, rows: int) -> dict[str, object]:
        return {"batchId": batch, "timestamp": timestamp, "sink": {"numOutputRows": rows}}

    processed_rows = stream_to_kafka.ProcessedRows()
    first, second, idle, third = progress(0, "a", 10), progress(1, "b", 5), progress(2, "c", -1), progress(2, "d", 1000)
    for recent in ([], [first], [first, second, idle], [first, second, idle], [idle, third]):
        processed_rows.add(recent)
    assert str(processed_rows) == "1,015 rows processed in 3 batches"


def test_the_job_does_not_say_of_skipped_rows_that_they_were_written() -> None:
    """Spark's numOutputRows counts skipped and dead-lettered rows too. The job said that all of them were written, and its help
    that all are acknowledged."""
    processed_rows = stream_to_kafka.ProcessedRows()
    processed_rows.add([{"batchId": 0, "timestamp": "a", "sink": {"numOutputRows": 1}}])
    assert "written" not in str(processed_rows)
    assert "0 all rows are acknowledged, skipped or dead-lettered;" in stream_to_kafka.build_parser().format_help()
