"""Debug log of the writers in Spark's Python workers: --conf spark.python.daemon.module=spark_kafka_sink.debug_daemon

Spark starts this program instead of pyspark.daemon. It configures logging and then runs pyspark.daemon. The workers that
pyspark.daemon forks log in the same way, to the stderr of their executor. Nothing in this package imports this module.
"""

import logging
import sys


def main() -> None:
    """Log to stderr, because the daemon reports its port to the JVM on stdout."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s")
    logging.getLogger("spark_kafka_sink").setLevel(logging.DEBUG)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
