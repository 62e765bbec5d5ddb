"""config/dotted_names.py: names are loaded, and an error contains option, name, cause and remedy."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafka_sink.config.dotted_names import load, load_callable
from spark_kafka_sink.errors import ConfigError

MODULES = {
    "dn_good": "class Mine:\n    pass\n",
    "dn_divides": "1 / 0\n",
    "dn_needs_other": "import dn_not_there\n",
    "dn_asks_itself": "[].no_such_method\n",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


def why(name: str, how: Callable[..., object] = load) -> str:
    with pytest.raises(ConfigError) as raised:
        how("some.option", name)
    start, _, rest = raised.value.message.partition(" cannot be loaded: ")
    assert start == f"some.option={name}"
    cause, _, remedy = rest.partition(". It must be importable where it is used: ")
    assert "--py-files" in remedy
    return cause


def test_what_a_name_stands_for_is_found_be_it_callable_or_not() -> None:
    assert load("some.option", "os.path.sep") == os.path.sep
    assert load_callable("some.option", "os.path.join") is os.path.join


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("dn_nowhere.Mine", "there is no module dn_nowhere"),
        ("dn_nowhere.deep.below.Mine", "there is no module dn_nowhere"),
        ("os.path.nowhere.Mine", "there is no module os.path.nowhere"),
        ("dn_good.Yours", "module dn_good has no Yours"),
        ("dn_divides.Mine", "module dn_divides fails when it is imported: ZeroDivisionError: division by zero"),
        (
            "dn_needs_other.Mine",
            "module dn_needs_other fails when it is imported: ModuleNotFoundError: No module named 'dn_not_there'",
        ),
        (
            "dn_asks_itself.Mine",
            "module dn_asks_itself fails when it is imported: AttributeError: 'list' object has no attribute 'no_such_method'",
        ),
        ("org.example.Mine", "it is a Java class; write it in Python"),
        *((bad, "it is not a dotted name of a Python object, like package.module.Class") for bad in ("Mine", ".Mine", "a..b")),
    ],
)
def test_the_cause_is_named_in_the_error(name: str, cause: str) -> None:
    assert why(name) == cause


def test_what_cannot_be_called_is_refused_where_something_to_call_is_wanted() -> None:
    assert why("os.path.sep", load_callable) == "it is of type str, which cannot be called"
    assert why("dn_good.Yours", load_callable) == "module dn_good has no Yours"


def test_what_a_module_raised_is_kept_as_the_cause() -> None:
    with pytest.raises(ConfigError) as raised:
        load("some.option", "dn_divides.Mine")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_what_is_built_in_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"\. Built in are bytes, string$"):
        load("some.option", "nothing", built_in=["bytes", "string"])
