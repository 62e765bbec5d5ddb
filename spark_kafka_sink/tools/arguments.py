"""What the parsers of all tools share: examples and exit codes below --help, types of arguments, the brokers' addresses."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping

from spark_kafka_sink.tools.errors import UsageError


def new_parser(prog: str, description: str, examples: str, *, success: str, failure: str) -> argparse.ArgumentParser:
    """A parser whose --help ends with examples, and with what the exit codes mean.

    Args:
        prog: what people type, like `pykafka-sink report`.
        description: sentences that say what the tool does.
        examples: one a line; `PROG` stands for `prog`.
        success: what exit code 0 means.
        failure: what exit code 1 means.
    """
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=help_epilog(prog, examples, success=success, failure=failure),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def help_epilog(prog: str, examples: str, *, success: str, failure: str) -> str:
    """What new_parser shows below the arguments; the parser needs RawDescriptionHelpFormatter."""
    example_lines = textwrap.indent(textwrap.dedent(examples).strip().replace("PROG", prog), "  ")
    return f"examples:\n{example_lines}\n\nexit codes: 0 {success}; 1 {failure}; 2 wrong usage or options; 130 Ctrl-C"


def tool_name(prog: str) -> str:
    """The word that begins a tool's lines on stderr: `report` of `pykafka-sink report`, and of `python -m jobs.report`."""
    return prog.rpartition(" ")[2].rpartition(".")[2]


def parse_pair(text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Split NAME=VALUE at the first `=`. Raises ArgumentTypeError, which shows `form` instead of the text."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise argparse.ArgumentTypeError(f"not {form}")  # without the text: it may be a secret
    return name.strip(), value


def parse_non_negative_int(text: str) -> int:
    """Read a number of at least 0. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def parse_positive_int(text: str) -> int:
    """Read a whole number of at least 1. Raises ArgumentTypeError."""
    number = parse_non_negative_int(text)
    if not number:
        raise argparse.ArgumentTypeError("0 is not at least 1")
    return number


def with_bootstrap_servers(options: Mapping[str, str], argument: str | None) -> dict[str, str]:
    """The options; --bootstrap-servers overrides bootstrap.servers. Raises UsageError if both are missing."""
    all_options = {**options, "bootstrap.servers": argument or options.get("bootstrap.servers", "")}
    if not all_options["bootstrap.servers"].strip():
        raise UsageError("--bootstrap-servers is missing: pass it, or set bootstrap.servers in a --command-config file.")
    return all_options
