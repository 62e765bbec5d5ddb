"""`python -m jobs.transactions`: lists the open transactions of exactly-once writes, and aborts or commits them."""

from __future__ import annotations

import sys

from spark_kafka_sink.tools.transactions.command import main

if __name__ == "__main__":
    sys.exit(main())
