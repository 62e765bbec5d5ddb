"""Every option, declared once: Kafka's key, type, default, allowed values, one sentence.

`ProducerConfig` holds the producer's options under Kafka's own keys, `SinkOptions` what a Spark user writes with `.option(…)`.
Checks, error texts and the README's tables (option_tables.py) are read from the rows. legacy/config.py adds those of the old
producer.
Laws: all problems of a configuration are reported together; a secret never shows in a repr, a log line or an error.

Where to find what
    MACHINERY            Secret, Kind, Option: how a value is read and checked
    PRODUCER OPTIONS     one row each; below them the keys that have no effect here, and why
    RULES                what Kafka says about options together
    SINK OPTIONS         the sink's own, and what a bulk write changes of Kafka's defaults
"""

# ruff: noqa: RUF009  (option() is dataclasses.field() with a row attached)

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from spark_kafka_sink.config import sasl as sasl_config
from spark_kafka_sink.config.dotted_names import is_dotted_name, is_java_class
from spark_kafka_sink.errors import ConfigError, printable

logger = logging.getLogger(__name__)

# Spark has a stream's options checked twice in every micro-batch: each warning is told once per process.
_warned: set[str] = set()


def _warn(text: str, *values: object) -> None:
    told = text % values
    if told not in _warned:
        _warned.add(told)
        logger.warning("%s", told)


# --- MACHINERY --------------------------------------------------------------------------------------------------------

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
HIDDEN = "[hidden]"


class Secret:
    """A value that only `reveal()` shows: its repr, its str and any traceback with locals print [hidden]."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class SecretBytes(bytes):
    """Bytes that are a secret, such as a message of a SASL exchange: they show as [hidden]. What is cut from them shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__


class InvalidValueError(ValueError):
    """What is wrong with one value, without the option's name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of Kafka's ConfigDef: its name, and how a value becomes one of ours."""

    name: str
    parse: Callable[[Any], object]


def _parse_boolean(value: object) -> bool:
    text = value.lower() if isinstance(value, str) else value
    if text in ("true", "false"):
        return text == "true"
    if isinstance(value, bool):
        return value
    raise InvalidValueError("Expected value to be either true or false")


def _parse_string(value: object) -> str:
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, int) and not isinstance(value, bool):  # acks=1 in Python; Java would refuse a number here
        return str(value)
    raise InvalidValueError(f"Expected value to be a string, but it was a {type(value).__name__}")


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    # Outside of the except block: that error holds the text, which may be a password.
    raise InvalidValueError("It holds half of a surrogate pair, which UTF-8 cannot carry")


MAX_STRING_BYTES = 2**15 - 1  # its length goes before it as an int16


def _protocol_string(text: str) -> str:
    size = len(text.encode())
    if size > MAX_STRING_BYTES:
        raise InvalidValueError(f"{size:,} bytes in UTF-8, but a string of Kafka's protocol has {MAX_STRING_BYTES:,} at most")
    return text


def _parse_integer(value: object, type_name: str, lowest: int, highest: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise InvalidValueError(f"Not a number of type {type_name}")
    return value


def _parse_int(value: object) -> int:
    return _parse_integer(value, "INT", -INT_MAX - 1, INT_MAX)


def _parse_long(value: object) -> int:
    return _parse_integer(value, "LONG", -LONG_MAX - 1, LONG_MAX)


def _parse_double(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise InvalidValueError("Not a number of type DOUBLE") from error
    raise InvalidValueError("Not a number of type DOUBLE")


def _parse_list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(re.split(r"\s*,\s*", value)) if value else ()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(item.strip() for item in value)
    raise InvalidValueError("Expected a comma separated list.")


def _parse_class(value: object) -> object:
    """A name, or outside Spark what it would name: a class, an instance, a function."""
    if isinstance(value, bool | int | float | bytes | list | tuple):
        raise InvalidValueError(f"Expected value to be the name of a class, but it was a {type(value).__name__}")
    return value


def _parse_classes(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        value = _parse_list(value)
    return tuple(map(_parse_class, value if isinstance(value, list | tuple) else [value]))


def _parse_password(value: object) -> Secret:
    if isinstance(value, Secret):
        _encodable(value.reveal())
        return value
    raise InvalidValueError("Expected value to be a string")  # conceal() has wrapped every string


BOOLEAN = Kind("boolean", _parse_boolean)
STRING = Kind("string", _parse_string)
INT = Kind("int", _parse_int)
LONG = Kind("long", _parse_long)
DOUBLE = Kind("double", _parse_double)
LIST = Kind("list", _parse_list)
CLASS = Kind("class", _parse_class)
CLASSES = Kind("list", _parse_classes)
PASSWORD = Kind("password", _parse_password)


@dataclass(frozen=True, slots=True)
class Option:
    """One row: what a user may write under `key`, and what becomes of it."""

    key: str
    kind: Kind
    default: object  # as a user would write it; None: not set
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    also: float | None = None  # one value outside the range that is allowed too
    choices: tuple[str, ...] = ()
    ignore_case: bool = False
    non_empty: bool = False
    is_file: bool = False  # a path, to be found where the producer runs
    convert: Callable[[Any], object] | None = None  # from the checked value to the attribute's; may raise InvalidValueError

    def read(self, value: object) -> object:
        """The attribute's value for what a user wrote. Raises InvalidValueError."""
        try:
            parsed = self.kind.parse(value.strip() if isinstance(value, str) else value)
        except InvalidValueError as error:
            allowed = self.allowed()
            raise InvalidValueError(f"{error}; allowed: {allowed}" if allowed else str(error)) from None
        self._check(parsed)
        return parsed if self.convert is None else self.convert(parsed)

    def _check(self, value: Any) -> None:
        both = f" (allowed: {self.allowed()})" if self.at_least is not None and self.at_most is not None else ""
        if self.at_least is not None and value < self.at_least and value != self.also:
            raise InvalidValueError(f"Value must be at least {self.at_least}{both}")
        if self.at_most is not None and value > self.at_most:
            raise InvalidValueError(f"Value must be no more than {self.at_most}{both}")
        if self.non_empty and not value:
            raise InvalidValueError("String must be non-empty")
        if self.choices and not self._is_choice(value):
            how = "String must be one of (case insensitive)" if self.ignore_case else "String must be one of"
            raise InvalidValueError(f"{how}: {', '.join(self.choices)}")

    def _is_choice(self, value: str) -> bool:
        if self.ignore_case:
            return value.lower() in (choice.lower() for choice in self.choices)
        return value in self.choices

    def allowed(self) -> str:
        """The allowed values in words; empty when any value of the type will do."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind is BOOLEAN:
            return "true, false"
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least} to {self.at_most}" + ("" if self.also is None else f", or {self.also}")
        if self.at_least is not None:
            return f"at least {self.at_least}"
        return "not empty" if self.non_empty else ""


def option(key: str, kind: Kind, *, default: object, doc: str, **checks: Any) -> Any:
    """A dataclass field that carries its Option. Arguments: those of Option."""
    row = Option(key, kind, default, doc, **checks)
    return field(default=None if default is None else row.read(default), metadata={"option": row})


def rows_of(cls: type[Any]) -> dict[str, Option]:
    """The rows that a dataclass declares, by attribute name, in order of declaration."""
    return {each.name: each.metadata["option"] for each in fields(cls) if "option" in each.metadata}


def read_all(rows: Mapping[str, Option], given: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    """Attribute values of the options that were given and are right; the rest are told to `problems`."""
    values = {}
    for attribute, row in rows.items():
        if given.get(row.key) is None:
            continue
        if _holds_reference(given[row.key]):
            problems.append(_reference_problem(row.key))
            continue
        try:
            values[attribute] = row.read(given[row.key])
        except InvalidValueError as error:
            shown = HIDDEN if row.kind is PASSWORD else printable(_printable(given[row.key]))
            problems.append(f"Invalid value {shown} for configuration {row.key}: {error}")
    return values


# As Kafka's ConfigTransformer finds them.
_REFERENCE = re.compile(r"\$\{[^}:]*:[^}]*\}")


def _holds_reference(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_reference, value))
    if isinstance(value, Secret):
        return _REFERENCE.search(value.reveal()) is not None
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _reference_problem(key: str) -> str:
    return (
        f"The value of {key} holds a reference to a config provider, like ${{file:/path:key}}. Config providers are not"
        " supported, and the reference itself would be used as the value; set the value that it stands for"
    )


def _printable(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def conceal(mapping: Mapping[str, object], declared: Mapping[str, Option], prefix: str = "") -> dict[str, object]:
    """A copy in which every string that is, or by a misspelt key may be, a secret is wrapped."""
    plain = {prefix + key for key, row in declared.items() if row.kind is not PASSWORD}
    return {
        key: Secret(value.strip()) if isinstance(value, str) and key.startswith(prefix) and key not in plain else value
        for key, value in mapping.items()
    }


def config_error(problems: Sequence[str]) -> ConfigError:
    """One error that tells all problems."""
    return ConfigError(join_problems(problems))


def join_problems(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} things are wrong:" + "".join(f"\n  - {problem}" for problem in problems)


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.7)), None)


# --- PRODUCER OPTIONS -------------------------------------------------------------------------------------------------

_ADDRESS = re.compile(r"(?:[\w.%-]*://)?(?:\[(?P<ipv6>[0-9a-zA-Z:.%]+)\]|(?P<host>[\w.%-]+)):(?P<port>[0-9]+)", re.ASCII)


def addresses(servers: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """(host, port) of each entry, once; empty entries are skipped, as Java does."""
    found: dict[tuple[str, int], str] = {}
    for server in filter(None, servers):
        match = _ADDRESS.fullmatch(server)
        if match is None:
            raise InvalidValueError(
                f"Invalid url in bootstrap.servers: {server} (expected host:port, such as localhost:9092 or [::1]:9092)"
            )
        if int(match["port"]) > 65535:
            raise InvalidValueError(f"Invalid port in bootstrap.servers: {server} (allowed: 0 to 65535)")
        address = (match["ipv6"] or match["host"], int(match["port"]))
        if address in found:
            _warn("bootstrap.servers names %s more than once", server)
        found[address] = server
    return tuple(found)


STORE_TYPES = ("JKS", "PKCS12", "PEM")
_OLD_TLS_VERSIONS = ("TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello")


def _tls_versions(names: tuple[str, ...]) -> tuple[str, ...]:
    usable = tuple(name for name in names if name in ("TLSv1.2", "TLSv1.3"))
    unknown = [name for name in names if name not in usable and name not in _OLD_TLS_VERSIONS]
    if unknown or not usable:
        raise InvalidValueError("TLSv1.2, TLSv1.3 or both are expected")
    if len(usable) < len(names):
        _warn("ssl.enabled.protocols: only %s are offered; older versions are broken", ",".join(usable))
    return usable


def _identification(algorithm: str) -> str:
    if algorithm.lower() not in ("https", ""):
        raise InvalidValueError("https is expected, or nothing, which switches the check of host names off")
    return algorithm.lower()


ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
DEFAULT_PARTITIONER = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
UNIFORM_STICKY = "org.apache.kafka.clients.producer.UniformStickyPartitioner"
KAFKAS_PARTITIONERS = (ROUND_ROBIN, DEFAULT_PARTITIONER, UNIFORM_STICKY)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The producer's options, checked. An attribute is named as Kafka's key, with underscores for dots.

    Times are milliseconds, sizes are bytes. `given` holds the keys that the user set.
    """

    # fmt: off
    bootstrap_servers: tuple[tuple[str, int], ...] = option("bootstrap.servers", LIST, default="", convert=addresses,
        doc="Brokers to ask first, as host:port[,host:port]; the others are learnt from them. Required.")
    client_dns_lookup: str = option(
        "client.dns.lookup", STRING, default="use_all_dns_ips",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        doc="Whether every address of a host name is tried, or bootstrap names are resolved to canonical names first.")
    client_id: str = option("client.id", STRING, default="", convert=_protocol_string,
        doc="Name that brokers see in logs and quotas; empty: producer-N.")
    client_rack: str = option("client.rack", STRING, default="", doc="Rack of this client, for partitioner.rack.aware.")

    # what is promised
    acks: int = option(
        "acks", STRING, default="all", choices=("all", "-1", "0", "1"), convert=lambda text: -1 if text == "all" else int(text),
        doc="Who must have a record before it counts as written: all in-sync replicas (all, -1), the leader (1), nobody (0).")
    enable_idempotence: bool = option("enable.idempotence", BOOLEAN, default=True,
        doc="Brokers drop what a retry would write twice and keep the order; needs acks=all, retries and at most 5 requests "
            "in flight.")
    retries: int = option("retries", INT, default=INT_MAX, at_least=0, at_most=INT_MAX,
        doc="How often a batch is sent again; delivery.timeout.ms ends it sooner.")
    max_in_flight_requests_per_connection: int = option("max.in.flight.requests.per.connection", INT, default=5, at_least=1,
        doc="Unanswered requests per broker; 1 keeps the order without idempotence too.")
    delivery_timeout_ms: int = option("delivery.timeout.ms", INT, default=120_000, at_least=0,
        doc="Time from send to acknowledgement or failure; at least linger.ms + request.timeout.ms.")
    request_timeout_ms: int = option("request.timeout.ms", INT, default=30_000, at_least=0,
        doc="How long one request may stay unanswered.")
    max_block_ms: int = option("max.block.ms", LONG, default=60_000, at_least=0,
        doc="How long send may wait for metadata, and for memory each time it needs some.")

    # batches and memory
    linger_ms: int = option("linger.ms", LONG, default=5, at_least=0, convert=lambda ms: min(ms, INT_MAX),
        doc="How long a batch that is not full waits for more records.")
    batch_size: int = option("batch.size", INT, default=16_384, at_least=0, convert=lambda size: max(size, 1),
        doc="Bytes of a full batch of one partition; also how long the sticky partitioner stays.")
    buffer_memory: int = option("buffer.memory", LONG, default=33_554_432, at_least=0,
        doc="Memory for records that wait to be sent; when it is used up, send waits.")
    max_request_size: int = option("max.request.size", INT, default=1_048_576, at_least=0,
        doc="Largest request, and largest single record before compression.")

    # compression
    compression_type: str = option("compression.type", STRING, default="none", choices=("none", "gzip", "snappy", "lz4", "zstd"),
        doc="Codec of whole batches.")
    compression_gzip_level: int = option("compression.gzip.level", INT, default=-1, at_least=1, at_most=9, also=-1,
        doc="gzip level; -1 is the codec's own default.")
    compression_lz4_level: int = option("compression.lz4.level", INT, default=9, at_least=1, at_most=17,
        doc="lz4 level; 9 is the fast compressor, any other the high-compression one.")
    compression_zstd_level: int = option("compression.zstd.level", INT, default=3, at_least=-131_072, at_most=22,
        doc="zstd level.")

    # partitions
    partitioner_class: object = option("partitioner.class", CLASS, default=None,
        doc="Dotted name of a partitioner written in Python (see Plug-ins), or Java name of one of Kafka's; not set: hash of the "
            "key, sticky for records without one.")
    partitioner_ignore_keys: bool = option("partitioner.ignore.keys", BOOLEAN, default=False,
        doc="Treat every record as one without a key.")
    partitioner_adaptive_partitioning_enable: bool = option("partitioner.adaptive.partitioning.enable", BOOLEAN, default=True,
        doc="Give records without a key to slow partitions less often.")
    partitioner_availability_timeout_ms: int = option("partitioner.availability.timeout.ms", LONG, default=0, at_least=0,
        doc="A broker that takes nothing for so long gets no records without a key; 0: off.")
    partitioner_rack_aware: bool = option("partitioner.rack.aware", BOOLEAN, default=False,
        doc="Records without a key go to leaders in client.rack, when there are any.")

    # connections
    send_buffer_bytes: int = option("send.buffer.bytes", INT, default=131_072, at_least=-1,
        doc="Size of the sockets' send buffers; -1: the system's.")
    receive_buffer_bytes: int = option("receive.buffer.bytes", INT, default=32_768, at_least=-1,
        doc="Size of the sockets' receive buffers; -1: the system's.")
    reconnect_backoff_ms: int = option("reconnect.backoff.ms", LONG, default=50, at_least=0,
        doc="Wait before a broker is connected again; doubles with each failure.")
    reconnect_backoff_max_ms: int = option("reconnect.backoff.max.ms", LONG, default=1000, at_least=0,
        doc="Where that doubling ends.")
    retry_backoff_ms: int = option("retry.backoff.ms", LONG, default=100, at_least=0,
        doc="Wait before a failed request is repeated; doubles with each failure.")
    retry_backoff_max_ms: int = option("retry.backoff.max.ms", LONG, default=1000, at_least=0, doc="Where that doubling ends.")
    socket_connection_setup_timeout_ms: int = option("socket.connection.setup.timeout.ms", LONG, default=10_000,
        doc="How long connecting may take; doubles with each failure.")
    socket_connection_setup_timeout_max_ms: int = option("socket.connection.setup.timeout.max.ms", LONG, default=30_000,
        doc="Where that doubling ends.")
    connections_max_idle_ms: int = option("connections.max.idle.ms", LONG, default=540_000,
        doc="A connection unused for so long is closed.")

    # metadata
    metadata_max_age_ms: int = option("metadata.max.age.ms", LONG, default=300_000, at_least=0,
        doc="Metadata older than this is asked for again.")
    metadata_max_idle_ms: int = option("metadata.max.idle.ms", LONG, default=300_000, at_least=5000,
        doc="A topic not written to for so long is forgotten.")
    metadata_recovery_strategy: str = option(
        "metadata.recovery.strategy", STRING, default="rebootstrap", choices=("none", "rebootstrap"), ignore_case=True,
        convert=str.lower,
        doc="What to do when no known broker answers: give up on them (none) or start again from bootstrap.servers.")
    metadata_recovery_rebootstrap_trigger_ms: int = option(
        "metadata.recovery.rebootstrap.trigger.ms", LONG, default=300_000, at_least=0,
        doc="After so long without metadata, start again from bootstrap.servers.")

    # metrics
    metrics_sample_window_ms: int = option("metrics.sample.window.ms", LONG, default=30_000, at_least=0,
        doc="Length of a window of metrics.num.samples.")
    metrics_num_samples: int = option("metrics.num.samples", INT, default=2, at_least=1,
        doc="Windows over which averages, maxima and rates of metrics() are taken.")

    # transactions
    transactional_id: str | None = option("transactional.id", STRING, default=None, non_empty=True, convert=_protocol_string,
        doc="Not available in this version.")
    transaction_timeout_ms: int = option("transaction.timeout.ms", INT, default=60_000,
        doc="When the coordinator aborts an open transaction.")
    transaction_two_phase_commit_enable: bool = option(
        "transaction.two.phase.commit.enable", BOOLEAN, default=False,
        doc="Not available in this version.")
    interceptor_classes: tuple[object, ...] = option("interceptor.classes", CLASSES, default="",
        convert=lambda names: tuple(name for name in names if name not in ("", None)),
        doc="Dotted names of interceptors written in Python, in the order in which they see the rows (see Plug-ins).")

    # security
    security_protocol: str = option(
        "security.protocol", STRING, default="PLAINTEXT", choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        ignore_case=True, convert=str.upper,
        doc="How brokers are spoken to: with TLS (SSL, SASL_SSL) or without, with a login (SASL_…) or without.")
    ssl_protocol: str = option("ssl.protocol", STRING, default="TLSv1.3", choices=("TLSv1.3", "TLSv1.2", "TLS"),
        doc="Highest TLS version; TLS: any.")
    ssl_enabled_protocols: tuple[str, ...] = option("ssl.enabled.protocols", LIST, default="TLSv1.2,TLSv1.3",
        convert=_tls_versions,
        doc="TLS versions to offer; those before TLSv1.2 are left out.")
    ssl_cipher_suites: tuple[str, ...] = option("ssl.cipher.suites", LIST, default="",
        doc="Cipher suites to offer, by Java's names or OpenSSL's; empty: the library's.")
    ssl_keystore_type: str = option("ssl.keystore.type", STRING, default="JKS", choices=STORE_TYPES, ignore_case=True,
        convert=str.upper,
        doc="File format of the keystore; not set: what the file is, PEM or PKCS12. JKS is refused with the command that "
            "converts it.")
    ssl_keystore_location: str | None = option("ssl.keystore.location", STRING, default=None, is_file=True,
        doc="File with this client's certificate and key, on each executor, or sent with --files.")
    ssl_keystore_password: Secret | None = option("ssl.keystore.password", PASSWORD, default=None,
        doc="Password of a PKCS12 keystore.")
    ssl_keystore_key: Secret | None = option("ssl.keystore.key", PASSWORD, default=None,
        doc="This client's private key as PEM text.")
    ssl_keystore_certificate_chain: Secret | None = option("ssl.keystore.certificate.chain", PASSWORD, default=None,
        doc="This client's certificates as PEM text.")
    ssl_key_password: Secret | None = option("ssl.key.password", PASSWORD, default=None,
        doc="Password of a PEM private key that is encrypted.")
    ssl_truststore_type: str = option("ssl.truststore.type", STRING, default="JKS", choices=STORE_TYPES, ignore_case=True,
        convert=str.upper,
        doc="File format of the truststore, as ssl.keystore.type.")
    ssl_truststore_location: str | None = option("ssl.truststore.location", STRING, default=None, is_file=True,
        doc="File with the certificates to trust, on each executor, or sent with --files; not set: the system's.")
    ssl_truststore_password: Secret | None = option("ssl.truststore.password", PASSWORD, default=None,
        doc="Password of a PKCS12 truststore.")
    ssl_truststore_certificates: Secret | None = option("ssl.truststore.certificates", PASSWORD, default=None,
        doc="The certificates to trust as PEM text.")
    ssl_endpoint_identification_algorithm: str = option("ssl.endpoint.identification.algorithm", STRING, default="https",
        convert=_identification,
        doc="https: a broker's certificate must carry its host name; empty: not checked.")
    sasl_mechanism: str = option("sasl.mechanism", STRING, default="GSSAPI", non_empty=True,
        doc="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM.")
    sasl_jaas_config: Secret | None = option("sasl.jaas.config", PASSWORD, default=None,
        doc="Login in JAAS syntax, as Java clients take it: the login module of Kafka that fits sasl.mechanism, shaded or not.")
    sasl_login_callback_handler_class: str | None = option(
        "sasl.login.callback.handler.class", STRING, default=None, non_empty=True,
        doc="OAUTHBEARER: dotted name of a Python function that returns a token; Kafka's own Java names are understood too.")
    sasl_client_callback_handler_class: str | None = option(
        "sasl.client.callback.handler.class", STRING, default=None, non_empty=True,
        doc="Accepted for AWS_MSK_IAM, whose Java clients need it; without effect.")
    sasl_kerberos_service_name: str | None = option("sasl.kerberos.service.name", STRING, default=None,
        doc="Kerberos service name of the brokers.")
    sasl_login_connect_timeout_ms: int | None = option("sasl.login.connect.timeout.ms", INT, default=None,
        doc="How long connecting to the token endpoint may take; not set: 10 seconds.")
    sasl_login_read_timeout_ms: int | None = option("sasl.login.read.timeout.ms", INT, default=None,
        doc="How long its whole answer may take; not set: 10 seconds.")
    sasl_login_retry_backoff_ms: int = option("sasl.login.retry.backoff.ms", LONG, default=100,
        doc="Wait before the token endpoint is asked again.")
    sasl_login_retry_backoff_max_ms: int = option("sasl.login.retry.backoff.max.ms", LONG, default=10_000,
        doc="How long the token endpoint is asked again and again.")
    sasl_login_refresh_window_factor: float = option(
        "sasl.login.refresh.window.factor", DOUBLE, default=0.8, at_least=0.5, at_most=1.0,
        doc="Part of a token's lifetime after which it is renewed when it is next needed.")
    sasl_login_refresh_window_jitter: float = option(
        "sasl.login.refresh.window.jitter", DOUBLE, default=0.05, at_least=0.0, at_most=0.25,
        doc="Random addition to that part.")
    sasl_login_refresh_min_period_seconds: int = option(
        "sasl.login.refresh.min.period.seconds", INT, default=60, at_least=0, at_most=900,
        doc="Shortest time between renewals.")
    sasl_login_refresh_buffer_seconds: int = option(
        "sasl.login.refresh.buffer.seconds", INT, default=300, at_least=0, at_most=3600,
        doc="A token is renewed at least so long before it expires.")
    sasl_oauthbearer_token_endpoint_url: str | None = option("sasl.oauthbearer.token.endpoint.url", STRING, default=None,
        doc="Where OAuth tokens are issued: https://…, or file:///… for a file that holds one.")
    sasl_oauthbearer_jwt_retriever_class: str | None = option(
        "sasl.oauthbearer.jwt.retriever.class", STRING, default=None, non_empty=True,
        doc="Java name of DefaultJwtRetriever, ClientCredentialsJwtRetriever, FileJwtRetriever or JwtBearerJwtRetriever.")
    sasl_oauthbearer_scope: str | None = option("sasl.oauthbearer.scope", STRING, default=None, doc="OAuth scope to ask for.")
    sasl_oauthbearer_client_credentials_client_id: str | None = option(
        "sasl.oauthbearer.client.credentials.client.id", STRING, default=None,
        doc="OAuth client id.")
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = option(
        "sasl.oauthbearer.client.credentials.client.secret", PASSWORD, default=None,
        doc="OAuth client secret.")
    sasl_oauthbearer_scope_claim_name: str = option("sasl.oauthbearer.scope.claim.name", STRING, default="scope",
        doc="Claim of the token that holds the scope.")
    sasl_oauthbearer_sub_claim_name: str = option("sasl.oauthbearer.sub.claim.name", STRING, default="sub",
        doc="Claim of the token that holds the subject.")
    sasl_oauthbearer_header_urlencode: bool = option("sasl.oauthbearer.header.urlencode", BOOLEAN, default=False,
        doc="URL-encode client id and secret in the authorization header.")
    sasl_oauthbearer_assertion_algorithm: str = option(
        "sasl.oauthbearer.assertion.algorithm", STRING, default="RS256", choices=("RS256", "ES256"), ignore_case=True,
        doc="How a JWT assertion is signed.")
    sasl_oauthbearer_assertion_claim_aud: str | None = option("sasl.oauthbearer.assertion.claim.aud", STRING, default=None,
        doc="Audience claim of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_exp_seconds: int = option(
        "sasl.oauthbearer.assertion.claim.exp.seconds", INT, default=300, at_least=0, at_most=86_400,
        doc="Lifetime of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_iss: str | None = option("sasl.oauthbearer.assertion.claim.iss", STRING, default=None,
        doc="Issuer claim of a JWT assertion.")
    sasl_oauthbearer_assertion_claim_jti_include: bool = option(
        "sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, default=False,
        doc="Whether a JWT assertion carries an id.")
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = option(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", INT, default=60, at_least=0, at_most=3600,
        doc="How long before now a JWT assertion becomes valid.")
    sasl_oauthbearer_assertion_claim_sub: str | None = option("sasl.oauthbearer.assertion.claim.sub", STRING, default=None,
        doc="Subject claim of a JWT assertion.")
    sasl_oauthbearer_assertion_file: str | None = option("sasl.oauthbearer.assertion.file", STRING, default=None, is_file=True,
        doc="File with a ready JWT assertion.")
    sasl_oauthbearer_assertion_private_key_file: str | None = option(
        "sasl.oauthbearer.assertion.private.key.file", STRING, default=None, is_file=True,
        doc="File with the key that signs JWT assertions.")
    sasl_oauthbearer_assertion_private_key_passphrase: Secret | None = option(
        "sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, default=None,
        doc="Passphrase of that key.")
    sasl_oauthbearer_assertion_template_file: str | None = option(
        "sasl.oauthbearer.assertion.template.file", STRING, default=None, is_file=True,
        doc="File with more headers and claims for JWT assertions.")

    # fmt: on
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    plugin_options: Mapping[str, object] = field(default_factory=dict, repr=False)  # keys that only a plug-in may know; wrapped

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> ProducerConfig:
        """Read a configuration by Kafka's keys; values may be str, int, bool or list, and None means not set.

        Strings are read as Java reads them: trimmed, booleans in any case, lists by comma. A key that is unknown or has no
        effect here is a warning in the log. Raises one ConfigError for all problems. Never blocks: host names are not looked up.
        """
        mapping = cls.conceal(mapping)
        problems: list[str] = []
        config = cls.check(mapping, problems)
        if problems:
            raise config_error(problems)
        return config

    @staticmethod
    def conceal(mapping: Mapping[str, object]) -> dict[str, object]:
        """A copy with every secret wrapped, for whoever keeps a mapping in a local."""
        return conceal(mapping, PRODUCER_KEYS)

    @classmethod
    def check(
        cls, mapping: Mapping[str, object], problems: list[str], *, defaults: Mapping[str, object] | None = None, prefix: str = ""
    ) -> ProducerConfig:
        """Like from_mapping, but add the problems to a list instead of raising; the result then is not to be used.

        Args:
            mapping: Kafka's keys, secrets wrapped (see `conceal`).
            defaults: by attribute name, in place of Kafka's defaults.
            prefix: what the user wrote before each key, for the log.
        """
        given = {key: value for key, value in mapping.items() if value is not None}
        rows = rows_of(cls)
        values: dict[str, Any] = {each.name: each.default for each in fields(cls)} | dict(defaults or {})
        read = read_all(rows, given, problems)
        malformed = {row.key for attribute, row in rows.items() if row.key in given and attribute not in read}
        values |= read
        values["given"] = frozenset(given) & PRODUCER_KEYS.keys()
        values["plugin_options"] = _keys_for_plugins(given, prefix) if _has_plugins(values) else {}
        if "config.providers" in given:  # without it, Java would not look for references either
            problems.extend(_reference_problem(key) for key, value in values["plugin_options"].items() if _holds_reference(value))
        _warn_of_keys_without_effect([key for key in given if key not in values["plugin_options"]], prefix)
        for keys, rule in RULES:
            if malformed.isdisjoint(keys):
                problems.extend(rule(values))
        return cls(**values)

    def to_mapping(self) -> dict[str, object]:
        """What from_mapping turns into an equal configuration, without any warning: for another process. Secrets stay wrapped.

        A client.id that was not given is left out, so that each producer finds its own.
        """
        mapping: dict[str, object] = {}
        for each in fields(self):
            row: Option | None = each.metadata.get("option")
            value = getattr(self, each.name)
            if row is not None and (row.key in self.given or (value != each.default and row.key != "client.id")):
                mapping[row.key] = value
        mapping["bootstrap.servers"] = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap_servers
        ]
        return {key: value for key, value in (mapping | dict(self.plugin_options)).items() if value is not None}

    def for_plugins(self) -> dict[str, object]:
        """What a plug-in's `configure` gets: the keys that are set, as they were read, the client.id, and its own keys.

        Kafka's secrets are wrapped (`reveal()`); values of keys that Kafka does not know are as the user wrote them.
        """
        own = {key: value.reveal() if isinstance(value, Secret) else value for key, value in self.plugin_options.items()}
        return self.to_mapping() | {"client.id": self.client_id} | own


PRODUCER_KEYS: dict[str, Option] = {row.key: row for row in rows_of(ProducerConfig).values()}

# The options whose values are paths, to be found where the producer runs.
FILE_KEYS: tuple[str, ...] = tuple(key for key, row in PRODUCER_KEYS.items() if row.is_file)


def file_stamp(name: str) -> tuple[int, int, int] | None:
    """What tells one content of a file from the next: certificates are renewed in place. None when it cannot be looked at,
    of which whoever reads it tells.
    """
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


_JVM = "it names something of the Java virtual machine"
_BYTES = "keys and values are handed over as bytes or text"
_METRICS = "metrics are read with KafkaProducer.metrics()"
_TICKETS = "the Kerberos library renews tickets of a keytab, and something else those of a ticket cache"
_BROKERS = "it concerns brokers, which check tokens"
_NEWER = "it is new in Kafka 4.4 and not known here"

_PROVIDERS = "config providers are not supported; a value that refers to one is an error"

# Keys of a released Kafka that do nothing here, and why. Each is a warning; the sink refuses the two serializers, as Spark does.
NO_EFFECT: dict[str, str] = {
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "auto.include.jmx.reporter": _METRICS,
    "enable.metrics.push": "telemetry is not sent to brokers",
    "metric.reporters": _METRICS,
    "metrics.recording.level": "all metrics are recorded, at any level",
    "config.providers": _PROVIDERS,
    "security.providers": _JVM,
    "ssl.provider": _JVM,
    "ssl.keymanager.algorithm": _JVM,
    "ssl.trustmanager.algorithm": _JVM,
    "ssl.secure.random.implementation": _JVM,
    "ssl.engine.factory.class": _JVM,
    "sasl.login.class": _JVM,
    "sasl.oauthbearer.jwt.validator.class": _JVM,
    "sasl.kerberos.kinit.cmd": _TICKETS,
    "sasl.kerberos.min.time.before.relogin": _TICKETS,
    "sasl.kerberos.ticket.renew.jitter": _TICKETS,
    "sasl.kerberos.ticket.renew.window.factor": _TICKETS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "bootstrap.resolve.timeout.ms": _NEWER,
    "buffer.memory.allocation.strategy": _NEWER,
    "metadata.cluster.check.enable": _NEWER,
}

# Keys of Kafka's consumers alone: jobs hand one set of options to both sides. A warning each, and no guess what else was meant.
_OF_CONSUMERS = frozenset(
    (
        *("allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "default.api.timeout.ms"),
        *("enable.auto.commit", "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id"),
        *("group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "isolation.level"),
        *("key.deserializer", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records"),
        *("partition.assignment.strategy", "session.timeout.ms", "value.deserializer"),
    )
)
_FOR_READING = "it is for reading from Kafka"


def _has_plugins(values: Mapping[str, Any]) -> bool:
    return bool(values["interceptor_classes"]) or values["partitioner_class"] not in (None, *KAFKAS_PARTITIONERS)


def _keys_for_plugins(given: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Unknown keys, for plug-ins read them as in Java; those that look misspelt are warned of all the same."""
    unknown = {
        key: value
        for key, value in given.items()
        if key not in PRODUCER_KEYS and key not in NO_EFFECT and not key.startswith("config.providers.")
    }
    for key in unknown.keys() - _OF_CONSUMERS:
        nearest = nearest_key(key, [*PRODUCER_KEYS])
        if nearest:
            _warn("Option '%s%s' is left to the plug-ins; did you mean '%s%s'?", prefix, key, prefix, nearest)
    return unknown


def _warn_of_keys_without_effect(given: Sequence[str], prefix: str) -> None:
    for key in given:
        if key in NO_EFFECT:
            _warn("Option '%s%s' has no effect: %s", prefix, key, NO_EFFECT[key])
        elif key.startswith("config.providers."):  # the class of one, and its parameters
            _warn("Option '%s%s' has no effect: %s", prefix, key, _PROVIDERS)
        elif key in _OF_CONSUMERS:
            _warn("Option '%s%s' has no effect: %s", prefix, key, _FOR_READING)
        elif key not in PRODUCER_KEYS:
            nearest = nearest_key(key, [*PRODUCER_KEYS, *NO_EFFECT])
            hint = f"; did you mean '{prefix}{nearest}'?" if nearest else ""
            _warn("Option '%s%s' is not known to the Kafka producer and has no effect%s", prefix, key, hint)


# --- RULES ------------------------------------------------------------------------------------------------------------
# Each gets the values by attribute name, may change them, and yields what is wrong. In Java: ProducerConfig's
# postProcessParsedConfig and KafkaProducer.configureDeliveryTimeout.


def _other_defaults_make_room(values: dict[str, Any]) -> Iterator[str]:
    """A default that is not Kafka's own shrinks, to Kafka's at least, before it contradicts what the user set."""
    rows = rows_of(ProducerConfig)
    for attribute, room in (
        ("linger_ms", values["delivery_timeout_ms"] - values["request_timeout_ms"]),
        ("batch_size", values["max_request_size"]),
    ):
        row = rows[attribute]
        if row.key not in values["given"]:
            values[attribute] = min(values[attribute], max(room, row.default))
    yield from ()


def _needs_bootstrap_servers(values: dict[str, Any]) -> Iterator[str]:
    if not values["bootstrap_servers"]:
        yield (
            "Kafka option 'bootstrap.servers' is not set. Name at least one broker as host:port;"
            ' in Spark: .option("kafka.bootstrap.servers", "host:9092")'
        )


def _idempotence_conditions(values: dict[str, Any]) -> Iterator[str]:
    if not values["enable_idempotence"]:
        return
    if values["max_in_flight_requests_per_connection"] > 5:  # a broker remembers the last 5 batches of a producer and partition
        yield (
            "To use the idempotent producer, max.in.flight.requests.per.connection must be set to at most 5."
            f" Current value is {values['max_in_flight_requests_per_connection']}. Or set enable.idempotence=false."
        )
    broken = []
    if values["retries"] == 0:
        broken.append(("Must set retries to non-zero when using the idempotent producer.", "retries is set to 0"))
    if values["acks"] != -1:
        broken.append(
            (
                "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence.",
                f"acks is set to {values['acks']}, not set to 'all'",
            )
        )
    for conflict, reason in broken:
        if "enable.idempotence" in values["given"]:
            yield conflict
        else:
            logger.info("Idempotence will be disabled because %s.", reason)
            values["enable_idempotence"] = False


def _transactions_need_idempotence(values: dict[str, Any]) -> Iterator[str]:
    if values["transactional_id"] is not None and not values["enable_idempotence"]:
        yield "Cannot set a transactional.id without also enabling idempotence."
    if values["transaction_two_phase_commit_enable"] and "transaction.timeout.ms" in values["given"]:
        yield "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true."


def _delivery_outlasts_a_request(values: dict[str, Any]) -> Iterator[str]:
    least_ms = min(values["linger_ms"] + values["request_timeout_ms"], INT_MAX)
    if values["delivery_timeout_ms"] >= least_ms:
        return
    if "delivery.timeout.ms" in values["given"]:
        yield (
            "delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms;"
            f" it is {values['delivery_timeout_ms']}, they are {values['linger_ms']} + {values['request_timeout_ms']}"
        )
    else:
        _warn(
            "delivery.timeout.ms is raised from %d to %d, which is linger.ms + request.timeout.ms",
            values["delivery_timeout_ms"],
            least_ms,
        )
        values["delivery_timeout_ms"] = least_ms


def _backoff_grows(values: dict[str, Any]) -> Iterator[str]:
    given = values["given"]
    if "reconnect.backoff.ms" in given and "reconnect.backoff.max.ms" not in given:
        values["reconnect_backoff_max_ms"] = values["reconnect_backoff_ms"]
    for first, longest in (
        ("retry.backoff.ms", "retry.backoff.max.ms"),
        ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
    ):
        if values[_attribute(first)] > values[_attribute(longest)]:
            _warn("%s is greater than %s: it stays at %d ms", first, longest, values[_attribute(longest)])
            values[_attribute(first)] = values[_attribute(longest)]
    yield from ()


def _stores_are_whole(values: dict[str, Any]) -> Iterator[str]:
    """In Java: DefaultSslEngineFactory.createKeystore and createTruststore."""
    if values["security_protocol"] not in ("SSL", "SASL_SSL"):
        return

    def given(key: str) -> bool:
        return values[_attribute(key)] not in (None, "")

    for key, needed in (
        ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
        ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
        ("ssl.keystore.password", "ssl.keystore.location"),
        ("ssl.truststore.password", "ssl.truststore.location"),
    ):
        if given(key) and not given(needed):
            yield f"{key} is set, but {needed} is not; set both or neither"
    for text, store in (("ssl.keystore.key", "ssl.keystore"), ("ssl.truststore.certificates", "ssl.truststore")):
        if given(text) and given(f"{store}.location"):
            yield f"Both {text} and {store}.location are set; remove one of them"
        if given(text) and f"{store}.type" in values["given"] and values[_attribute(f"{store}.type")] != "PEM":
            yield f"{text} is PEM, but {store}.type={values[_attribute(f'{store}.type')]}; set it to PEM, or remove it"
    if values["ssl_protocol"] == "TLSv1.2" and "TLSv1.2" not in values["ssl_enabled_protocols"]:
        yield "ssl.protocol=TLSv1.2 leaves nothing of ssl.enabled.protocols=TLSv1.3; change one of them"


def _sasl_is_complete(values: dict[str, Any]) -> Iterator[str]:
    yield from sasl_config.problems(values)
    used = values["sasl_mechanism"] == sasl_config.AWS_MSK_IAM and values["security_protocol"].startswith("SASL_")
    if values["sasl_client_callback_handler_class"] is not None and not used:
        _warn("Option 'sasl.client.callback.handler.class' has no effect: %s", _JVM)


def _removed_partitioners(values: dict[str, Any]) -> Iterator[str]:
    name = values["partitioner_class"]
    if name in (DEFAULT_PARTITIONER, UNIFORM_STICKY):
        logger.info("partitioner.class=%s was removed in Kafka 4.0; the built-in partitioner does its work", name)
        values["partitioner_class"] = None
        values["partitioner_ignore_keys"] |= name == UNIFORM_STICKY
    yield from ()


def _plugins_are_python(values: dict[str, Any]) -> Iterator[str]:
    """Only the form of a name is judged here: a class is loaded where it runs, which for Spark is in the tasks."""
    partitioner = values["partitioner_class"]
    if partitioner not in (None, *KAFKAS_PARTITIONERS):
        yield from _name_problem("partitioner.class", partitioner, f"{_OF_KAFKA}, or write a `partition` column")
    for interceptor in values["interceptor_classes"]:
        yield from _name_problem("interceptor.classes", interceptor, "or remove it")


_OF_KAFKA = f"or use one that is built in: {ROUND_ROBIN}, or none for Kafka's own choice (hash of the key)"


def _name_problem(key: str, name: object, otherwise: str) -> Iterator[str]:
    if not isinstance(name, str):
        return
    if is_java_class(name):
        yield (
            f"{key}={name} is a Java class, which cannot be loaded here: write it in Python (README, Plug-ins) and name it"
            f" package.module.Class, {otherwise}"
        )
    elif not is_dotted_name(name):
        yield f"{key}={name} is no dotted name: name a Python class package.module.Class (README, Plug-ins), {otherwise}"


def _not_available(values: dict[str, Any]) -> Iterator[str]:
    for key, is_asked_for, remedy in NOT_AVAILABLE:
        value = values[_attribute(key)]
        if is_asked_for(value):
            yield f"{key}={_printable(value)} is not available in this version: {remedy}"


# What is declared but not built: (key, which values of it are refused, what to do instead).
NOT_AVAILABLE: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("transaction.two.phase.commit.enable", bool, "no released broker offers it (KIP-939); remove it"),
)


def _name_the_client(values: dict[str, Any]) -> Iterator[str]:
    if "client.id" not in values["given"]:
        values["client_id"] = f"producer-{values['transactional_id'] or next(_client_numbers)}"
        if len(values["client_id"].encode()) > MAX_STRING_BYTES:
            yield "transactional.id is too long to be part of a client.id; shorten it, or set client.id"


_client_numbers = count(1)

# (the keys a rule looks at; it is left out when one of them is malformed, the rule)
RULES: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any]], Iterator[str]]], ...] = (
    (("delivery.timeout.ms", "request.timeout.ms", "max.request.size"), _other_defaults_make_room),
    (("bootstrap.servers",), _needs_bootstrap_servers),
    (("enable.idempotence", "acks", "retries", "max.in.flight.requests.per.connection"), _idempotence_conditions),
    (("transactional.id", "enable.idempotence", "transaction.two.phase.commit.enable"), _transactions_need_idempotence),
    (("delivery.timeout.ms", "linger.ms", "request.timeout.ms"), _delivery_outlasts_a_request),
    (("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"), _backoff_grows),
    (
        ("security.protocol", "ssl.protocol", "ssl.enabled.protocols", "ssl.keystore.type", "ssl.truststore.type"),
        _stores_are_whole,
    ),
    ((), _not_available),
    (("partitioner.class", "interceptor.classes"), _plugins_are_python),
    (("security.protocol", "sasl.mechanism", "sasl.jaas.config"), _sasl_is_complete),
    (("partitioner.class",), _removed_partitioners),
    (("client.id",), _name_the_client),
)


def _attribute(key: str) -> str:
    return key.replace(".", "_")


# --- SINK OPTIONS -----------------------------------------------------------------------------------------------------

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
NO_GUARANTEE = "none"

# A Spark task writes in bulk: fewer and fuller batches. By attribute name; what the user sets always wins.
BULK_DEFAULTS: dict[str, object] = {"batch_size": 524_288, "linger_ms": 20, "send_buffer_bytes": -1}

PRODUCER_PREFIX = "kafka."
_ADDED_BY_SPARK = ("checkpointlocation", "queryname")  # Spark hands them to every sink

# What Spark's own Kafka connector takes for reading, lower-cased: jobs hand one set of options to both sides.
_OF_SPARKS_SOURCE = frozenset(
    (
        *("assign", "subscribe", "subscribepattern", "startingtimestamp", "startingoffsets", "startingoffsetsbytimestamp"),
        *("startingoffsetsbytimestampstrategy", "endingtimestamp", "endingoffsets", "endingoffsetsbytimestamp"),
        *("failondataloss", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"),
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions", "maxrecordsperpartition"),
        "groupidprefix",
    )
)

TOPIC_NAME_RULE = "a topic's name is 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and not . or .."
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None


def _topic(name: str) -> str:
    if not is_topic_name(name):
        raise InvalidValueError(TOPIC_NAME_RULE)
    return name


def _delivery_guarantee(name: str) -> str:
    if name.lower() == EXACTLY_ONCE:
        raise InvalidValueError(
            f"not available in this version; use {AT_LEAST_ONCE}, and make readers expect duplicates after a retried task"
        )
    return name.lower()


FAIL, SKIP, DEAD_LETTER = FATES = ("fail", "skip", "deadLetter")


def _fate(name: str) -> str:
    return next(fate for fate in FATES if fate.lower() == name.lower())


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a Spark user writes with `.option(…)`, checked. Names are found in any case, as everywhere in Spark."""

    # fmt: off
    topic: str | None = option("topic", STRING, default=None, convert=_topic,
        doc="Topic of all rows; goes before a `topic` column.")
    delivery_guarantee: str = option(
        "deliveryGuarantee", STRING, default=AT_LEAST_ONCE, choices=(AT_LEAST_ONCE, NO_GUARANTEE, EXACTLY_ONCE), ignore_case=True,
        convert=_delivery_guarantee,
        doc="at-least-once: a task succeeds only when every row is acknowledged by all in-sync replicas; none: as kafka.acks "
            "says. exactly-once is not available in this version.")
    transactional_id_prefix: str | None = option("transactionalIdPrefix", STRING, default=None, non_empty=True,
        doc="Begins the transactional ids of deliveryGuarantee=exactly-once, which is not available in this version.")
    include_headers: bool = option("includeHeaders", BOOLEAN, default=False,
        doc="Accepted as Spark's own Kafka sink does, without effect: a `headers` column is always written.")
    include_timestamp: bool = option("includeTimestamp", BOOLEAN, default=False,
        doc="Write the `timestamp` column (timestamp, or bigint in milliseconds) as the records' timestamp; brokers delete "
            "records by it.")
    on_record_too_large: str = option("onRecordTooLarge", STRING, default=FAIL, choices=FATES, ignore_case=True, convert=_fate,
        doc="What becomes of a row that is larger than max.request.size, or than the topic takes: the task fails, or the row is "
            "left out, or it goes to deadLetterTopic.")
    on_invalid_record: str = option("onInvalidRecord", STRING, default=FAIL, choices=FATES, ignore_case=True, convert=_fate,
        doc="The same for a row that cannot be written as it is (null or impossible topic, a topic or partition that does not "
            "exist, negative timestamp, header without key) or that the broker refuses by itself (INVALID_RECORD, "
            "INVALID_TIMESTAMP).")
    dead_letter_topic: str | None = option("deadLetterTopic", STRING, default=None, convert=_topic,
        doc="Topic for rows that cannot be written: key, value and headers as they were, and more headers that say why.")
    max_records_per_second: int | None = option("maxRecordsPerSecond", LONG, default=None, at_least=1,
        doc="No task sends faster than this; a job writes at most this times the tasks that run at once.")
    max_bytes_per_second: int | None = option("maxBytesPerSecond", LONG, default=None, at_least=1,
        doc="The same for bytes of keys, values and headers, before compression.")
    report_path: str | None = option("reportPath", STRING, default=None, non_empty=True,
        doc="File on the driver to which each commit appends one line of JSON: rows, bytes, offsets.")
    on_commit: str | None = option("onCommit", STRING, default=None, non_empty=True,
        doc="Dotted name of a function, importable on the driver, that each commit calls with its CommitSummary: rows, bytes, "
            "counters, offset ranges.")
    producer_cache_timeout_ms: int = option("producerCacheTimeoutMs", LONG, default=60_000, at_least=0,
        doc="How long a task's producer stays connected for the next task in its Python worker; 0: it is closed with the task.")
    # fmt: on
    producer: ProducerConfig = field(default_factory=ProducerConfig)

    @classmethod
    def check(cls, options: Mapping[str, str], problems: list[str]) -> SinkOptions:
        """Read all options of a write; add what is wrong to `problems`, after which the result is not to be used.

        Unknown options of the sink are problems, unknown ones of the producer are warnings in the log. Never blocks.
        """
        given = conceal({name.lower(): value for name, value in options.items()}, PRODUCER_KEYS, PRODUCER_PREFIX)
        own = {_SINK_KEYS[name]: value for name, value in given.items() if name in _SINK_KEYS}
        problems.extend(_unknown_options(given))
        producer_options = {
            name[len(PRODUCER_PREFIX) :]: value for name, value in given.items() if name.startswith(PRODUCER_PREFIX)
        }
        problems.extend(_refused_serializers(producer_options))
        values: dict[str, Any] = read_all(rows_of(cls), own, problems)
        producer = ProducerConfig.check(producer_options, problems, defaults=BULK_DEFAULTS, prefix=PRODUCER_PREFIX)
        problems.extend(_guarantee_conflicts(values, own, producer))
        problems.extend(_dead_letter_conflicts(values, own))
        return cls(**values, producer=producer)


_SINK_KEYS: dict[str, str] = {row.key.lower(): row.key for row in rows_of(SinkOptions).values()}


def _unknown_options(options: Mapping[str, object]) -> Iterator[str]:
    known = {**_SINK_KEYS, **{PRODUCER_PREFIX + key: PRODUCER_PREFIX + key for key in PRODUCER_KEYS}}
    for name in options:
        if name.startswith(PRODUCER_PREFIX) or name in _SINK_KEYS or name in _ADDED_BY_SPARK:
            continue
        if name in _OF_SPARKS_SOURCE:
            _warn("Option '%s' has no effect: %s", name, _FOR_READING)
            continue
        if name == "path":
            _warn("Option 'path' has no effect: rows go to Kafka. Write .save() without a path, and .option(\"topic\", …)")
            continue
        nearest = known.get(PRODUCER_PREFIX + name) or known.get(nearest_key(name, list(known)) or "")
        hint = f"Did you mean '{nearest}'?" if nearest else f"The sink's own are {', '.join(_SINK_KEYS.values())}."
        yield f"Unknown option '{name}'. {hint} Options of the Kafka producer begin with 'kafka.'"


def _refused_serializers(producer_options: dict[str, object]) -> Iterator[str]:
    """Spark's words for Spark's rule; the keys are taken out, so that the producer does not warn of them too."""
    if producer_options.pop("key.serializer", None) is not None:
        yield "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer."
    if producer_options.pop("value.serializer", None) is not None:
        yield "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer."


def _guarantee_conflicts(values: dict[str, Any], own: Mapping[str, object], producer: ProducerConfig) -> Iterator[str]:
    """Weigh the guarantee against kafka.acks; where only acks was given, acks decides."""
    if values.get("transactional_id_prefix") is not None:
        yield f"transactionalIdPrefix is for deliveryGuarantee={EXACTLY_ONCE}, which is not available in this version; remove it"
    if producer.acks == -1 or values.get("delivery_guarantee", AT_LEAST_ONCE) != AT_LEAST_ONCE:
        return
    if "deliveryGuarantee" in own and "delivery_guarantee" in values:
        yield f"deliveryGuarantee={AT_LEAST_ONCE} needs kafka.acks=all, but kafka.acks={producer.acks}; remove one of the two"
    elif "deliveryGuarantee" not in own:
        _warn(
            "kafka.acks=%d lowers the delivery guarantee from %s to %s: rows may be lost when a broker fails",
            producer.acks,
            AT_LEAST_ONCE,
            NO_GUARANTEE,
        )
        values["delivery_guarantee"] = NO_GUARANTEE


def _dead_letter_conflicts(values: dict[str, Any], own: Mapping[str, object]) -> Iterator[str]:
    asking = [key for key in ("onRecordTooLarge", "onInvalidRecord") if str(own.get(key)).strip().lower() == DEAD_LETTER.lower()]
    if asking and "deadLetterTopic" not in own:
        yield f"{asking[0]}={DEAD_LETTER} needs deadLetterTopic, the topic that such rows go to"
    if not asking and "deadLetterTopic" in own:
        yield f"deadLetterTopic has no effect: set onRecordTooLarge={DEAD_LETTER}, onInvalidRecord={DEAD_LETTER}, or both"
    if values.get("dead_letter_topic") is not None and values.get("dead_letter_topic") == values.get("topic"):
        yield f"deadLetterTopic={values['dead_letter_topic']} is the topic that is written to; name another"
