"""Shows the debug log of the writers in Spark's Python workers: --conf spark.python.daemon.module=spark_kafka_sink.debug_daemon

Spark starts this program in place of pyspark.daemon; it sets up logging and is pyspark.daemon then. The workers that it forks
inherit the set-up, and write to their executor's stderr. The only place in this package that adds a handler, and nothing
imports it.
"""

import logging
import sys


def main() -> None:
    """Log to stderr; stdout belongs to the daemon, which tells the JVM its port there."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s")
    logging.getLogger("spark_kafka_sink").setLevel(logging.DEBUG)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
