"""The sink's own options, and the defaults that differ from Kafka's for a bulk write. The producer's options begin with `kafka.`.

SinkOptions.read reads everything that a Spark user writes with `.option(…)`. sink/datasource.py calls it on the driver.
Formats of keys and values are in format_options.py. The options of a schema registry have no prefix; they are in
registry_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.config.format_options import FormatOptions, format_conflicts
from spark_kafka_sink.config.keys_without_effect import FOR_READING
from spark_kafka_sink.config.option import (
    BOOLEAN,
    INT_MAX,
    LONG,
    STRING,
    InvalidValueError,
    conceal,
    nearest_key,
    option,
    options_of,
    read_all,
    warn_once,
)
from spark_kafka_sink.config.other_clients import counterpart_of
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS, ProducerConfig
from spark_kafka_sink.config.producer_rules import ACKS_ALL
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.topic_names import TOPIC_NAME_RULE, is_topic_name

if TYPE_CHECKING:
    from spark_kafka_sink.config.registry_config import RegistryConfig

MAX_IDENTIFIER_BYTES = 1_000
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
NO_GUARANTEE = "none"

# A Spark task writes in bulk: fewer and fuller batches. By attribute name; the user's options override these.
BULK_DEFAULTS: dict[str, object] = {"batch_size": 524_288, "linger_ms": 200, "send_buffer_bytes": -1}

PRODUCER_PREFIX = "kafka."
_ADDED_BY_SPARK = ("checkpointlocation", "queryname")  # Spark passes these to every sink

# Options that Spark's own Kafka connector has for reading only, in lower case. Jobs use one set of options to read and to write.
_SPARK_SOURCE_OPTIONS = frozenset(
    (
        *("assign", "subscribe", "subscribepattern", "startingtimestamp", "startingoffsets", "startingoffsetsbytimestamp"),
        *("startingoffsetsbytimestampstrategy", "endingtimestamp", "endingoffsets", "endingoffsetsbytimestamp"),
        *("failondataloss", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"),
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions", "maxrecordsperpartition"),
        "groupidprefix",
    )
)


def _require_topic_name(name: str) -> str:
    if not is_topic_name(name):
        raise InvalidValueError(TOPIC_NAME_RULE)
    return name


def _require_identifier(name: str) -> str:
    """The name, unchanged: it becomes a part of transactional ids and of group names, which brokers keep."""
    if len(name.encode("utf-8", "replace")) > MAX_IDENTIFIER_BYTES or not name.isprintable():
        raise InvalidValueError(f"it must be printable text of at most {MAX_IDENTIFIER_BYTES} bytes in UTF-8")
    return name


def _require_plain_identifier(name: str) -> str:
    """The name, unchanged: it also stands in report lines and names of files."""
    if not _PLAIN_IDENTIFIER.fullmatch(name):
        raise InvalidValueError("it must consist of letters, digits, blanks and . _ ~ : @ / + = -")
    return _require_identifier(name)


_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z0-9._~:@/+= -]+")

# What may happen to a row that cannot be written.
FAIL_TASK, SKIP, DEAD_LETTER = ROW_POLICIES = ("fail", "skip", "deadLetter")
KEEP_FIRST = "keepFirst"

_OUTCOMES_DOC = "fail: the task fails. skip: the row is left out. deadLetter: it is written to deadLetterTopic."
_RATE_DOC = "a job writes at most this times the number of tasks that run at once."


@dataclass(frozen=True, slots=True)
class SinkOptions(FormatOptions):
    """The options of a Spark write, checked. Names are not case-sensitive, as everywhere in Spark."""

    # fmt: off
    topic: str | None = option("topic", STRING, default=None, convert=_require_topic_name,
        doc="Topic of all rows; overrides a `topic` column.")
    delivery_guarantee: str = option(
        "deliveryGuarantee", STRING, default=AT_LEAST_ONCE, choices=(AT_LEAST_ONCE, NO_GUARANTEE, EXACTLY_ONCE), ignore_case=True,
        doc="at-least-once: a task succeeds only when all in-sync replicas have acknowledged every row. exactly-once: readers "
            "with isolation.level=read_committed see each row once, and nothing of a write that fails. none: kafka.acks decides.")
    transactional_id_prefix: str | None = option("transactionalIdPrefix", STRING, default=None, non_empty=True,
        convert=_require_identifier,
        doc="Required by exactly-once: the beginning of its transactional ids and groups. One query or job at a time uses a "
            "prefix: a new one aborts what an earlier one has left.")
    txn_app_id: str | None = option("txnAppId", STRING, default=None, non_empty=True, convert=_require_plain_identifier,
        doc="exactly-once: name of a series of writes of df.write. Each number in txnVersion is written once. A stream needs "
            "neither, nor does a foreachBatch function in its own thread: Spark tells the query's id and the batch's number.")
    txn_version: int | None = option("txnVersion", LONG, default=None, at_least=0,
        doc="exactly-once: number of this write within txnAppId, higher for each new one. A number that was committed is not "
            "written again.")
    allow_unnamed_write: bool = option("allowUnnamedWrite", BOOLEAN, default=False,
        doc="exactly-once: true allows a df.write without a name. A repetition writes all of its rows again.")
    on_non_deterministic_replay: str = option(
        "onNonDeterministicReplay", STRING, default=FAIL_TASK, choices=(FAIL_TASK, KEEP_FIRST), ignore_case=True,
        doc="exactly-once: when a repetition of a committed write brings other rows. fail: it is an error. keepFirst: none of "
            "them is written, with a warning, and the report counts them.")
    marker_topic: str | None = option("markerTopic", STRING, default=None, convert=_require_topic_name,
        doc="exactly-once: existing topic that the offsets of markers and decisions name; nothing is written to it. Not set: the "
            "option topic. Required when the topics come from a column.")
    include_headers: bool = option("includeHeaders", BOOLEAN, default=False,
        doc="No effect: a `headers` column is always written. Accepted because Spark's own Kafka sink has this option.")
    include_timestamp: bool = option("includeTimestamp", BOOLEAN, default=False,
        doc="Write the `timestamp` column (timestamp, or bigint in milliseconds) as the records' timestamp, by which brokers "
            "delete old records.")
    on_record_too_large: str = option("onRecordTooLarge", STRING, default=FAIL_TASK, choices=ROW_POLICIES, ignore_case=True,
        doc=f"What happens to a row that is larger than max.request.size or than the topic accepts. {_OUTCOMES_DOC}")
    on_invalid_record: str = option("onInvalidRecord", STRING, default=FAIL_TASK, choices=ROW_POLICIES, ignore_case=True,
        doc="What happens to a row that cannot be written, such as one with a null topic, or that a broker rejects "
            f"(INVALID_RECORD, INVALID_TIMESTAMP). {_OUTCOMES_DOC}")
    dead_letter_topic: str | None = option("deadLetterTopic", STRING, default=None, convert=_require_topic_name,
        doc="Topic for rows that cannot be written: key, value and headers unchanged, plus headers that give the reason.")
    show_keys: bool = option("showKeys", BOOLEAN, default=True,
        doc="Show the beginning of a row's key in errors and warnings that name the row; false: only its size.")
    max_records_per_second: int | None = option("maxRecordsPerSecond", LONG, default=None, at_least=1,
        doc=f"Maximum rows per second of each task; {_RATE_DOC}")
    max_bytes_per_second: int | None = option("maxBytesPerSecond", LONG, default=None, at_least=1,
        doc="Maximum size of the keys, values and headers that each task writes per second, in bytes before compression; reports "
            f"also count what Kafka adds to them in a record; {_RATE_DOC}")
    report_path: str | None = option("reportPath", STRING, default=None, non_empty=True,
        doc="File on the driver to which each commit appends one line of JSON: rows, bytes, offsets, where the time went. "
            "`pykafka-sink report` draws a page from it.")
    on_commit: str | None = option("onCommit", STRING, default=None, non_empty=True,
        doc="Dotted name of a function on the driver that each commit calls with its CommitSummary. "
            "`spark_kafka_sink.sink.prometheus.record` hands it to Prometheus.")
    producer_cache_timeout_ms: int = option("producerCacheTimeoutMs", LONG, default=60_000, at_least=0,
        doc="How long a task's producer stays connected for the next task in the same Python worker; 0: it is closed with the "
            "task.")
    # fmt: on
    registry: RegistryConfig | None = None  # None: no option names one
    producer: ProducerConfig = field(default_factory=ProducerConfig)

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery_guarantee == EXACTLY_ONCE

    @staticmethod
    def conceal(options: Mapping[str, object]) -> dict[str, object]:
        """A copy with names in lower case and every secret wrapped, for code that keeps the options in a local variable."""
        given_options = {name.lower(): value for name, value in options.items()}
        registry_names = _registry_names(given_options)
        other_options = {name: value for name, value in given_options.items() if name not in registry_names}
        concealed_options = conceal(other_options, PRODUCER_KEYS, PRODUCER_PREFIX)
        for name, value in concealed_options.items():
            if isinstance(value, str) and not _is_of_others(name):
                concealed_options[name] = Secret(value)  # the option may be misspelt, or lack its prefix
        if registry_names:
            from spark_kafka_sink.config.registry_config import RegistryConfig

            concealed_options |= RegistryConfig.pick(given_options)
        return concealed_options

    @classmethod
    def read(cls, options: Mapping[str, object], problems: list[str]) -> SinkOptions:
        """Read all options of a write. Adds what is wrong to `problems`; if there is any problem, the result must not be used.

        An unknown option of the sink is a problem, an unknown key of the producer is a warning in the log. Never blocks.
        """
        given_options = cls.conceal(options)
        own_options = {_SINK_KEYS[name]: value for name, value in given_options.items() if name in _SINK_KEYS}
        problems.extend(_unknown_options(given_options))
        producer_options = {
            name[len(PRODUCER_PREFIX) :]: value for name, value in given_options.items() if name.startswith(PRODUCER_PREFIX)
        }
        problems.extend(_remove_registry_options(producer_options))
        problems.extend(_remove_serializers(producer_options))
        problems.extend(_remove_transactional_id(producer_options))
        values: dict[str, Any] = read_all(options_of(cls), own_options, problems)
        if values.get("delivery_guarantee") == EXACTLY_ONCE:
            problems.extend(_remove_options_against_transactions(producer_options))
        registry = _read_registry(given_options, problems)
        problems.extend(format_conflicts(values, own_options, registry))
        producer = ProducerConfig.read(producer_options, problems, defaults=BULK_DEFAULTS, prefix=PRODUCER_PREFIX)
        problems.extend(_guarantee_conflicts(values, own_options, producer))
        problems.extend(_exactly_once_conflicts(values, own_options))
        problems.extend(_dead_letter_conflicts(values, own_options))
        return cls(**values, registry=registry, producer=producer)


def exactly_once_options(name: str, version: int) -> dict[str, str]:
    """The options of an exactly-once `df.write`, as in foreachBatch: `.options(**exactly_once_options("orders", batch_id))`.

    Args:
        name: the transactionalIdPrefix and txnAppId; no other write may have the same. A new checkpoint needs a new name.
        version: higher for each new write; the same when a write is repeated. In foreachBatch, the batch's id.
    """
    return {"deliveryGuarantee": EXACTLY_ONCE, "transactionalIdPrefix": name, "txnAppId": name, "txnVersion": str(version)}


_SINK_KEYS: dict[str, str] = {each.key.lower(): each.key for each in options_of(SinkOptions).values()}


# registry_config.py is imported only for names that are neither the sink's nor Spark's nor the producer's.


def _registry_names(names: Iterable[str], *, other_names: Container[str] | None = None) -> set[str]:
    """The names of a registry's options, also misspelt. `other_names`: of others; None: the sink's, Spark's and kafka.*"""
    candidates = [name for name in names if not (_is_of_others(name) if other_names is None else name in other_names)]
    if not candidates:
        return set()
    from spark_kafka_sink.config.registry_config import is_registry_key

    return set(filter(is_registry_key, candidates))


def _is_of_others(name: str) -> bool:
    return name in (*_SINK_KEYS, *_ADDED_BY_SPARK, *_SPARK_SOURCE_OPTIONS) or name.startswith(PRODUCER_PREFIX)


def _read_registry(options: Mapping[str, object], problems: list[str]) -> RegistryConfig | None:
    names = _registry_names(options)
    if not names:
        return None
    from spark_kafka_sink.config.registry_config import RegistryConfig

    return RegistryConfig.read({name: options[name] for name in names}, problems)


def _unknown_options(options: Mapping[str, object]) -> Iterator[str]:
    producer_names = {PRODUCER_PREFIX + key: PRODUCER_PREFIX + key for key in PRODUCER_KEYS}
    known_names = {**_SINK_KEYS, **producer_names}
    registry_names = _registry_names(options)
    for name in options:
        if name.startswith(PRODUCER_PREFIX) or name in _SINK_KEYS or name in _ADDED_BY_SPARK or name in registry_names:
            continue
        if name in _SPARK_SOURCE_OPTIONS:
            warn_once("Option '%s' has no effect: %s", name, FOR_READING)
            continue
        if name == "path":
            warn_once("Option 'path' has no effect: rows go to Kafka. Write .save() without a path, and .option(\"topic\", …)")
            continue
        client, counterpart = counterpart_of(name)
        if client and PRODUCER_PREFIX + name not in known_names:
            hint = f"write {counterpart.text(PRODUCER_PREFIX)}" if counterpart.key else f"remove it, as {counterpart.note}"
            yield f"Unknown option '{name}'. It is an option of {client}: {hint}"
            continue
        nearest = known_names.get(PRODUCER_PREFIX + name) or _nearest(name, known_names)
        hint = f"Did you mean '{nearest}'?" if nearest else f"The sink's own are {', '.join(_SINK_KEYS.values())}."
        yield f"Unknown option '{name}'. {hint} Options of the Kafka producer begin with 'kafka.'"


def _nearest(name: str, known_names: Mapping[str, str]) -> str | None:
    """Find the option with the most similar name, among `known_names` and a schema registry's options."""
    from spark_kafka_sink.config.registry_config import REGISTRY_KEYS

    names = {**known_names, **{key: key for key in REGISTRY_KEYS}}
    return names.get(nearest_key(name, names) or "")


def _remove_registry_options(producer_options: dict[str, object]) -> Iterator[str]:
    """Remove options of the registry, and yield a problem for each: the prefix `kafka.` is only for options of the producer."""
    for key in sorted(_registry_names(producer_options, other_names=PRODUCER_KEYS)):
        del producer_options[key]
        yield f"{PRODUCER_PREFIX}{key}: options of the schema registry have no {PRODUCER_PREFIX} before them: write {key}"


def _remove_serializers(producer_options: dict[str, object]) -> Iterator[str]:
    """Remove serializers, so that the producer does not warn of them too, and yield a problem for each, in Spark's words."""
    for part, subject in (("key", "keys"), ("value", "value")):
        if producer_options.pop(f"{part}.serializer", None) is not None:
            yield (
                f"Kafka option '{part}.serializer' is not supported as {subject} are serialized with ByteArraySerializer. Remove"
                f" it: a {part} column of text or bytes is written as it is, {part}Format=avro encodes other types as Avro, and"
                f" to_json({part}) AS {part} makes a struct text"
            )


def _remove_transactional_id(producer_options: dict[str, object]) -> Iterator[str]:
    """Remove transactional.id, and yield a problem: all tasks would fence each other if they had the same id."""
    if producer_options.pop("transactional.id", None) is not None:
        yield (
            f"{PRODUCER_PREFIX}transactional.id is for KafkaProducer, as all tasks would fence each other: write"
            f" deliveryGuarantee={EXACTLY_ONCE} and transactionalIdPrefix, which gives each task an id of its own"
        )


def _remove_options_against_transactions(producer_options: dict[str, object]) -> Iterator[str]:
    """Remove options that rule out transactions, as the producer's rules propose other remedies, and yield a problem for each."""
    for key, requirement, is_allowed in _NEEDED_BY_TRANSACTIONS:
        value = str(producer_options.get(key, "")).strip().lower()
        if value and not is_allowed(value):
            del producer_options[key]
            yield (
                f"deliveryGuarantee={EXACTLY_ONCE} needs {PRODUCER_PREFIX}{key}{requirement}, but {PRODUCER_PREFIX}{key}={value};"
                " remove one of the two"
            )


def _is_number_outside(value: str, minimum: int, maximum: int) -> bool:
    return re.fullmatch("[0-9]{1,99}", value) is not None and not minimum <= int(value) <= maximum


# (key, what its value must be, whether a value is allowed; read_all reports what is no value of the option at all)
_NEEDED_BY_TRANSACTIONS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("acks", "=all", lambda value: value not in ("0", "1")),
    ("enable.idempotence", "=true", lambda value: value != "false"),
    ("retries", " of at least 1", lambda value: not _is_number_outside(value, 1, INT_MAX)),
    ("max.in.flight.requests.per.connection", " of at most 5", lambda value: not _is_number_outside(value, 0, 5)),
)


def _guarantee_conflicts(values: dict[str, Any], own_keys: Container[str], producer: ProducerConfig) -> Iterator[str]:
    """kafka.acks other than all contradicts at-least-once if the user set that; otherwise it lowers the guarantee to none."""
    if producer.acks == ACKS_ALL or values.get("delivery_guarantee", AT_LEAST_ONCE) != AT_LEAST_ONCE:
        return
    if "deliveryGuarantee" in own_keys and "delivery_guarantee" in values:
        yield f"deliveryGuarantee={AT_LEAST_ONCE} needs kafka.acks=all, but kafka.acks={producer.acks}; remove one of the two"
    elif "deliveryGuarantee" not in own_keys:
        warn_once(
            "kafka.acks=%d lowers the delivery guarantee from %s to %s: rows may be lost when a broker fails",
            producer.acks,
            AT_LEAST_ONCE,
            NO_GUARANTEE,
        )
        values["delivery_guarantee"] = NO_GUARANTEE


_ONLY_EXACTLY_ONCE = (
    *("transactionalIdPrefix", "txnAppId", "txnVersion", "allowUnnamedWrite"),
    *("onNonDeterministicReplay", "markerTopic"),
)


def _exactly_once_conflicts(values: dict[str, Any], own_keys: Container[str]) -> Iterator[str]:
    is_guarantee_invalid = "deliveryGuarantee" in own_keys and "delivery_guarantee" not in values
    if values.get("delivery_guarantee") != EXACTLY_ONCE and not is_guarantee_invalid:
        useless_keys = [key for key in _ONLY_EXACTLY_ONCE if key in own_keys]
        if useless_keys:
            yield f"{' and '.join(useless_keys)} {'is' if len(useless_keys) == 1 else 'are'} for deliveryGuarantee={EXACTLY_ONCE}"
        return
    if ("txnAppId" in own_keys) != ("txnVersion" in own_keys):
        yield "txnAppId and txnVersion belong together: set both or neither"
    if is_guarantee_invalid:
        return
    if "transactionalIdPrefix" not in own_keys:
        yield f"deliveryGuarantee={EXACTLY_ONCE} needs transactionalIdPrefix, a name of this query or job that stays the same"
    if values.get("topic") is None and "topic" not in own_keys and "markerTopic" not in own_keys:
        yield f"deliveryGuarantee={EXACTLY_ONCE} with a topic column needs markerTopic, an existing topic that offsets can name"


def _dead_letter_conflicts(values: dict[str, Any], options: Mapping[str, object]) -> Iterator[str]:
    keys = [
        key for key in ("onRecordTooLarge", "onInvalidRecord") if str(options.get(key)).strip().lower() == DEAD_LETTER.lower()
    ]
    if keys and "deadLetterTopic" not in options:
        yield f"{keys[0]}={DEAD_LETTER} needs deadLetterTopic, the topic that such rows go to"
    if not keys and "deadLetterTopic" in options:
        yield f"deadLetterTopic has no effect: set onRecordTooLarge={DEAD_LETTER}, onInvalidRecord={DEAD_LETTER}, or both"
    if values.get("dead_letter_topic") is not None and values.get("dead_letter_topic") == values.get("topic"):
        yield f"deadLetterTopic={values['dead_letter_topic']} is the topic that is written to; name another"
