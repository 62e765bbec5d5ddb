"""The exit codes of all tools, and how all of them end: with an error, at Ctrl-C, and when nobody reads their output any more."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

DONE = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells show it
UNREAD = 141  # 128 + SIGPIPE: the program that read the output has ended

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)  # errors of the disk that the output is redirected to


def run_tool(name: str, run: Callable[[], int]) -> int:
    """Run a tool and return its exit code. Errors for its user, Ctrl-C, a closed pipe and a full disk print no traceback.

    Args:
        name: begins the line that says what has ended the tool.
        run: does the work, and returns its exit code. SystemExit, which argparse raises, and defects pass through.
    """
    _escape_what_cannot_be_encoded()
    try:
        try:
            return _run_and_flush(run)
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr, flush=True)
            return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return UNREAD
    except OSError as error:
        if error.filename is not None or error.errno not in DISK_FULL_ERRNOS:
            raise
        _discard_output()
        print(f"{name}: error: the output cannot be written ({error.strerror}).", file=sys.stderr)
        return FAILED
    except Exception as error:
        code = _exit_code_of(error)
        if code is None:
            raise
        print(f"{name}: error: {error}", file=sys.stderr)
        return code


def _exit_code_of(error: Exception) -> int | None:
    """The exit code; None for an error whose text is not for the user. Imports late, so that tools start fast."""
    from spark_kafka_sink.errors import ConfigError, KafkaError
    from spark_kafka_sink.tools.errors import ToolError, UsageError

    if isinstance(error, (UsageError, ConfigError)):
        return USAGE
    return FAILED if isinstance(error, (ToolError, KafkaError)) else None


def _escape_what_cannot_be_encoded() -> None:
    """Where the output is not UTF-8, `…` is written as \\u2026, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run_and_flush(run: Callable[[], int]) -> int:
    """Run, then flush the output. If Python flushed it at its own end, no code could catch the error."""
    try:
        return run()
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _discard_output() -> None:
    """Discard the output that cannot be written, because Python flushes both streams once more when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
