"""Systems that the tests do not run on: what is missing there is taken away here, and the rest works or says so.

Types are checked for these systems by tests/run: mypy --platform darwin, mypy --platform win32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.fakes.fake_broker import FakeBroker

ROOT = Path(__file__).parent.parent
LIMIT_S = 240

WINDOWS = """
import http.client, logging, os, selectors, signal, socket, socketserver, ssl, subprocess, sys, tempfile, wsgiref.simple_server
import jinja2, matplotlib.pyplot, numpy, prometheus_client, prometheus_client.parser, pyarrow, pyarrow.compute

sys.platform = "win32"
sys.modules["fcntl"] = None
del os.register_at_fork, os.memfd_create, os.getuid, os.pread, os.O_NONBLOCK, signal.SIGHUP
socket.socket.sendmsg = None
"""


def without_what_windows_lacks(program: str, *arguments: str) -> str:
    """What the program prints."""
    command = [sys.executable, "-c", WINDOWS + textwrap.dedent(program), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_without_what_windows_lacks_a_producer_writes() -> None:
    with FakeBroker() as broker:
        broker.add_topic("orders", 1)
        printed = without_what_windows_lacks(
            """
            from spark_kafka_sink import KafkaProducer

            with KafkaProducer({"bootstrap.servers": sys.argv[1]}) as producer:
                delivery = producer.send_columns("orders", value=pyarrow.array([b"%d" % number for number in range(300_000)]))
                print(delivery.result(60_000).acknowledged)
            """,
            broker.bootstrap_servers,
        )
        assert printed.split() == ["300000"]
        assert broker.values("orders") == [b"%d" % number for number in range(300_000)]


def test_without_what_windows_lacks_all_modules_import_and_prometheus_says_no(tmp_path: Path) -> None:
    printed = without_what_windows_lacks(
        """
        import importlib, pkgutil
        import spark_kafka_sink

        for module in pkgutil.walk_packages(spark_kafka_sink.__path__, "spark_kafka_sink."):
            if not module.name.endswith(("_autoregister", "__main__")):
                importlib.import_module(module.name)

        from pathlib import Path
        from spark_kafka_sink.sink.prometheus import _make_private_directory
        from spark_kafka_sink.sink.prometheus.text_file import TextFile

        for call in (_make_private_directory, TextFile(Path(sys.argv[1], "totals.prom"))._hold_lock().__enter__):
            try:
                call()
            except spark_kafka_sink.errors.ConfigError as error:
                print(error)

        from spark_kafka_sink.sink.commit_report import _append

        for line in (b"cut off", b"first\\n", b"second\\n"):
            _append(str(Path(sys.argv[1], "report.jsonl")), line)
        """,
        str(tmp_path),
    )
    assert (tmp_path / "report.jsonl").read_text() == "cut off\nfirst\nsecond\n"
    assert printed.count("the driver runs on Windows, where this sink does not lock files") == 2


def test_a_broker_on_this_machine_says_that_windows_cannot_run_it() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import jobs.local_kafka"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stderr.splitlines()[-1] == "ImportError: A broker on this machine needs Linux or macOS; on Windows run it in WSL."
