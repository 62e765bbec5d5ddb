"""Reads options from Java's .properties files.

Law: this file puts no value of an option into an error or a log, because it may be a password.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from spark_kafka_sink.config.registry_config import is_registry_key
from spark_kafka_sink.tools.errors import UsageError

# All other producer options of Kafka contain a dot. No option of the sink contains one, except those of a schema registry.
DOTLESS_KAFKA_KEYS = {"acks", "retries"}
# sink_arguments.py and the jobs look these up. The sink accepts them in upper or lower case; here they get one spelling.
_LOOKED_UP_NAMES = (
    "kafka.bootstrap.servers", "topic", "deliveryGuarantee", "transactionalIdPrefix", "txnAppId", "txnVersion", "valueFormat",
    "keyFormat",
)  # fmt: skip
SPELLINGS = {name.lower(): name for name in _LOOKED_UP_NAMES}


def option_name(key: str) -> str:
    """The sink's name for a key of a .properties file, where Kafka's keys need no `kafka.`. Keys of a registry have none."""
    is_kafka_key = ("." in key or key in DOTLESS_KAFKA_KEYS) and not is_registry_key(key.lower())
    name = f"kafka.{key}" if is_kafka_key and not key.lower().startswith("kafka.") else key
    return SPELLINGS.get(name.lower(), name)


def read_properties(file: Path, argument: str = "--config") -> dict[str, str]:
    """The options in a .properties file. Raises UsageError, which names `argument`, if it cannot be read or parsed."""
    try:
        content = file.read_bytes()
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{argument} {file} is text in UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8).")
        return parse_properties(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{argument} {file} cannot be read ({error}).") from error
    except ValueError as error:
        raise UsageError(f"{argument} {file}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    """Parse the format of java.util.Properties. Raises ValueError for a \\u escape without four hexadecimal digits.

    `#` or `!` begins a comment. `=`, `:` or a blank ends a key. A backslash escapes; at the end of a line it joins the next line.
    """
    properties = {}
    for line in _logical_lines(text):
        key, value = _split_at_separator(line)
        properties[_unescape(key)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> list[str]:
    """The lines without comments and empty ones, each with those that continue it."""
    lines: list[str] = []
    is_continuation = False
    for natural_line in re.split(r"\r\n|\n|\r", text):
        line = natural_line.lstrip(" \t\f")
        if not is_continuation and (not line or line[0] in "#!"):
            continue
        backslash_count = len(line) - len(line.rstrip("\\"))
        is_continued = backslash_count % 2 == 1
        part = line[:-1] if is_continued else line
        if is_continuation:
            lines[-1] += part
        else:
            lines.append(part)
        is_continuation = is_continued
    return [line for line in lines if line]


def _split_at_separator(line: str) -> tuple[str, str]:
    match = re.match(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", line, re.DOTALL)
    assert match is not None, "the pattern matches every line"
    return match.group(1), match.group(2)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    """Replace escapes. Two \\u escapes of a surrogate pair become one character, which Java's Properties.store writes so."""
    characters = re.sub(r"\\(u.{0,4}|.)", _unescape_one, text, flags=re.DOTALL)
    return characters.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _unescape_one(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] != "u":
        return _ESCAPES.get(code, code)
    if not re.fullmatch(r"u[0-9A-Fa-f]{4}", code):
        raise ValueError("a \\u escape needs four hexadecimal digits.")  # without the text: it may be a secret
    return chr(int(code[1:], 16))
