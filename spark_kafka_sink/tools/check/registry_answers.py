"""Asks the schema registry, if the options name a format, and judges it: its addresses, the login, the subjects of key and value.

Everything is asked side by side, once, and nothing is registered. The DataFrame is not known here: whether its schema fits is
found out when a write is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.format_options import AVRO, ID, KEY_PART, TEXT, VALUE_PART, VERSION, PartOptions, part_options
from spark_kafka_sink.config.registry_config import RegistryAddress, RegistryConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError, KafkaError, NetworkError, printable
from spark_kafka_sink.network.background import outcome_of, outcomes_within
from spark_kafka_sink.schemas import registry_errors
from spark_kafka_sink.schemas.derivation import TOP_LEVEL_RECORD
from spark_kafka_sink.schemas.registry import AVRO_TYPE, RegisteredSchema, SchemaRegistry
from spark_kafka_sink.schemas.subjects import needs_record_name, subject_for
from spark_kafka_sink.tools.check.asks import TimedOutcome
from spark_kafka_sink.tools.check.results import CheckResult, green, red, remedy_for, yellow

REGISTRY_CHECK, SUBJECT = "registry", "subject"
LAST_ANSWER_GRACE_MS = 300  # to judge the last answer

Work = Callable[[], Any]


class PartAnswers(NamedTuple):
    """The answers about the schema of keys or values. `subject` is empty if an id names the schema, and no option the subject."""

    options: PartOptions
    subject: str
    schema: TimedOutcome
    mode: TimedOutcome


def registry_results(options: SinkOptions, clock: Clock, left_ms: int) -> list[CheckResult]:
    """Ask the registry and judge its answers. Empty if no key or value is encoded or framed. Blocks for `left_ms` at most."""
    options_of_parts = (part_options(options, options.registry, part) for part in (KEY_PART, VALUE_PART))
    parts = [each for each in options_of_parts if each is not None]
    config = options.registry
    if config is None or not parts:
        return []
    try:
        return list(_results(options, config, parts, _RegistryQuestions(config, clock, left_ms)))
    except ConfigError as error:  # urllib3 or a certificate is missing, or https_proxy is no URL
        return [red(REGISTRY_CHECK, "", str(error), remedy_for(error))]


def _results(
    options: SinkOptions, config: RegistryConfig, parts: Sequence[PartOptions], questions: _RegistryQuestions
) -> Iterator[CheckResult]:
    addresses = config.schema_registry_url
    subjects = [_subject(each, config, options.topic) for each in parts]
    works: list[Work] = [questions.registry(address).default_compatibility for address in addresses]
    for part, subject in zip(parts, subjects, strict=True):
        works += questions.works_of(part, subject)
    answers = questions.answers(works)
    address_answers = answers[: len(addresses)]
    yield from judge_addresses(addresses, address_answers, config)
    if any(is_reached(each) for each in address_answers):
        part_answers = answers[len(addresses) :]
        for part, subject, schema, mode in zip(parts, subjects, part_answers[::2], part_answers[1::2], strict=True):
            if isinstance(subject, ConfigError):
                yield yellow(SUBJECT, part.part, f"not known: {subject.message}")
            else:
                yield judge_part(PartAnswers(part, subject, schema, mode), config)


def _subject(part: PartOptions, config: RegistryConfig, topic: str | None) -> str | ConfigError:
    """The subject; empty if an id names the schema, and no option the subject. An error if it contains a record name that is not
    known here."""
    if part.subject is not None:
        return part.subject
    if part.schema is not None and part.schema.kind == ID:
        return ""
    if needs_record_name(config, part.part) and part.schema is not None and part.schema.kind == TEXT:
        return ConfigError(f"it has the name of the record in the text of {part.part}Schema")
    name = part.record_name or TOP_LEVEL_RECORD
    return subject_for(config, part.part, topic, f"{part.record_namespace}.{name}" if part.record_namespace else name)


class _RegistryQuestions:
    """Asks each question on a thread of its own, without retries, within `left_ms`."""

    def __init__(self, config: RegistryConfig, clock: Clock, left_ms: int) -> None:
        limit_ms = max(min(config.schema_registry_default_api_timeout_ms, left_ms - LAST_ANSWER_GRACE_MS), 1)
        self._config = replace(config, schema_registry_max_retries=0, schema_registry_default_api_timeout_ms=limit_ms)
        self._clock = clock
        self._left_ms = left_ms
        self._registry_of_all = SchemaRegistry(self._config, clock)

    def registry(self, address: RegistryAddress) -> SchemaRegistry:
        return SchemaRegistry(replace(self._config, schema_registry_url=(address,)), self._clock)

    def works_of(self, part: PartOptions, subject: str | ConfigError) -> list[Work]:
        """The works that ask the two questions about a part: its schema, and the compatibility mode of the subject."""
        if isinstance(subject, ConfigError):
            return [lambda: None, lambda: None]
        registry, schema = self._registry_of_all, part.schema
        if schema is not None and schema.kind == ID:
            return [partial(registry.by_id, schema.number, subject), lambda: None]
        if schema is not None and schema.kind == VERSION:
            return [partial(registry.version, subject, schema.number), lambda: None]
        return [partial(registry.latest, subject), partial(registry.compatibility, subject)]

    def answers(self, works: Sequence[Work]) -> list[TimedOutcome]:
        outcomes = outcomes_within([partial(self._timed_outcome, work) for work in works], self._left_ms, self._clock)
        late_error = NetworkError(f"no answer within {self._left_ms:,} ms")
        return [TimedOutcome(late_error, self._left_ms) if outcome is None else outcome.result for outcome in outcomes]

    def _timed_outcome(self, work: Work) -> TimedOutcome:
        start_ms = self._clock.now_ms()
        outcome = outcome_of(work)
        return TimedOutcome(outcome.result if outcome.error is None else outcome.error, self._clock.now_ms() - start_ms)


# JUDGES


def is_reached(answer: TimedOutcome) -> bool:
    """Whether the registry has answered, if only that it denies the user the answer or does not know the subject."""
    condition = answer.value.condition if isinstance(answer.value, KafkaError) else registry_errors.NOT_ALLOWED
    return condition in {registry_errors.NOT_ALLOWED, registry_errors.SUBJECT_NOT_FOUND}


def judge_addresses(
    addresses: Sequence[RegistryAddress], answers: Sequence[TimedOutcome], config: RegistryConfig
) -> Iterator[CheckResult]:
    """An address without an answer is red only if no address answers, because a write asks the next address."""
    is_any_reached = any(map(is_reached, answers))
    for address, answer in zip(addresses, answers, strict=True):
        url = printable(address.url)
        if is_reached(answer):
            yield green(REGISTRY_CHECK, url, f"answers {_user_in_words(address, config)}", answer.ms)
        elif is_any_reached:
            yield yellow(REGISTRY_CHECK, url, f"{answer.value}", "others are asked in its place", answer.ms)
        else:
            yield red(REGISTRY_CHECK, url, f"{answer.value}", remedy_for(answer.value), answer.ms)


def _remedy_for_missing(answers: PartAnswers, error: KafkaError) -> str:
    if error.condition not in registry_errors.NOT_FOUND:
        return remedy_for(error)
    if answers.options.schema is None:
        return "register the schema, or set auto.register.schemas=true"
    return f"correct {answers.options.part}Schema, or register that schema"


def _user_in_words(address: RegistryAddress, config: RegistryConfig) -> str:
    login = config.login_of(address)
    if login is not None:
        return f"user '{printable(login.reveal().partition(':')[0])}'"
    return "without a login" if config.token_source is None else f"a token ({config.token_source})"


def judge_part(answers: PartAnswers, config: RegistryConfig) -> CheckResult:
    """Judge a schema of the registry: whether rows can be written with it, and what becomes of one that differs."""
    schema, schema_option = answers.schema.value, answers.options.schema
    subject = printable(answers.subject or f"{answers.options.part}: schema {schema_option}")
    ms = max(answers.schema.ms, answers.mode.ms)
    if isinstance(schema, KafkaError):
        return _judge_missing_schema(answers, schema, config, subject, ms)
    if answers.options.format == AVRO and schema.schema_type != AVRO_TYPE:
        return red(SUBJECT, subject, f"{_schema_text(schema)}: no Avro", f"set {answers.options.part}Format=framed", ms)
    is_derived = schema_option is None or schema_option.kind == TEXT
    if schema.write_rules is not None:
        finding = f"{_schema_text(schema)}; it has rules that apply to writing, which are not carried out: {schema.write_rules}"
        return (yellow if is_derived else red)(SUBJECT, subject, finding, "write with a client that does", ms)
    if not is_derived:
        return green(SUBJECT, subject, f"{_schema_text(schema)} is what rows are written with", ms)
    how = "becomes the next version, if that allows it" if config.auto_register_schemas else "is refused"
    finding = f"{_schema_text(schema)}; compatibility {_mode(answers.mode)}; a schema that differs {how}"
    return green(SUBJECT, subject, finding, ms)


def _judge_missing_schema(answers: PartAnswers, error: KafkaError, config: RegistryConfig, subject: str, ms: int) -> CheckResult:
    schema_option = answers.options.schema
    may_register = config.auto_register_schemas and (schema_option is None or schema_option.kind == TEXT)
    if error.condition != registry_errors.SUBJECT_NOT_FOUND or not may_register:
        return red(SUBJECT, subject, str(error), _remedy_for_missing(answers, error), ms)
    finding = f"does not exist: the first write registers it, if it may; compatibility {_mode(answers.mode)}"
    return yellow(SUBJECT, subject, finding, "a registry does not tell who may register: make sure that this login may", ms)


def _schema_text(schema: RegisteredSchema) -> str:
    version = "" if schema.version is None else f"version {schema.version}, "
    return f"{version}id {schema.id}, {printable(schema.schema_type)}"


def _mode(answer: TimedOutcome) -> str:
    return "not known" if isinstance(answer.value, KafkaError) or answer.value is None else str(answer.value)
