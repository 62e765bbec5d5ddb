"""The script for zsh: a function for each command, which calls `_arguments`.

If a flag takes several values, only the first is completed: zsh would otherwise complete no flags after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spark_kafka_sink.tools.completion.words import (
    Argument,
    Command,
    OptionName,
    Value,
    fill,
    names_by_choices,
    producer_option_names,
    sink_option_names,
)

_SCRIPT = r"""#compdef pykafka-sink
# Completes pykafka-sink in zsh. For this shell, after compinit: source <(pykafka-sink completion zsh). For all: write it to a
# file _pykafka-sink in a directory of $fpath.

@FUNCTIONS@
_pykafka-sink-sink-option() {
    local -a known=(
@SINK@
    )
    _pykafka-sink-pair
}

_pykafka-sink-producer-option() {
    local -a known=(
@PRODUCER@
    )
    _pykafka-sink-pair
}

_pykafka-sink-option-name() {
    local -a known=(
@SINK@
    )
    _describe option known
}

# The name of an option and =, and then one of its values.
_pykafka-sink-pair() {
    if compset -P 1 '*='; then
        local -a values=($(_pykafka-sink-choices ${${IPREFIX%=}##*=}))
        compadd -a values
    else
        _describe option known -S =
    fi
}

# The values of the option $1.
_pykafka-sink-choices() {
    case $1 in
@CHOICES@
    esac
}

if [[ $funcstack[1] = _pykafka-sink ]]; then
    _pykafka-sink "$@"
else
    compdef _pykafka-sink pykafka-sink
fi
"""
_FUNCTION = r"""@NAME@() {
    _arguments -s -S \
@SPECS@
}
"""
_FUNCTION_WITH_COMMANDS = r"""@NAME@() {
    local curcontext=$curcontext state line
    typeset -A opt_args
    _arguments -C \
@SPECS@ \
        '1: :->command' \
        '*:: :->words'
    case $state in
        command)
            local -a commands=(
@SUMMARIES@
            )
            _describe command commands
            ;;
        words)
            curcontext=${curcontext%:*:*}:@NAME@-$line[1]:
            case $line[1] in
@CALLS@
            esac
            ;;
    esac
}
"""
_ACTIONS = {
    Value.TEXT: " ",
    Value.FILE: "_files",
    Value.SINK_OPTION: "_pykafka-sink-sink-option",
    Value.PRODUCER_OPTION: "_pykafka-sink-producer-option",
    Value.OPTION_NAME: "_pykafka-sink-option-name",
}


def script(commands: Sequence[Command]) -> str:
    """The script, which completes these commands."""
    return fill(
        _SCRIPT,
        FUNCTIONS="\n".join(map(_function, commands)),
        SINK=_descriptions(sink_option_names()),
        PRODUCER=_descriptions(producer_option_names()),
        CHOICES=_choices([*sink_option_names(), *producer_option_names()]),
    )


# COMMANDS


def _function(command: Command) -> str:
    specs = " \\\n".join(f"        {each}" for each in _specs(command))
    if not command.commands:
        return fill(_FUNCTION, NAME=_name(command.path), SPECS=specs)
    summaries = "\n".join(f"                {_quote(f'{word}:{summary}')}" for word, summary in command.commands.items())
    calls = "\n".join(f"                {word}) {_name((*command.path, word))} ;;" for word in command.commands)
    return fill(_FUNCTION_WITH_COMMANDS, NAME=_name(command.path), SPECS=specs, SUMMARIES=summaries, CALLS=calls)


def _name(path: Iterable[str]) -> str:
    return "-".join(("_pykafka-sink", *path))


def _specs(command: Command) -> list[str]:
    specs = [_quote(spec) for flag in command.flags for spec in _flag_specs(flag)]
    if command.positional is not None:
        position = "*" if command.positional.takes_many else "1"
        specs.append(_quote(f"{position}{_value(command.positional)}"))
    return specs


def _flag_specs(flag: Argument) -> list[str]:
    """A spec for each of its names, which exclude each other unless the flag may be repeated."""
    value = "" if flag.value is Value.NOTHING else _value(flag)
    return [f"{_exclusion(flag)}{name}{_joint(name, value)}[{_escape(flag.help)}]{value}" for name in flag.names]


def _exclusion(flag: Argument) -> str:
    return "*" if flag.can_repeat else f"({' '.join(flag.names)})"


def _joint(name: str, value: str) -> str:
    """How a value follows: after a blank or =, or for a short flag also at once."""
    return "" if not value else "=" if name.startswith("--") else "+"


def _value(argument: Argument) -> str:
    action = f"({' '.join(argument.choices)})" if argument.value is Value.CHOICE else _ACTIONS[argument.value]
    return f":{_escape(argument.metavar)}:{action}"


# OPTIONS


def _descriptions(options: Iterable[OptionName]) -> str:
    return "\n".join(f"        {_quote(f'{each.name}:{each.summary}')}" for each in options)


def _choices(options: Iterable[OptionName]) -> str:
    pairs = names_by_choices(options).items()
    return "\n".join(f"        {'|'.join(names)}) print {' '.join(map(_quote, values))} ;;" for values, names in pairs)


# TEXT


def _escape(text: str) -> str:
    """Escape the characters that have a meaning in a spec."""
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
