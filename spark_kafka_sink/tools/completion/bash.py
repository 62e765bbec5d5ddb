"""The script for bash, of version 4 and newer. Bash 3.2 of macOS completes the same words, with a blank after `NAME=`.

Readline splits words at = and at : too. The script joins the parts, and returns only what follows the last of these characters.
"""

from __future__ import annotations

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

_SCRIPT = r"""# Completes pykafka-sink in bash. For this shell: source <(pykafka-sink completion bash). For all, in a file of
# ~/.local/share/bash-completion/completions that is called pykafka-sink, or with the line above in ~/.bashrc.

# The words that can follow the command $1: commands, flags, and the kind of a positional argument.
_pykafka_sink_command() {
    case $1 in
@COMMANDS@
    esac
}

# How many values the flag $1 takes, with its command before it, and of which kind.
_pykafka_sink_flag() {
    takes='' value=''
    case $1 in
@FLAGS@
    esac
}

_pykafka_sink_sink='@SINK@'
_pykafka_sink_producer='@PRODUCER@'
_pykafka_sink_names='@NAMES@'

# The values of the option $1.
_pykafka_sink_choices() {
    case $1 in
@CHOICES@
    esac
}

# The candidates for a value of the kind $1, of which $2 is typed.
_pykafka_sink_candidates() {
    case $1 in
        words:*) candidates=${1#words:} ;;
        file) compopt -o default 2>/dev/null ;;
        names) candidates=$_pykafka_sink_names ;;
        sink | producer)
            if [[ $2 == *=* ]]; then
                prefix+=${2%%=*}= candidates=$(_pykafka_sink_choices "${2%%=*}")
            else
                local names=_pykafka_sink_$1
                candidates=${!names}
                compopt -o nospace 2>/dev/null
            fi
            ;;
    esac
}

_pykafka_sink() {
    local IFS=$' \t\n'
    local words=() word glue='' i path='' commands flags positional many takes='' value='' candidates='' prefix='' breaks=''
    COMPREPLY=()
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ ${#words[@]} -gt 0 && ($glue || $word =~ ^[=:]+$) && ($word || ${COMP_LINE:COMP_POINT-1:1} != ' ') ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        glue=''
        if [[ $word =~ ^[=:]+$ ]]; then glue=yes; fi
    done
    local current=${words[${#words[@]} - 1]}

    _pykafka_sink_command ''
    for ((i = 0; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        if [[ $takes == one ]]; then
            takes=''
        elif [[ $word == -* ]]; then
            _pykafka_sink_flag "$path${path:+ }$word"
        elif [[ $takes != many ]]; then
            if [[ " $commands " == *" $word "* ]]; then
                path+=${path:+ }$word
                _pykafka_sink_command "$path"
            elif [[ ! $many ]]; then
                positional=''
            fi
        fi
    done

    if [[ $takes == one || ($takes && $current != -*) ]]; then
        _pykafka_sink_candidates "$value" "$current"
    elif [[ $current == --*=* ]]; then
        _pykafka_sink_flag "$path${path:+ }${current%%=*}"
        prefix=${current%%=*}=
        _pykafka_sink_candidates "$value" "${current#*=}"
    elif [[ $current == -* ]]; then
        candidates=$flags
    elif [[ $commands ]]; then
        candidates=$commands
    else
        _pykafka_sink_candidates "$positional" "$current"
    fi

    for word in $candidates; do
        if [[ $prefix$word == "$current"* ]]; then COMPREPLY+=("$prefix$word"); fi
    done
    if [[ $COMP_WORDBREAKS == *=* ]]; then breaks+='='; fi
    if [[ $COMP_WORDBREAKS == *:* ]]; then breaks+=':'; fi
    if [[ $breaks && $current == *[$breaks]* && ${#COMPREPLY[@]} -gt 0 ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[$breaks]}"}"}")
    fi
}

if type compopt >/dev/null 2>&1; then
    complete -F _pykafka_sink pykafka-sink
else
    complete -o default -F _pykafka_sink pykafka-sink
fi
"""
_KINDS = {Value.TEXT: "", Value.FILE: "file", Value.OPTION_NAME: "names"}
_KINDS |= {Value.SINK_OPTION: "sink", Value.PRODUCER_OPTION: "producer"}


def script(commands: Sequence[Command]) -> str:
    """The script, which completes these commands."""
    return fill(
        _SCRIPT,
        COMMANDS=_commands(commands),
        FLAGS=_flags(commands),
        SINK=" ".join(f"{each.name}=" for each in sink_option_names()),
        PRODUCER=" ".join(f"{each.name}=" for each in producer_option_names()),
        NAMES=" ".join(each.name for each in sink_option_names()),
        CHOICES=_choices([*sink_option_names(), *producer_option_names()]),
    )


def _commands(commands: Iterable[Command]) -> str:
    lines = []
    for each in commands:
        flags = " ".join(name for flag in each.flags for name in flag.names)
        positional, many = ("", "") if each.positional is None else (_kind(each.positional), each.positional.takes_many and "yes")
        assignments = f"commands='{' '.join(each.commands)}' flags='{flags}' positional='{positional}' many={many or ''}"
        lines.append(f"        '{' '.join(each.path)}') {assignments} ;;")
    return "\n".join(lines)


def _flags(commands: Iterable[Command]) -> str:
    """One line for all flags that take the same values."""
    names_by_value: dict[str, list[str]] = {}
    for command in commands:
        for flag in command.flags:
            if flag.value is not Value.NOTHING:
                assignments = f"takes={'many' if flag.takes_many else 'one'} value='{_kind(flag)}'"
                names_by_value.setdefault(assignments, []).extend(" ".join((*command.path, name)) for name in flag.names)
    return "\n".join(f"        {_pattern(names)}) {assignments} ;;" for assignments, names in names_by_value.items())


def _kind(argument: Argument) -> str:
    return f"words:{' '.join(argument.choices)}" if argument.value is Value.CHOICE else _KINDS[argument.value]


def _choices(options: Iterable[OptionName]) -> str:
    pairs = names_by_choices(options).items()
    return "\n".join(f"        {_pattern(names)}) echo '{' '.join(values)}' ;;" for values, names in pairs)


def _pattern(words: Iterable[str]) -> str:
    return " | ".join(f"'{word}'" for word in words)
