"""`python -m spark_kafka_sink`: the command `pykafka-sink`, also where the package is on the path without being installed."""

from __future__ import annotations

import sys

from spark_kafka_sink.tools.command import main

if __name__ == "__main__":
    sys.exit(main())
