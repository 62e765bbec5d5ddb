"""`python -m jobs.producer_perf`: measures how fast a topic can be written, like kafka-producer-perf-test."""

from __future__ import annotations

import sys
from functools import partial

from spark_kafka_sink.tools.exit_codes import run_tool
from spark_kafka_sink.tools.perf.command import main

if __name__ == "__main__":
    sys.exit(run_tool("producer_perf", partial(main, prog="python -m jobs.producer_perf")))
