"""The syntax of sasl.jaas.config, read as Java reads it, so that the options of a Java client work unchanged.

sasl.py checks what the entry must contain; network/sasl reads the entry to log in. Nothing here opens a file or a connection.
Law: a JAAS text holds a password. No error text quotes any part of it, and `parse_jaas` returns a problem instead of raising an
error, because a traceback with locals would show the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class JaasEntry:
    """One login module and its options. Its repr shows no value."""

    __slots__ = ("_options", "module")

    def __init__(self, module: str, options: dict[str, str]) -> None:
        self.module = module
        self._options = options

    @property
    def simple_name(self) -> str:
        return self.module.rpartition(".")[2]

    def get(self, name: str) -> str | None:
        return self._options.get(name)

    def is_true(self, name: str) -> bool:
        return (self._options.get(name) or "").lower() == "true"

    def names(self) -> list[str]:
        return list(self._options)

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """The options whose names begin with `prefix`, by the rest of their names."""
        return {name[len(prefix) :]: value for name, value in self._options.items() if name.startswith(prefix)}

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, {', '.join(self._options)})"


class JaasProblem(NamedTuple):
    """Why a sasl.jaas.config cannot be read."""

    text: str


NO_JAAS_ENTRY = JaasEntry("", {})  # stands for a sasl.jaas.config that is not set

_FLAGS = ("required", "requisite", "sufficient", "optional")
# Reads as java.io.StreamTokenizer does with the settings of Kafka's JaasConfig. `/` outside of quotes begins a comment. A quoted
# text ends at the end of its line. A token that begins with a digit is a number, which Kafka accepts nowhere. A word consists of
# letters (all non-ASCII characters count as letters), $ and _, and after the first character also of digits, dots and dashes.
_TOKEN = re.compile(
    r"""[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*
    | (?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P<end>(?P=quote)?)
    | (?P<number>[0-9.-][0-9.-]*)
    | (?P<word>[^\x00-\x23%-@\[-^`{-\x9f][^\x00-\x23%-,/:-@\[-^`{-\x9f]*)
    | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<char>.))", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_Token = tuple[str, str]  # (word, number or sign; its text)


def parse_jaas(text: str) -> JaasEntry | JaasProblem:
    """The one entry of a sasl.jaas.config: `module flag name="value" … ;`. Never raises; a problem quotes nothing of `text`."""
    entries: list[JaasEntry] = []
    tokens = list(_tokens(text))
    while tokens:
        stop = next((index for index, token in enumerate(tokens) if token == ("sign", ";")), None)
        if entries:
            return JaasProblem(
                "text follows the semicolon that ends the login module: there can be one module only, and a value that holds a"
                ' semicolon needs quotes, as in password="…"'
            )
        if stop is None and text.rstrip().endswith(";"):
            return JaasProblem(
                "the semicolon at its end stands behind quotes that do not end, or behind a /, which begins a comment: a value"
                ' that holds a / needs quotes, as in password="…"'
            )
        if stop is None:
            return JaasProblem("it does not end with a semicolon outside of quotes")
        entry = _parse_entry(tokens[:stop])
        if isinstance(entry, JaasProblem):
            return entry
        entries.append(entry)
        del tokens[: stop + 1]
    return entries[0] if entries else JaasProblem("it names no login module")


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["quote"]:
            yield "word", _ESCAPE.sub(_unescape, match["text"])
        for kind in ("number", "word", "sign"):
            if match[kind]:
                yield kind, match[kind]


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match["octal"], 8)) if match["octal"] else _CONTROL.get(match["char"], match["char"])


def _parse_entry(tokens: list[_Token]) -> JaasEntry | JaasProblem:
    if not tokens or tokens[0][0] != "word":
        return JaasProblem("it does not begin with the name of a login module")
    if len(tokens) < 2 or tokens[1][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        return JaasProblem(f"the login module is not followed by one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    for start in range(2, len(tokens), 3):
        kinds = [kind for kind, _ in tokens[start : start + 3]]
        if kinds != ["word", "sign", "word"] or tokens[start + 1][1] != "=":
            number = len(options) + 1
            return JaasProblem(f'option {number} is not of the form name="value" (values with other than letters need quotes)')
        options[tokens[start][1]] = tokens[start + 2][1]
    return JaasEntry(tokens[0][1], options)


# The options of login modules that are paths of files on the machine where the producer runs.
_FILE_OPTIONS = {
    "Krb5LoginModule": ("keyTab", "ticketCache"),
    "OAuthBearerLoginModule": ("ssl.truststore.location", "ssl.keystore.location"),
}


def files_named_in(text: str) -> dict[str, str]:
    """The files that a sasl.jaas.config names, by option. Empty if it cannot be parsed; sasl.problems reports that."""
    entry = parse_jaas(text)
    if isinstance(entry, JaasProblem):
        return {}
    files = {name: kerberos_file(entry.get(name)) for name in _FILE_OPTIONS.get(entry.simple_name, ())}
    return {name: file for name, file in files.items() if file}


def with_option(text: str, name: str, value: str) -> str:
    """The sasl.jaas.config with one option set, and with the flag `required`; unchanged if it cannot be parsed. Never raises."""
    entry = parse_jaas(text)
    if isinstance(entry, JaasProblem):
        return text
    options = entry.with_prefix("") | {name: value}
    return f"{_quote(entry.module)} required {' '.join(f'{_quote(key)}={_quote(each)}' for key, each in options.items())};"


def _quote(value: str) -> str:
    return '"' + re.sub(r'["\\\r\n]', lambda match: {"\r": r"\r", "\n": r"\n"}.get(match[0], "\\" + match[0]), value) + '"'


def kerberos_file(name: str | None) -> str | None:
    """The path in a Kerberos name, which may begin with a type such as FILE:. None if it names no file (KEYRING:…)."""
    kind, colon, path = (name or "").partition(":")
    if not colon or not kind.isalpha() or len(kind) == 1:  # one letter is a drive of Windows
        return name
    return path if kind.upper() == "FILE" else None
