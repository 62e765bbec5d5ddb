"""Print a script that completes `pykafka-sink` in a shell: tools, flags, files, and options with their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from spark_kafka_sink.tools.arguments import new_parser
from spark_kafka_sink.tools.catalog import TOOLS
from spark_kafka_sink.tools.catalog import build_parser as build_main_parser
from spark_kafka_sink.tools.completion import bash, fish, zsh
from spark_kafka_sink.tools.completion.words import Command, commands_of
from spark_kafka_sink.tools.exit_codes import DONE

PROG = "pykafka-sink completion"
SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}
EXAMPLES = """
    source <(PROG bash)    in ~/.bashrc
    source <(PROG zsh)    in ~/.zshrc, after compinit
    PROG fish > ~/.config/fish/completions/pykafka-sink.fish
"""


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "Print a script that completes pykafka-sink in a shell: tools, flags, files, and options with their values."
    parser = new_parser(prog, description, EXAMPLES, success="done", failure="failed")
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell whose language the script is in")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Exit code: 0 done, 2 usage. Imports every tool, for its parser."""
    arguments = build_parser(prog).parse_args(argv)
    print(SCRIPTS[arguments.shell](list(all_commands())), end="")
    return DONE


def all_commands() -> Iterator[Command]:
    """`pykafka-sink` itself, then each tool with its commands."""
    yield next(commands_of(build_main_parser()))
    for name, tool in TOOLS.items():
        yield from commands_of(tool.load().build_parser(), (name,))
