"""What can be typed after `pykafka-sink`: the tools' parsers, read into plain data, and the options that take a value.

Law: a parser with commands has no flag with a value. So a script finds the command as the first word that is no flag.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_kafka_sink.config.option import PASSWORD
from spark_kafka_sink.option_tables import TableRow, option_table


class Value(Enum):
    """What a flag or a positional argument takes."""

    NOTHING = "nothing"
    TEXT = "text"  # anything
    FILE = "file"
    CHOICE = "choice"
    SINK_OPTION = "sink option"  # NAME=VALUE, where `kafka.` begins options of the producer
    PRODUCER_OPTION = "producer option"  # NAME=VALUE
    OPTION_NAME = "option name"


# What an argument takes, by argparse's `dest`.
VALUE_BY_DEST = {"option": Value.SINK_OPTION, "command_property": Value.PRODUCER_OPTION, "words": Value.OPTION_NAME}
MANY_NARGS = ("+", "*")  # argparse's `nargs` for several words


@dataclass(frozen=True)
class Argument:
    """A flag, or a positional argument, which has no names."""

    names: tuple[str, ...]
    help: str
    value: Value
    metavar: str
    choices: tuple[str, ...]
    takes_many: bool
    can_repeat: bool


@dataclass(frozen=True)
class Command:
    """`pykafka-sink`, one of its tools, or a command of a tool. `path` is the words after `pykafka-sink`. `commands` are the
    words that may follow, with what they do."""

    path: tuple[str, ...]
    arguments: tuple[Argument, ...]
    commands: dict[str, str]

    @property
    def flags(self) -> list[Argument]:
        return [each for each in self.arguments if each.names]

    @property
    def positional(self) -> Argument | None:
        """The positional argument, if there is one: no command has two."""
        return next((each for each in self.arguments if not each.names), None)


# PARSERS


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """The parser's command, and its subcommands."""
    actions = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    subparser_actions = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    summaries = {choice.dest: choice.help or "" for each in subparser_actions for choice in each._choices_actions}
    arguments = tuple(_argument(each) for each in actions if each not in subparser_actions)
    yield Command(path, arguments, summaries)
    for each in subparser_actions:
        for name, subparser in each.choices.items():
            yield from commands_of(subparser, (*path, name))


def _argument(action: argparse.Action) -> Argument:
    return Argument(
        names=tuple(action.option_strings),
        help=_first_sentence((action.help or "") % {**vars(action), "prog": ""}),
        value=_value(action),
        metavar=action.metavar if isinstance(action.metavar, str) else action.dest.upper(),
        choices=tuple(map(str, action.choices or ())),
        takes_many=action.nargs in MANY_NARGS,
        can_repeat=action.nargs in MANY_NARGS or isinstance(action, argparse._AppendAction),
    )


def _value(action: argparse.Action) -> Value:
    if action.nargs == 0:
        return Value.NOTHING
    if action.choices is not None:
        return Value.CHOICE
    return Value.FILE if action.type is Path else VALUE_BY_DEST.get(action.dest, Value.TEXT)


def _first_sentence(text: str) -> str:
    """The text up to a semicolon, a bracket or the end of the sentence: a shell shows it in one line."""
    return re.split(r"; | \(|\. |\.$", " ".join(text.split()), maxsplit=1)[0]


def fill(template: str, **parts: str) -> str:
    """The template with the parts in place of their names, which stand in it as @NAME@."""
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


# OPTIONS


@dataclass(frozen=True)
class OptionName:
    """An option that can be typed, its description and its allowed values."""

    name: str
    summary: str
    choices: tuple[str, ...]


def sink_option_names() -> list[OptionName]:
    """The options that --option takes, without passwords: the sink's and, with `kafka.`, the producer's."""
    return [_option_name(row, row.key) for row in _rows("most used", "sink", "format", "producer", "security", "registry")]


def producer_option_names() -> list[OptionName]:
    """The producer's options by Kafka's names, without passwords."""
    rows = _rows("most used", "producer", "security")
    return [_option_name(row, row.key.removeprefix("kafka.")) for row in rows if row.key.startswith("kafka.")]


def _rows(*sections: str) -> list[TableRow]:
    """Leave passwords out: other users of the machine can read a command line."""
    rows = (row for row in option_table() if row.section in sections and row.type != PASSWORD.name)
    return sorted(rows, key=lambda row: row.key)


def _option_name(row: TableRow, name: str) -> OptionName:
    return OptionName(name, _first_sentence(row.doc), row.choices)


def names_by_choices(options: Iterable[OptionName]) -> dict[tuple[str, ...], list[str]]:
    """Choices -> the names of all options that have these choices."""
    names: dict[tuple[str, ...], list[str]] = {}
    for each in options:
        if each.choices:
            names.setdefault(each.choices, []).append(each.name)
    return names
