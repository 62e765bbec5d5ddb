"""The Spark data source: checks options and columns on the driver, writes in tasks. No other folder here imports pyspark.

On the driver   datasource.py checks options and columns, write_plan.py is the result, topic_check.py asks for the topic
                shipped_files.py finds files that were sent with `--files`, as it does in a task
                with a format for keys or values: schema_planning.py finds or derives their schemas,
                and asks registry_of_write.py, as rows/ does in a task
In a task       writer.py takes the steps: worker_cache.py lends a producer, rows/ sends the rows. task.py knows which task it is
                broker_contact.py shortens the wait for brokers that an earlier task has not found
                with exactly-once: exactly_once_task.py
On the driver   commit_report.py adds up the tasks' messages (commit_message.py, commit_summary.py) and reports
                with exactly-once: exactly_once_commit.py
                prometheus/ has the totals of all commits for a scraper

Importing the package fails with one sentence when pyspark is missing or too old.
"""

from __future__ import annotations

MIN_PYSPARK = (4, 1)  # the first version with DataSourceStreamArrowWriter


def require_pyspark() -> None:
    """Raise ImportError unless pyspark is installed and has at least MIN_PYSPARK."""
    try:
        import pyspark
    except ImportError as error:
        raise ImportError(
            "[KAFKA_PYSPARK_MISSING] the sink runs inside Spark, but pyspark is not installed: use spark-submit, or run"
            " pip install pyspark. KafkaProducer works without pyspark"
        ) from error
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if (major, minor) < MIN_PYSPARK:
        raise ImportError(
            f"[KAFKA_PYSPARK_TOO_OLD] pyspark {pyspark.__version__} has no Arrow writers for streams:"
            f" the sink needs {'.'.join(map(str, MIN_PYSPARK))} or newer. KafkaProducer works with any version"
        )


require_pyspark()
