"""The script for fish: a `complete` for each flag and each command, with a condition where it applies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spark_kafka_sink.tools.completion.words import Argument, Command, Value, fill, producer_option_names, sink_option_names

_SCRIPT = r"""# Completes pykafka-sink in fish. For this shell: pykafka-sink completion fish | source. For all: write it to
# ~/.config/fish/completions/pykafka-sink.fish.

# Whether $argv is the command that stands on the command line: the words before the first that belongs to none.
function __pykafka_sink_at
    set -l command
    set -l words (commandline -opc)
    for word in $words[2..-1]
        string match -q -- '-*' $word; and continue
        contains -- "$command $word" @PATHS@; or break
        set command "$command $word"
    end
    test "$command" = "$argv"
end

# The names of options with =, or the values of the one that is typed. Lines of a name, its values and what it does.
function __pykafka_sink_pairs
    set -l typed (string replace -r -- '^--[^=]*=' '' (commandline -ct))
    set -l name (string replace -r -- '=.*' '' $typed)
    while read -l -d \t option values summary
        if not string match -q -- '*=*' $typed
            printf '%s=\t%s\n' $option $summary
        else if test "$option" = "$name"
            for value in (string split -n ' ' -- $values)
                echo $name=$value
            end
        end
    end
end

function __pykafka_sink_sink
    printf '%s\t%s\t%s\n' @SINK@
end

function __pykafka_sink_producer
    printf '%s\t%s\t%s\n' @PRODUCER@
end

function __pykafka_sink_names
    printf '%s\t%s\n' @NAMES@
end

complete -c pykafka-sink -f
@COMPLETE@
"""
_CANDIDATES = {
    Value.TEXT: "-x",
    Value.FILE: "-r -F",
    Value.SINK_OPTION: "-x -a '(__pykafka_sink_sink | __pykafka_sink_pairs)'",
    Value.PRODUCER_OPTION: "-x -a '(__pykafka_sink_producer | __pykafka_sink_pairs)'",
    Value.OPTION_NAME: "-x -a '(__pykafka_sink_names)'",
}


def script(commands: Sequence[Command]) -> str:
    """The script, which completes these commands."""
    return fill(
        _SCRIPT,
        PATHS=" ".join(_quote(_words(each.path)) for each in commands if each.path),
        SINK=_arguments((each.name, " ".join(each.choices), each.summary) for each in sink_option_names()),
        PRODUCER=_arguments((each.name, " ".join(each.choices), each.summary) for each in producer_option_names()),
        NAMES=_arguments((each.name, each.summary) for each in sink_option_names()),
        COMPLETE="\n".join(line for each in commands for line in _lines(each)),
    )


def _words(path: Iterable[str]) -> str:
    """The words in the form that __pykafka_sink_at compares: a blank before each."""
    return "".join(f" {word}" for word in path)


def _arguments(rows: Iterable[Iterable[str]]) -> str:
    return " ".join(f"\\\n        {' '.join(map(_quote, row))}" for row in rows)


def _lines(command: Command) -> Iterator[str]:
    here = f"complete -c pykafka-sink -n {_quote(f'__pykafka_sink_at {_quote(_words(command.path))}')}"
    for name, summary in command.commands.items():
        yield f"{here} -a {name} -d {_quote(summary)}"
    for flag in command.flags:
        yield f"{here} {' '.join(map(_name, flag.names))} {_candidates(flag)}-d {_quote(flag.help)}"
    if command.positional is not None:
        yield f"{here} {_candidates(command.positional).replace('-r ', '').replace('-x ', '')}"


def _name(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _candidates(argument: Argument) -> str:
    if argument.value is Value.NOTHING:
        return ""
    if argument.value is Value.CHOICE:
        return f"-x -a {_quote(' '.join(argument.choices))} "
    return f"{_CANDIDATES[argument.value]} "


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
