"""A registry whose answers are kept in this process: a stream is planned anew for each micro-batch, and seldom has to ask again.

KnownSchemas has the methods of SchemaRegistry that planning and tasks use. It connects when it does not know an answer.
Laws: the schema of a version, an id or a text is kept until MAX_ANSWERS later answers have replaced it, or long ones, which may
have MAX_ANSWERED_CHARACTERS together; "not found" is not kept.
`latest` is asked again after `latest.cache.ttl.sec`. If the registry or its OAuth server cannot be reached then, the version that
is known stays in use; if one of the two rejects the request, the error is raised. Nothing stays open after `close`.
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
from spark_kafka_sink.schemas.subjects import context_of

logger = logging.getLogger(__name__)

MAX_ANSWERS = 10_000
MAX_ANSWERED_CHARACTERS = 64_000_000  # in the texts of all answers; one answer may have some millions

_CacheKey = tuple[str, str, int | str]  # what is asked, the subject or the context of an id, and the version, id or text


class _CachedAnswer(NamedTuple):
    """A schema from the registry, and its age."""

    schema: RegisteredSchema
    kept_at_ms: int  # when it was kept
    characters: int  # of its texts


_answers: dict[tuple[RegistryConfig, _CacheKey], _CachedAnswer] = {}
_lock = threading.Lock()  # guards changes of _answers; reading one answer needs no lock


@dataclass(eq=False, repr=False)
class KnownSchemas:
    """A SchemaRegistry that keeps its answers. All threads of this process share the answers; each has its own object. Use it
    in `with`, or close it."""

    config: RegistryConfig
    connect: Callable[[RegistryConfig], SchemaRegistry] = SchemaRegistry  # makes the registry, when it has to be asked
    clock: Clock = field(default_factory=Clock)
    _open_registry: SchemaRegistry | None = field(default=None, init=False)

    def __enter__(self) -> KnownSchemas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections, if there are any. A later question opens new ones; the answers stay."""
        if self._open_registry is not None:
            self._open_registry.close()
            self._open_registry = None

    @property
    def _registry(self) -> SchemaRegistry:
        if self._open_registry is None:
            self._open_registry = self.connect(self.config)
        return self._open_registry

    # QUESTIONS. If the answer is not known, each blocks and raises as in SchemaRegistry; require_compatible always asks.

    def version(self, subject: str, number: int) -> RegisteredSchema:
        return self._ask(("version", subject, number), lambda: self._registry.version(subject, number))

    def by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        return self._ask(("id", context_of(subject), schema_id), lambda: self._registry.by_id(schema_id, subject))

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version; at most latest.cache.ttl.sec old, or of any age if that is -1 or the registry cannot be reached."""
        key: _CacheKey = ("latest", subject, "")
        answer = self._cached_answer(key)
        if answer is not None and self._is_fresh(answer):
            return answer.schema
        try:
            schema = self._registry.latest(subject)
        except (RegistryError, RetriableTokenError) as error:
            is_rejection = isinstance(error, RegistryError) and error.condition != UNREACHABLE
            if answer is None or is_rejection:
                raise
            logger.warning("! %s is still written with, as newer ones cannot be asked for: %s", answer.schema.label, error)
            schema = answer.schema
        if answer is not None and answer.schema.id != schema.id:
            logger.warning("= rows are written with %s from now on, before with %s", schema.label, answer.schema.label)
        return self._keep(key, schema)

    def _is_fresh(self, answer: _CachedAnswer) -> bool:
        max_age_s = self.config.latest_cache_ttl_sec
        return max_age_s < 0 or self.clock.now_ms() - answer.kept_at_ms < 1000 * max_age_s

    def lookup(self, subject: str, text: str) -> RegisteredSchema | None:
        """As SchemaRegistry.lookup. None is not kept: the next call asks again."""
        key: _CacheKey = ("text", subject, text)
        answer = self._cached_answer(key)
        if answer is not None:
            return answer.schema
        schema = self._registry.lookup(subject, text)
        return None if schema is None else self._keep(key, schema)

    def require_compatible(self, subject: str, text: str) -> None:
        self._registry.require_compatible(subject, text)

    def find_or_register(self, subject: str, text: str, schema_key: str) -> RegisteredSchema:
        return self._ask(("text", subject, text), lambda: self._registry.find_or_register(subject, text, schema_key))

    # ANSWERS

    def _ask(self, key: _CacheKey, ask: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        answer = self._cached_answer(key)
        return self._keep(key, ask()) if answer is None else answer.schema

    def _cached_answer(self, key: _CacheKey) -> _CachedAnswer | None:
        return _answers.get((self.config, key))

    def _keep(self, key: _CacheKey, schema: RegisteredSchema) -> RegisteredSchema:
        characters = len(schema.text) + sum(map(len, schema.references.values()))
        new_answer = _CachedAnswer(schema, self.clock.now_ms(), characters)
        with _lock:
            _answers.pop((self.config, key), None)  # a refreshed answer is the newest
            left_characters = MAX_ANSWERED_CHARACTERS - characters - sum(each.characters for each in _answers.values())
            while _answers and (len(_answers) >= MAX_ANSWERS or left_characters < 0):
                left_characters += _answers.pop(next(iter(_answers))).characters
            _answers[self.config, key] = new_answer
        return schema


def forget() -> None:
    """Forget all answers of this process, for tests."""
    with _lock:
        _answers.clear()
