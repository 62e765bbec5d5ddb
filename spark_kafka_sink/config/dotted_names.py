"""Names of Python classes and functions in options, package.module.Class: their form, and how they are loaded.

Serializers, partitioners, interceptors, token callbacks and onCommit are all loaded here, so that every failure is reported
in the same way: option, name, cause, remedy.
Law: a name is loaded only in the process that uses it, in Spark mostly that of a task; elsewhere only its form may be checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spark_kafka_sink.errors import ConfigError

# Kafka's partitioners, by the Java names under which partitioner.class accepts them.
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
DEFAULT_PARTITIONER = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
UNIFORM_STICKY = "org.apache.kafka.clients.producer.UniformStickyPartitioner"
KAFKAS_PARTITIONERS = (ROUND_ROBIN, DEFAULT_PARTITIONER, UNIFORM_STICKY)

_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_JAVAS_ROOTS = ("com", "io", "java", "javax", "kafka", "net", "org", "scala")
_REMEDY = (
    "It must be importable where it is used:"
    " in Spark, send its module along with --py-files, or install it on the driver and all executors"
)


def load(option: str, name: str, *, built_in: Iterable[str] = ()) -> object:
    """Import the module of `name`, which runs its code, and return the attribute.

    Args:
        option: the option that holds the name, for the error text.
        name: package.module.attribute.
        built_in: other names that the option accepts, for the error text.

    Raises:
        ConfigError: `name` is not a dotted name or is a Java class; the module is missing, cannot be imported or has no such
            attribute.
    """
    make_error = partial(_config_error, option, name, built_in)
    if not is_dotted_name(name):
        raise make_error("it is not a dotted name of a Python object, like package.module.Class")
    if is_java_class(name):
        raise make_error("it is a Java class; write it in Python")
    module_name, _, attribute = name.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # a module may raise anything
        raise make_error(_import_problem(module_name, error)) from error
    if not hasattr(module, attribute):
        raise make_error(f"module {module_name} has no {attribute}")
    return getattr(module, attribute)


def load_callable(option: str, name: str, *, built_in: Iterable[str] = ()) -> Callable[..., Any]:
    """As `load`, but also raises ConfigError if the attribute is not callable."""
    function = load(option, name, built_in=built_in)
    if not callable(function):
        raise _config_error(option, name, built_in, f"it is of type {type(function).__name__}, which cannot be called")
    return function


def is_dotted_name(name: str) -> bool:
    return _DOTTED_NAME.fullmatch(name) is not None


def is_java_class(name: str) -> bool:
    """Whether a name looks like a Java class and does not begin with the name of a Python package. Imports nothing."""
    root, simple_name = name.partition(".")[0], name.rpartition(".")[2]
    if root not in _JAVAS_ROOTS or not simple_name[:1].isupper():
        return False
    spec = find_spec(root)
    return spec is None or spec.submodule_search_locations is None


def _config_error(option: str, name: str, built_in: Iterable[str], reason: str) -> ConfigError:
    names = ", ".join(built_in)
    return ConfigError(f"{option}={name} cannot be loaded: {reason}. {_REMEDY}" + (f". Built in are {names}" if names else ""))


def _import_problem(module_name: str, error: Exception) -> str:
    missing_module = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing_module is not None and f"{module_name}.".startswith(f"{missing_module}."):
        return f"there is no module {missing_module}"
    return f"module {module_name} fails when it is imported: {type(error).__name__}: {error}"
