"""A registry whose answers are kept in this process: a stream is planned anew for each micro-batch, and seldom has to ask again.

KnownSchemas has the methods of SchemaRegistry that planning and tasks use. It connects when it does not know an answer.
Laws: the schema of a version, an id or a text is kept until MAX_ANSWERS later answers have replaced it; "not found" is not kept.
`latest` is asked again after `latest.cache.ttl.sec`. If the registry or its OAuth server cannot be reached then, the version that
is known stays in use; if one of the two refuses, the error is raised. Nothing stays open after `close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.network.sasl.tokens import RetriableTokenError
from spark_kafka_sink.schemas.registry import RegisteredSchema, SchemaRegistry
from spark_kafka_sink.schemas.registry_errors import UNREACHABLE, RegistryError

logger = logging.getLogger(__name__)

MAX_ANSWERS = 10_000

_CacheKey = tuple[str, str, int | str]  # what is asked, the subject, and its version, id or text


class _CachedAnswer(NamedTuple):
    """A schema from the registry, and its age."""

    schema: RegisteredSchema
    at_ms: int  # when it was kept


_answers: dict[tuple[RegistryConfig, _CacheKey], _CachedAnswer] = {}
_lock = threading.Lock()  # guards changes of _answers; reading one answer needs no lock


@dataclass(eq=False, repr=False)
class KnownSchemas:
    """A SchemaRegistry that keeps its answers. All threads of this process share the answers; each has its own object. Use it
    in `with`, or close it."""

    config: RegistryConfig
    connect: Callable[[RegistryConfig], SchemaRegistry] = SchemaRegistry  # makes the registry, when it has to be asked
    clock: Clock = field(default_factory=Clock)
    _connected: SchemaRegistry | None = field(default=None, init=False)

    def __enter__(self) -> KnownSchemas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    @property
    def _registry(self) -> SchemaRegistry:
        if self._connected is None:
            self._connected = self.connect(self.config)
        return self._connected

    # QUESTIONS. If the answer is not known, each blocks and raises as in SchemaRegistry; require_compatible always asks.

    def version(self, subject: str, number: int) -> RegisteredSchema:
        return self._ask(("version", subject, number), lambda: self._registry.version(subject, number))

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return self._ask(("id", "", schema_id), lambda: self._registry.by_id(schema_id))

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version, as it was latest.cache.ttl.sec ago at most; older if that is -1 or the registry is unreachable."""
        key: _CacheKey = ("latest", subject, "")
        known = self._known(key)
        if known is not None and self._is_fresh(known):
            return known.schema
        try:
            schema = self._registry.latest(subject)
        except (RegistryError, RetriableTokenError) as error:
            is_refusal = isinstance(error, RegistryError) and error.condition != UNREACHABLE
            if known is None or is_refusal:
                raise
            logger.warning("! %s is still written with, as newer ones cannot be asked for: %s", known.schema.label, error)
            schema = known.schema
        if known is not None and known.schema.id != schema.id:
            logger.warning("= rows are written with %s from now on, before with %s", schema.label, known.schema.label)
        return self._keep(key, schema)

    def _is_fresh(self, known: _CachedAnswer) -> bool:
        seconds = self.config.latest_cache_ttl_sec
        return seconds < 0 or self.clock.now_ms() - known.at_ms < 1000 * seconds

    def lookup(self, subject: str, text: str) -> RegisteredSchema | None:
        key: _CacheKey = ("text", subject, text)
        known = self._known(key)
        if known is not None:
            return known.schema
        found = self._registry.lookup(subject, text)
        return None if found is None else self._keep(key, found)

    def require_compatible(self, subject: str, text: str) -> None:
        self._registry.require_compatible(subject, text)

    def for_writing(self, subject: str, text: str, schema_key: str) -> RegisteredSchema:
        return self._ask(("text", subject, text), lambda: self._registry.for_writing(subject, text, schema_key))

    # ANSWERS

    def _ask(self, key: _CacheKey, ask: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        known = self._known(key)
        return self._keep(key, ask()) if known is None else known.schema

    def _known(self, key: _CacheKey) -> _CachedAnswer | None:
        return _answers.get((self.config, key))

    def _keep(self, key: _CacheKey, schema: RegisteredSchema) -> RegisteredSchema:
        with _lock:
            _answers.pop((self.config, key), None)  # a refreshed answer is the newest
            if len(_answers) >= MAX_ANSWERS:
                _answers.pop(next(iter(_answers)))
            _answers[self.config, key] = _CachedAnswer(schema, self.clock.now_ms())
        return schema


def forget() -> None:
    """Forget all answers of this process, for tests."""
    with _lock:
        _answers.clear()
