"""`python -m jobs.transactions`: lists the open transactions of exactly-once writes, ends them, and repairs what hangs."""

from __future__ import annotations

import sys
from functools import partial

from spark_kafka_sink.tools.exit_codes import run_tool
from spark_kafka_sink.tools.transactions.command import main

if __name__ == "__main__":
    sys.exit(run_tool("transactions", partial(main, prog="python -m jobs.transactions")))
