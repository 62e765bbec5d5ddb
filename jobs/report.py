"""`python -m jobs.report`: what commits have reported, as a page of HTML, or as a table in the shell."""

from __future__ import annotations

import sys
from functools import partial

from spark_kafka_sink.tools.exit_codes import run_tool
from spark_kafka_sink.tools.report.command import main

if __name__ == "__main__":
    sys.exit(run_tool("report", partial(main, prog="python -m jobs.report")))
