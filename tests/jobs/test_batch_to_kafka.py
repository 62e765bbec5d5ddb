"""batch_to_kafka: the number of rows that it prints is the sink's own."""

from __future__ import annotations

import json
from pathlib import Path

from jobs import batch_to_kafka


def test_the_rows_are_those_of_the_report_that_this_write_appended(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"rows": 1}\n')
    with batch_to_kafka.with_report_path({"REPORTPATH": str(path)}) as (options, read_report):
        assert options == {"REPORTPATH": str(path)}
        assert read_report() is None  # the line there is another write's
        with path.open("a") as file:
            file.write(json.dumps({"rows": 336_776, "skipped": 0, "dead_lettered": 2}) + "\n")
        assert batch_to_kafka.rows_in_words(read_report()) == "336,776 rows (2 dead-lettered) of "
    with batch_to_kafka.with_report_path({"topic": "t"}) as (options, read_report):
        own = Path(options["reportPath"])
        assert own.parent.is_dir()
        assert batch_to_kafka.rows_in_words(read_report()) == ""
    assert not own.parent.exists()


def test_a_file_that_others_report_to_meanwhile_gives_no_number(tmp_path: Path) -> None:
    """Jobs that ran at once had one reportPath, and a job printed as its own the rows of the one that had ended last."""
    path = tmp_path / "report.jsonl"
    with batch_to_kafka.with_report_path({"reportPath": str(path)}) as (_, read_report), path.open("w") as file:
        for rows in (1000, 3):
            print(json.dumps({"rows": rows, "skipped": 0, "dead_lettered": 0}), file=file, flush=True)
        assert read_report() is None


def test_a_report_after_a_line_without_an_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"rows": 1')
    with batch_to_kafka.with_report_path({"reportPath": str(path)}) as (_, read_report):
        with path.open("a") as file:
            file.write('\n{"rows": 7}\n')
        assert read_report() == {"rows": 7}


def test_the_job_says_why_a_version_that_is_in_kafka_wrote_nothing() -> None:
    """The job said "wrote 0 rows", and not why."""
    sentences = {
        how: batch_to_kafka.reason_not_written({"exactly_once": {"owner": "orders", "version": 7, "how": how}})
        for how in ("committed", "found", "rolled-forward", "superseded")
    }
    assert sentences["committed"] == batch_to_kafka.reason_not_written({"exactly_once": None}) == ""
    assert sentences["found"] == "; number 7 of orders was in Kafka already"
    assert "committed now" in sentences["rolled-forward"]
    assert "a higher one" in sentences["superseded"]
    assert batch_to_kafka.reason_not_written(None) == ""
    two_lines = {"exactly_once": {"owner": "a\nb", "version": 7, "how": "found"}}
    assert "\n" not in batch_to_kafka.reason_not_written(two_lines)
