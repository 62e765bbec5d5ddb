"""From a dotted name in an option, package.module.Class, to what it names in Python.

Whatever takes one loads it here (serializers, partitioners, interceptors, token callbacks, onCommit), so that each tells a
failure in the same words: option, name, cause, remedy.
Law: a name is loaded where it is used, which for Spark is mostly in the tasks; elsewhere only its form may be judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spark_kafka_sink.errors import ConfigError

_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_JAVAS_ROOTS = ("com", "io", "java", "javax", "kafka", "net", "org", "scala")
_REMEDY = (
    "It must be importable where it is used: in Spark, send its module along with --py-files, or install it on the driver and all"
    " executors"
)


def load(option: str, name: str, *, built_in: Iterable[str] = ()) -> object:
    """What `name` names, its module imported.

    Args:
        option: for the error text.
        name: package.module.attribute.
        built_in: what the option takes besides, for the error text.

    Raises:
        ConfigError: it is no dotted name or a Java class, the module is missing or fails when imported, or has no such attribute.
    """
    refused = partial(_config_error, option, name, built_in)
    if not is_dotted_name(name):
        raise refused("it is no dotted name of something written in Python, like package.module.Class")
    if is_java_class(name):
        raise refused("it is a Java class; write it in Python")
    module_name, _, attribute = name.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # a module may raise anything
        raise refused(_why_not_imported(module_name, error)) from error
    if not hasattr(module, attribute):
        raise refused(f"module {module_name} has no {attribute}")
    return getattr(module, attribute)


def load_callable(option: str, name: str, *, built_in: Iterable[str] = ()) -> Callable[..., Any]:
    """As `load`; what cannot be called is a ConfigError too."""
    found = load(option, name, built_in=built_in)
    if not callable(found):
        raise _config_error(option, name, built_in, f"it is of type {type(found).__name__}, which cannot be called")
    return found


def is_dotted_name(name: str) -> bool:
    return _DOTTED_NAME.fullmatch(name) is not None


def is_java_class(name: str) -> bool:
    """Whether a name looks like Java's and its first part is no Python package. Imports nothing."""
    root, last = name.partition(".")[0], name.rpartition(".")[2]
    if root not in _JAVAS_ROOTS or not last[:1].isupper():
        return False
    found = find_spec(root)
    return found is None or found.submodule_search_locations is None


def _config_error(option: str, name: str, built_in: Iterable[str], why: str) -> ConfigError:
    names = ", ".join(built_in)
    return ConfigError(f"{option}={name} cannot be loaded: {why}. {_REMEDY}" + (f". Built in are {names}" if names else ""))


def _why_not_imported(module_name: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module_name}.".startswith(f"{missing}."):
        return f"there is no module {missing}"
    return f"module {module_name} fails when it is imported: {type(error).__name__}: {error}"
