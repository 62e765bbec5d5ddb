"""Loads, creates, configures and closes the objects that `partitioner.class` and `interceptor.classes` name.

An option holds a dotted name, a class, an instance or a function. A name is imported, a class is instantiated, and `configure` is
called. partitioner.py and interceptors.py know what to do with the object.
Law: if a plug-in cannot be loaded, the producer's constructor raises, with the cause in the error's text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from spark_kafka_sink.config.dotted_names import load
from spark_kafka_sink.errors import ConfigError

logger = logging.getLogger(__name__)

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A user's object, and its name in errors and log lines."""

    instance: object
    name: str

    def method(self, name: str) -> Method | None:
        """The method of that name, or None if the object has none."""
        method = getattr(self.instance, name, None)
        return method if callable(method) else None

    def configure(self, option: str, config: Mapping[str, object]) -> None:
        """Call the object's `configure`, if it has one. Raises ConfigError with the text of an Exception that it raises."""
        method = self.method("configure")
        if method is None:
            return
        try:
            method(dict(config))
        except Exception as error:
            raise ConfigError(f"{option}: {self.name}.configure failed: {_error_text(error)}") from error

    def close(self) -> None:
        """Call the object's `close`, if it has one. An Exception that it raises is logged."""
        method = self.method("close")
        if method is None:
            return
        try:
            method()
        except Exception:
            logger.exception("! %s.close failed", self.name)


class Closable(Protocol):
    """What can be closed: a Plugin, or several of them."""

    def close(self) -> None: ...


def close_all(plugins: Iterable[Closable]) -> None:
    """Close all in this order, even if one raises. Plugin.close logs an Exception; SystemExit and the like are raised last."""
    with ExitStack() as stack:
        for plugin in reversed(tuple(plugins)):
            stack.callback(plugin.close)


def make_plugin(option: str, option_value: object) -> Plugin:
    """Load and create what an option names. The caller calls `configure`.

    Args:
        option: its name, for error texts.
        option_value: package.module.Name of a class, a function or an instance; or one of these itself. A class is called without
            arguments.

    Raises:
        ConfigError: it cannot be imported or created.
    """
    plugin_object = load(option, option_value) if isinstance(option_value, str) else option_value
    name = option_value if isinstance(option_value, str) else name_of(plugin_object)
    if not isinstance(plugin_object, type):
        return Plugin(plugin_object, name)
    try:
        return Plugin(plugin_object(), name)
    except Exception as error:
        raise ConfigError(f"{option}={name}: an instance cannot be created without arguments: {_error_text(error)}") from error


def name_of(plugin_object: object) -> str:
    """The dotted name of a class or function, or of an instance's class."""
    definition: Any = plugin_object if hasattr(plugin_object, "__qualname__") else type(plugin_object)
    return f"{definition.__module__}.{definition.__qualname__}"


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
