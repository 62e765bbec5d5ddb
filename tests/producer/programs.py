"""Programs of a few lines that use a producer and end, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.fakes.fake_broker import FakeBroker

LIMIT_S = 120  # a program that hangs is ended, which fails the test

_BEFORE = """
import atexit, sys, threading

class Pandas:
    '''Stands for an installed pandas: in an exit handler its import fails like this, and before that it takes half a second.'''

    imports = 0
    fails = True

    def find_spec(self, name, path=None, target=None):
        if name != "pandas":
            return
        Pandas.imports += 1
        if Pandas.fails:
            raise RuntimeError("can't register atexit after shutdown")

sys.meta_path.insert(0, Pandas())
from spark_kafka_sink.producer import exits
exits.EXIT_LIMIT_MS, exits._FAILING_MS = map(int, sys.argv[2:])
OPTIONS = {"bootstrap.servers": sys.argv[1], "linger.ms": 60_000, "retry.backoff.ms": 20}
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.records.arrays import bytes_array, header_array, int64_array, text_array
"""


def run_program(
    code: str, broker: FakeBroker | str, send_limit_ms: int = 30_000, fail_limit_ms: int = 20_000
) -> subprocess.CompletedProcess[str]:
    """Run `code` after the lines above. The process must end with 0.

    Args:
        send_limit_ms: how long producers may send at the end. Other programs have less than a second, and a busy machine may
            need more.
        fail_limit_ms: how long they may take after that to fail the rows that are left.
    """
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers
    limits = [str(send_limit_ms + fail_limit_ms), str(fail_limit_ms)]
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + code, servers, *limits], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
