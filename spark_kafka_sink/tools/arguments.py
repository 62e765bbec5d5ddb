"""Arguments that several tools take: their types, and the brokers' addresses."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from spark_kafka_sink.tools.errors import UsageError


def pair(text: str) -> tuple[str, str]:
    """name=value"""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("not NAME=VALUE")  # without the text: it may be a secret
    return name.strip(), value


def not_negative(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive(text: str) -> int:
    number = not_negative(text)
    if not number:
        raise argparse.ArgumentTypeError("0 is not at least 1")
    return number


def with_bootstrap_servers(options: Mapping[str, str], argument: str | None) -> dict[str, str]:
    """The argument --bootstrap-servers overrides the option. Raises UsageError when there is neither."""
    found = {**options, "bootstrap.servers": argument or options.get("bootstrap.servers", "")}
    if not found["bootstrap.servers"].strip():
        raise UsageError("--bootstrap-servers is missing: pass it, or set bootstrap.servers in a --command-config file.")
    return found
