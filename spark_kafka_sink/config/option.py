"""What an option is: its key, its type, its default, the allowed values and its documentation.

An option is a field of a dataclass: `linger_ms: int = option("linger.ms", LONG, default=5, at_least=0, doc="…")`. `options_of`
returns the Options of such a class. Reading values, error texts and the printed tables (option_tables.py) all use the Options.
This file knows no option by name. The options are in the other files of config/, and in legacy/config.py.
Laws: the problems of a configuration are collected and reported together. No repr, log line or error shows a value that is a
password or looks like a secret.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from spark_kafka_sink.config.secret import HIDDEN, Secret, looks_like_a_secret
from spark_kafka_sink.errors import printable

logger = logging.getLogger(__name__)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MAX_STRING_BYTES = 2**15 - 1  # of a string in Kafka's protocol, which starts with its length as an int16


class InvalidValueError(ValueError):
    """Why a value is invalid, without the option's name.

    `value_text`: what may be shown of a value that may hold a secret; None: nothing.
    """

    def __init__(self, reason: str, value_text: str | None = None) -> None:
        super().__init__(reason)
        self.value_text = value_text


# TYPES OF KAFKA'S CONFIGDEF


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of Kafka's ConfigDef: its name, and the function that reads a value of it or raises InvalidValueError.
    `may_hold_secret`: values may hold a secret, so `conceal` wraps strings, and errors show none but `value_text`."""

    name: str
    parse: Callable[[Any], object]
    may_hold_secret: bool = False


def _parse_boolean(value: object) -> bool:
    text = value.lower() if isinstance(value, str) else value
    if text in ("true", "false"):
        return text == "true"
    if isinstance(value, bool):
        return value
    raise InvalidValueError("Expected value to be either true or false")


def _parse_string(value: object) -> str:
    if isinstance(value, str):
        return _require_encodable(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LONG_MAX:
        return str(value)  # acks=1 in Python; Java rejects a number here
    raise InvalidValueError(f"Expected value to be a string, but it was a {type(value).__name__}")


def _require_encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    # Raised outside the except block: UnicodeEncodeError holds the text, which may be a password.
    raise InvalidValueError("It holds half of a surrogate pair, which UTF-8 cannot encode")


def check_protocol_string(text: str) -> str:
    """A `convert` for options that are sent to brokers as a string."""
    size = len(text.encode())
    if size > MAX_STRING_BYTES:
        raise InvalidValueError(f"{size:,} bytes in UTF-8, but a string of Kafka's protocol has {MAX_STRING_BYTES:,} at most")
    return text


def _parse_integer(value: object, type_name: str, maximum: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,99}", value):  # int() takes 4,300 digits
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -maximum - 1 <= value <= maximum:
        raise InvalidValueError(f"Not a number of type {type_name}")
    return value


def _parse_double(value: object) -> float:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    raise InvalidValueError("Not a number of type DOUBLE")


def _parse_list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(re.split(r"\s*,\s*", value)) if value else ()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(item.strip() for item in value)
    raise InvalidValueError("Expected a comma separated list.")


def _parse_class(value: object) -> object:
    """A dotted name. A program that uses KafkaProducer directly may also pass the class, instance or function itself."""
    if isinstance(value, bool | int | float | bytes | list | tuple):
        raise InvalidValueError(f"Expected value to be the name of a class, but it was a {type(value).__name__}")
    return value


def _parse_classes(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        value = _parse_list(value)
    return tuple(map(_parse_class, value if isinstance(value, list | tuple) else [value]))


def _parse_password(value: object) -> Secret:
    if isinstance(value, Secret):
        _require_encodable(value.reveal())
        return value
    raise InvalidValueError("Expected value to be a string")  # conceal() has wrapped every string


BOOLEAN = Kind("boolean", _parse_boolean)
STRING = Kind("string", _parse_string)
INT = Kind("int", lambda value: _parse_integer(value, "INT", INT_MAX))
LONG = Kind("long", lambda value: _parse_integer(value, "LONG", LONG_MAX))
DOUBLE = Kind("double", _parse_double)
LIST = Kind("list", _parse_list)
CLASS = Kind("class", _parse_class)
CLASSES = Kind("list", _parse_classes)
PASSWORD = Kind("password", _parse_password, may_hold_secret=True)


# OPTIONS


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what a user may write under `key`, and how it becomes the attribute's value."""

    key: str
    kind: Kind
    default: object  # as a user would write it; None: not set
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    also_allowed: float | None = None  # one value below at_least that is allowed too, like -1 for a codec's default
    choices: tuple[str, ...] = ()
    ignore_case: bool = False  # of choices; the value becomes the choice as it is declared
    non_empty: bool = False
    is_file: bool = False  # the path of a file on the machine where the producer runs
    convert: Callable[[Any], object] | None = None  # from the checked value to the attribute's; may raise InvalidValueError

    def read(self, value: object) -> object:
        """The attribute's value for what a user wrote. Raises InvalidValueError."""
        try:
            parsed = self.kind.parse(value.strip() if isinstance(value, str) else value)
        except InvalidValueError as error:
            allowed_values = self.allowed_values()
            raise InvalidValueError(f"{error}; allowed: {allowed_values}" if allowed_values else str(error)) from None
        self._check(parsed)
        checked = self._choice(parsed) if self.choices else parsed
        return checked if self.convert is None else self.convert(checked)

    def _check(self, value: Any) -> None:
        range_hint = f" (allowed: {self.allowed_values()})" if self.at_least is not None and self.at_most is not None else ""
        if self.at_least is not None and value < self.at_least and value != self.also_allowed:
            raise InvalidValueError(f"Value must be at least {self.at_least}{range_hint}")
        if self.at_most is not None and value > self.at_most:
            raise InvalidValueError(f"Value must be no more than {self.at_most}{range_hint}")
        if self.non_empty and not value:
            raise InvalidValueError("String must be non-empty")

    def _choice(self, value: Any) -> str:
        """The choice as it is declared, in whatever case the user wrote it."""
        for choice in self.choices:
            if value == choice or (self.ignore_case and value.lower() == choice.lower()):
                return choice
        how = "String must be one of (case insensitive)" if self.ignore_case else "String must be one of"
        raise InvalidValueError(f"{how}: {', '.join(self.choices)}")

    def allowed_values(self) -> str:
        """The allowed values in words; empty if every value of the type is allowed."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind is BOOLEAN:
            return "true, false"
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least} to {self.at_most}" + ("" if self.also_allowed is None else f", or {self.also_allowed}")
        if self.at_least is not None:
            return f"at least {self.at_least}"
        return "not empty" if self.non_empty else ""


def option(key: str, kind: Kind, *, default: object, doc: str, **checks: Any) -> Any:
    """A dataclass field with an Option attached. The arguments are those of Option."""
    definition = Option(key, kind, default, doc, **checks)
    return field(default=None if default is None else definition.read(default), metadata={"option": definition})


def options_of(cls: type[Any]) -> dict[str, Option]:
    """The Options of a dataclass by attribute name, in order of declaration; inherited ones come first."""
    return {each.name: each.metadata["option"] for each in fields(cls) if "option" in each.metadata}


# READING


def read_all(options: Mapping[str, Option], given_values: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    """The valid ones of the given values, by attribute name. Adds a sentence to `problems` for each invalid one."""
    valid_values = {}
    for attribute, each in options.items():
        value = given_values.get(each.key)
        if value is None:
            continue
        if holds_reference(value):
            problems.append(reference_problem(each.key))
            continue
        if not each.kind.may_hold_secret and is_secret(value):
            problems.append(
                f"The value of {each.key} is not shown, as it looks like a secret: a key, a login, a password or a text of"
                f" several lines, none of which {each.key} takes. Find the option that it belongs to"
            )
            continue
        try:
            valid_values[attribute] = each.read(value)
        except InvalidValueError as error:
            value_text = error.value_text or HIDDEN
            if not each.kind.may_hold_secret:
                value_text = printable(value if isinstance(value, int) else as_text(value))
            problems.append(f"Invalid value {value_text} for configuration {each.key}: {error}")
    return valid_values


def as_text(value: object) -> str:
    """A value as a user would write it in a properties file."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def is_secret(value: object) -> bool:
    """Whether a value is a Secret, or looks like one."""
    return isinstance(value, Secret) or (isinstance(value, str | list | tuple) and looks_like_a_secret(as_text(value)))


def holds_reference(value: object) -> bool:
    """Whether a value refers to a config provider, as ${file:/path:key} does."""
    if isinstance(value, list | tuple):
        return any(map(holds_reference, value))
    if isinstance(value, Secret):
        return _has_reference(value.reveal())
    return isinstance(value, str) and _has_reference(value)


def _has_reference(text: str) -> bool:
    """Whether Kafka's ConfigTransformer would find a ${provider:path:key} in the text. Takes linear time."""
    return any(":" in each.partition("${")[2] for each in text.split("}")[:-1])


def reference_problem(key: str) -> str:
    """The sentence about a value for which holds_reference is true."""
    return (
        f"The value of {key} holds a reference to a config provider, like ${{file:/path:key}}. Config providers are not"
        " supported, so the text of the reference would be used as the value. Set the value itself"
    )


def conceal(mapping: Mapping[str, object], known_options: Mapping[str, Option], prefix: str = "") -> dict[str, object]:
    """A copy with every password wrapped as a Secret, and every string under an unknown key, as it may be misspelt.

    Under any key, a string or a list that looks like a secret is wrapped too.

    Args:
        mapping: keys and values as a user wrote them.
        known_options: the options by key.
        prefix: begins the known keys in `mapping`, as in "kafka.acks". A key without the prefix counts as known.
    """
    plain_keys = {prefix + key for key, each in known_options.items() if not each.kind.may_hold_secret}
    return {key: _conceal(value, is_plain=not key.startswith(prefix) or key in plain_keys) for key, value in mapping.items()}


def _conceal(value: object, *, is_plain: bool) -> object:
    if is_secret(value) or (isinstance(value, str) and not is_plain):
        return value if isinstance(value, Secret) else Secret(as_text(value).strip())
    return value


# REPORTING


def join_problems(problems: Sequence[str]) -> str:
    """The message of one error for all problems."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} things are wrong:" + "".join(f"\n  - {problem}" for problem in problems)


def nearest_key(key: str, known_keys: Iterable[str]) -> str | None:
    """The known key that looks most like `key`, if any is similar."""
    return next(iter(difflib.get_close_matches(key, list(known_keys), n=1, cutoff=0.7)), None)


_logged_messages: set[str] = set()


def warn_once(text: str, *values: object) -> None:
    """Log a warning, once per process: Spark has the options of a stream checked twice in every micro-batch."""
    message = text % values
    if message not in _logged_messages:
        _logged_messages.add(message)
        logger.warning("%s", message)
