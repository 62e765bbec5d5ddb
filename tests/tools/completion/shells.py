"""Shells that complete a command line: bash and zsh in a terminal of their own, where keys are typed; fish answers a question."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

LIMIT_S = 60
PROMPT = b"READY>"
INSERT_ALL, SHOW = b"\x19", b"\x18"  # Ctrl-Y and Ctrl-X, bound below


def bash(script: Path, line: str, directory: Path) -> list[str]:
    """Ctrl-Y inserts all completions, and Ctrl-X writes the line to a file."""
    setup = f"""
        PS1='{PROMPT.decode()} '
        source {shlex.quote(str(script))}
        bind 'set completion-ignore-case off'
        bind '"\\C-y": insert-completions'
        bind -x '"\\C-x": printf %s "$READLINE_LINE" > line; exit'
    """
    (directory / "rc").write_text(setup)
    shown = _typed(["bash", "--noprofile", "--rcfile", "rc", "-i"], INSERT_ALL, line, directory)
    return _added(line, shown)


def zsh(script: Path, line: str, directory: Path) -> list[str]:
    """A `compadd` of our own writes the matches to a file; Tab inserts what they have in common."""
    setup = f"""
        PS1='{PROMPT.decode()} '
        autoload -Uz compinit; compinit -D
        source {shlex.quote(str(script))}
        compadd() {{
            if [[ ${{argv[(r)-[ADO]]}} ]]; then
                builtin compadd "$@"
                return
            fi
            local -a matches
            builtin compadd -A matches "$@"
            print -rl -- "$IPREFIX"$^matches >> matches
            builtin compadd "$@"
        }}
        show() {{ print -rn -- "$BUFFER" > line; exit }}
        zle -N show; bindkey '^X' show; bindkey '^Y' complete-word
    """
    (directory / ".zshrc").write_text(setup)
    (directory / "matches").write_text("")
    shown = _typed(["zsh", "-d", "-i"], INSERT_ALL, line, directory, {"ZDOTDIR": str(directory)})
    matches = (directory / "matches").read_text().split("\n")
    return _added(line, shown) if len(matches) <= 2 else sorted({each for each in matches if each})


def fish(script: Path, line: str, directory: Path) -> list[str]:
    code = f"source {shlex.quote(str(script))}; complete -C {shlex.quote(line)}"
    environment = {**os.environ, "HOME": str(directory)}
    done = subprocess.run(
        ["fish", "-c", code], cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return [each.partition("\t")[0] for each in done.stdout.splitlines()]


SHELLS: dict[str, Callable[[Path, str, Path], list[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _added(line: str, shown: str) -> list[str]:
    """The words that stand where the last word of the line was."""
    begin = line[: line.rindex(" ") + 1]
    assert shown.startswith(begin), shown
    return shlex.split(shown[len(begin) :])


def _typed(command: list[str], keys: bytes, line: str, directory: Path, more: Mapping[str, str] | None = None) -> str:
    """The command line after these keys. The shell ends by itself, or is killed after LIMIT_S seconds."""
    (directory / "line").unlink(missing_ok=True)
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "HOME": str(directory), "TERM": "dumb", "INPUTRC": os.devnull, **(more or {})}
    shell = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        _read(terminal, PROMPT)
        os.write(terminal, line.encode() + keys + SHOW)
        _read(terminal, None)
        shell.wait(LIMIT_S)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
    return (directory / "line").read_text()


def _read(terminal: int, until: bytes | None) -> bytes:
    """What the shell prints, up to and with `until`, or until it has ended."""
    read = b""
    while until is None or until not in read:
        ready, _, _ = select.select([terminal], [], [], LIMIT_S)
        assert ready, f"the shell printed nothing for {LIMIT_S} s: {read!r}"
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: nobody has the other side any more
            piece = b""
        if not piece:
            assert until is None, f"the shell has ended: {read!r}"
            break
        read += piece
    return read
