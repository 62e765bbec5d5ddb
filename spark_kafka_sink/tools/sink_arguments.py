"""The arguments of the Spark jobs and of `check` that describe a write: brokers, topic, exactly-once, formats, options.

Law: this file puts no value of an option into an error or a log, because it may be a password. Passwords belong in a --config
file: every user of the machine can see a command line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_kafka_sink.config.format_options import BINARY
from spark_kafka_sink.config.option import warn_once
from spark_kafka_sink.config.registry_config import is_registry_key
from spark_kafka_sink.tools.arguments import parse_pair
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.properties import SPELLINGS, option_name, read_properties


def add_sink_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `sink_options` reads, as a group of --help."""
    add = parser.add_argument_group("Kafka").add_argument
    add("--topic", help="topic to write to (or `topic` in a --config file)")
    add("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers (or `bootstrap.servers` in a --config file)")
    once_help = "write each row exactly once for readers with isolation.level=read_committed; NAME is of this job or query alone"
    add("--exactly-once", metavar="NAME", help=f"{once_help} (transactionalIdPrefix)")
    formats_help = "binary (default), avro: any SQL type, with a schema of the registry, or framed"
    add("--value-format", metavar="NAME", help=f"{formats_help} (valueFormat)")
    add("--key-format", metavar="NAME", help=f"{formats_help} (keyFormat)")
    option_help = "option of the sink, or kafka.<name> for the producer; overrides --config; repeatable"
    add("--option", type=parse_pair, action="append", default=[], metavar="NAME=VALUE", help=option_help)
    config_help = "file with one NAME=VALUE per line, options of the sink and of the producer; put passwords here; repeatable, "
    config_help += "later files override earlier ones; samples are in conf/"
    add("--config", type=Path, action="append", default=[], metavar="FILE", help=config_help)
    parser.set_defaults(txn_version=None)  # only batch_to_kafka has this argument


def sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The sink's options. Named arguments and --option override --config files; later files override earlier ones.

    Raises UsageError if an argument and --option give an option different values, or if brokers or topic are missing.
    """
    options: dict[str, str] = {}
    for file in arguments.config:
        options |= {option_name(key): value for key, value in read_properties(file).items()}
    names_in_files = set(options)
    explicit_options = {SPELLINGS.get(name.lower(), name): value for name, value in arguments.option}
    for name, (argument, value) in _options_of_arguments(arguments).items():
        if explicit_options.setdefault(name, value) != value:
            raise UsageError(f"{argument} sets {name}, and --option sets it to another value: pass one of them.")
    options |= explicit_options
    _drop_unused_registry(options, names_in_files - explicit_options.keys())
    if arguments.txn_version is not None and "transactionalIdPrefix" in options:
        options.setdefault("txnAppId", options["transactionalIdPrefix"])
    for name, argument in (("kafka.bootstrap.servers", "--bootstrap-servers"), ("topic", "--topic")):
        if not options.get(name, "").strip():
            raise UsageError(f"{argument} is missing: pass it, or set it in a --config file.")
    return options


def _drop_unused_registry(options: dict[str, str], names: set[str]) -> None:
    """Remove those of `names` that are options of a schema registry, with a warning, if no format asks one. A file with the
    options of all clients has them for readers."""
    if any(options.get(name, "").strip().lower() not in ("", BINARY) for name in ("valueFormat", "keyFormat")):
        return
    for name in sorted(filter(lambda name: is_registry_key(name.lower()), names)):
        del options[name]
        warn_once("Option '%s' has no effect: neither valueFormat nor keyFormat asks the schema registry", name)


def _options_of_arguments(arguments: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Option -> the named argument that sets the option, and its value. Arguments that are not set are left out."""
    prefix = arguments.exactly_once
    arguments_by_option = {
        "kafka.bootstrap.servers": ("--bootstrap-servers", arguments.bootstrap_servers or None),
        "topic": ("--topic", arguments.topic or None),
        "deliveryGuarantee": ("--exactly-once", None if prefix is None else "exactly-once"),
        "transactionalIdPrefix": ("--exactly-once", prefix),
        "txnVersion": ("--txn-version", arguments.txn_version),
        "valueFormat": ("--value-format", arguments.value_format),
        "keyFormat": ("--key-format", arguments.key_format),
    }
    return {name: (argument, value) for name, (argument, value) in arguments_by_option.items() if value is not None}
