"""The producer's options under Kafka's own keys: ProducerConfig.

The options of TLS and SASL are inherited from security_config.py. producer_rules.py has what options require of each other, and
keys_without_effect.py the keys that have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from spark_kafka_sink.config.keys_without_effect import keys_for_plugins, warn_of_keys_without_effect
from spark_kafka_sink.config.option import (
    BOOLEAN,
    CLASS,
    CLASSES,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    InvalidValueError,
    Option,
    check_protocol_string,
    conceal,
    holds_reference,
    join_problems,
    option,
    options_of,
    read_all,
    reference_problem,
    warn_once,
)
from spark_kafka_sink.config.other_clients import names_to_replace, remedies
from spark_kafka_sink.config.producer_rules import ACKS_ALL, PRODUCER_RULES, OptionValues
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.security_config import SecurityConfig
from spark_kafka_sink.errors import ConfigError

BATCHES_PER_REQUEST = 8
REQUESTS_IN_MEMORY = 8
# A smaller metadata.max.age.ms counts as this: an update could always be due, and no node takes requests while one is due.
MIN_METADATA_AGE_MS = 100
MAX_REQUEST_BYTES = 32 * 1024 * 1024  # where max.request.size is not set; brokers reject more than 100 MiB by default

_ADDRESS = re.compile(r"(?:[\w.%-]*://)?(?:\[(?P<ipv6>[0-9a-zA-Z:.%]+)\]|(?P<host>[\w.%-]+)):(?P<port>[0-9]{1,99})", re.ASCII)


def parse_addresses(servers: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """(host, port) of each entry, without duplicates. Empty entries are skipped, as in Java. Raises InvalidValueError."""
    distinct_addresses: dict[tuple[str, int], str] = {}
    for server in filter(None, servers):
        match = _ADDRESS.fullmatch(server)
        if match is None or server.lower().startswith(("http:", "https:")):
            raise InvalidValueError(
                f"Invalid url in bootstrap.servers: {server} (expected host:port, such as localhost:9092 or [::1]:9092)"
            )
        if int(match["port"]) > 65535:
            raise InvalidValueError(f"Invalid port in bootstrap.servers: {server} (allowed: 0 to 65535)")
        address = (match["ipv6"] or match["host"], int(match["port"]))
        if address in distinct_addresses:
            warn_once("bootstrap.servers names %s more than once", server)
        distinct_addresses[address] = server
    return tuple(distinct_addresses)


@dataclass(frozen=True, slots=True)
class ProducerConfig(SecurityConfig):
    """The options of KafkaProducer, checked. An attribute is named as Kafka's key, with underscores for dots. Times are
    milliseconds, sizes are bytes. `given_keys`: those that the user set."""

    # fmt: off
    bootstrap_servers: tuple[tuple[str, int], ...] = option("bootstrap.servers", LIST, default="", convert=parse_addresses,
        doc="Brokers to contact first, as host:port[,host:port]; the producer discovers the others from them. Required.")
    client_dns_lookup: str = option("client.dns.lookup", STRING, default="use_all_dns_ips",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        doc="Whether the producer tries all addresses of a host name, or first resolves bootstrap names to canonical names.")
    client_id: str = option("client.id", STRING, default="", convert=check_protocol_string,
        doc="Name of this client in the logs and quotas of brokers; not set: producer-N.")
    client_rack: str = option("client.rack", STRING, default="", doc="Rack of this client, for partitioner.rack.aware.")

    # DELIVERY
    acks: int = option("acks", STRING, default="all", choices=("all", "-1", "0", "1"),
        convert=lambda text: ACKS_ALL if text == "all" else int(text),
        doc="Which replicas must acknowledge a record: all in-sync replicas (all, -1), the leader (1), none (0).")
    enable_idempotence: bool = option("enable.idempotence", BOOLEAN, default=True,
        doc="Retries write no duplicates and keep the order; requires acks=all, retries above 0 and at most 5 requests in "
            "flight.")
    retries: int = option("retries", INT, default=INT_MAX, at_least=0, at_most=INT_MAX,
        doc="How often a failed batch is retried; delivery.timeout.ms usually ends the retries sooner.")
    max_in_flight_requests_per_connection: int = option("max.in.flight.requests.per.connection", INT, default=5, at_least=1,
        doc="Maximum number of unanswered requests per broker; with 1, retries keep the order without idempotence too. "
            "Otherwise a batch that is sent again or split may come behind later ones.")
    delivery_timeout_ms: int = option("delivery.timeout.ms", INT, default=120_000, at_least=0,
        doc="Maximum time from send to acknowledgement or failure; at least linger.ms + request.timeout.ms.")
    request_timeout_ms: int = option("request.timeout.ms", INT, default=30_000, at_least=0,
        doc="How long the producer waits for the response to a request.")
    max_block_ms: int = option("max.block.ms", LONG, default=60_000, at_least=0,
        doc="How long send may wait for metadata, and each time it needs memory from buffer.memory.")

    # BATCHES AND MEMORY
    linger_ms: int = option("linger.ms", LONG, default=5, at_least=0, convert=lambda ms: min(ms, INT_MAX),
        doc="How long a batch that is not full waits for more records.")
    batch_size: int = option("batch.size", INT, default=16_384, at_least=0, convert=lambda size: max(size, 1),
        doc="Size in bytes of a full batch of one partition; the sticky partitioner changes the partition after as many bytes.")
    buffer_memory: int = option("buffer.memory", LONG, default=33_554_432, at_least=0,
        doc="Memory for records that wait to be sent; when it is exhausted, send blocks.")
    max_request_size: int = option("max.request.size", INT, default=1_048_576, at_least=0,
        doc="Maximum size of a request, and of a single record before compression. Not set: 1 MiB for a record; for a request "
            "8 times batch.size, if that is more, within 32 MiB and an eighth of buffer.memory.")

    # COMPRESSION
    compression_type: str = option("compression.type", STRING, default="none", choices=("none", "gzip", "snappy", "lz4", "zstd"),
        doc="Codec that compresses batches.")
    compression_gzip_level: int = option("compression.gzip.level", INT, default=-1, at_least=1, at_most=9, also_allowed=-1,
        doc="gzip level; -1: the codec's default.")
    compression_lz4_level: int = option("compression.lz4.level", INT, default=9, at_least=1, at_most=17,
        doc="lz4 level; 9: the fast compressor; all others: the high-compression one.")
    compression_zstd_level: int = option("compression.zstd.level", INT, default=3, at_least=-131_072, at_most=22,
        doc="zstd level.")

    # PARTITIONS
    partitioner_class: object = option("partitioner.class", CLASS, default=None,
        doc="Dotted name of a partitioner written in Python (see Plug-ins), or Java name of one of Kafka's. Not set: hash of the "
            "key, and the sticky partitioner for records without a key.")
    partitioner_ignore_keys: bool = option("partitioner.ignore.keys", BOOLEAN, default=False,
        doc="Choose the partition of every record as if it had no key.")
    partitioner_adaptive_partitioning_enable: bool = option("partitioner.adaptive.partitioning.enable", BOOLEAN, default=True,
        doc="Send fewer of the records without a key to partitions of slow brokers.")
    partitioner_availability_timeout_ms: int = option("partitioner.availability.timeout.ms", LONG, default=0, at_least=0,
        doc="A broker that accepts no batches for this long gets no records without a key; 0: disabled.")
    partitioner_rack_aware: bool = option("partitioner.rack.aware", BOOLEAN, default=False,
        doc="Send records without a key to partitions whose leader is in client.rack, if there are any.")

    # CONNECTIONS
    send_buffer_bytes: int = option("send.buffer.bytes", INT, default=131_072, at_least=-1,
        doc="Size of the send buffer of sockets; -1: the operating system's default.")
    receive_buffer_bytes: int = option("receive.buffer.bytes", INT, default=32_768, at_least=-1,
        doc="Size of the receive buffer of sockets; -1: the operating system's default.")
    reconnect_backoff_ms: int = option("reconnect.backoff.ms", LONG, default=50, at_least=0,
        doc="Wait before reconnecting to a broker; doubles with each failure.")
    reconnect_backoff_max_ms: int = option("reconnect.backoff.max.ms", LONG, default=1000, at_least=0,
        doc="Maximum wait before reconnecting to a broker.")
    retry_backoff_ms: int = option("retry.backoff.ms", LONG, default=100, at_least=0,
        doc="Wait before retrying a failed request; doubles with each failure.")
    retry_backoff_max_ms: int = option("retry.backoff.max.ms", LONG, default=1000, at_least=0,
        doc="Maximum wait before retrying a failed request.")
    socket_connection_setup_timeout_ms: int = option("socket.connection.setup.timeout.ms", LONG, default=10_000,
        doc="Time-out for setting up a connection; doubles with each failure.")
    socket_connection_setup_timeout_max_ms: int = option("socket.connection.setup.timeout.max.ms", LONG, default=30_000,
        doc="Maximum time-out for setting up a connection.")
    connections_max_idle_ms: int = option("connections.max.idle.ms", LONG, default=540_000,
        doc="A connection that is idle for this long is closed.")

    # METADATA
    metadata_max_age_ms: int = option("metadata.max.age.ms", LONG, default=300_000, at_least=0,
        doc=f"Metadata older than this, and than {MIN_METADATA_AGE_MS} ms, is refreshed.")
    metadata_max_idle_ms: int = option("metadata.max.idle.ms", LONG, default=300_000, at_least=5000,
        doc="The metadata of a topic that gets no records for this long is dropped.")
    metadata_recovery_strategy: str = option(
        "metadata.recovery.strategy", STRING, default="rebootstrap", choices=("none", "rebootstrap"), ignore_case=True,
        doc="When no known broker is available: rebootstrap: start again from bootstrap.servers; none: use the known brokers "
            "only.")
    metadata_recovery_rebootstrap_trigger_ms: int = option("metadata.recovery.rebootstrap.trigger.ms", LONG, default=300_000,
        at_least=0, doc="After this long without metadata, the producer starts again from bootstrap.servers.")

    # METRICS
    metrics_sample_window_ms: int = option("metrics.sample.window.ms", LONG, default=30_000, at_least=0,
        doc="Length of one of the metrics.num.samples windows.")
    metrics_num_samples: int = option("metrics.num.samples", INT, default=2, at_least=1,
        doc="Number of windows from which metrics() computes averages, maxima and rates.")

    # TRANSACTIONS
    transactional_id: str | None = option("transactional.id", STRING, default=None, non_empty=True, convert=check_protocol_string,
        doc="Enables transactions, and identifies the producer across restarts. The sink rejects it.")
    transaction_timeout_ms: int = option("transaction.timeout.ms", INT, default=60_000, at_least=1,
        doc="Time after which the transaction coordinator aborts an open transaction. Not set, with exactly-once: what brokers "
            "allow at most, 15 minutes by default.")
    transaction_two_phase_commit_enable: bool = option("transaction.two.phase.commit.enable", BOOLEAN, default=False,
        doc="Not available in this version.")
    interceptor_classes: tuple[object, ...] = option("interceptor.classes", CLASSES, default="",
        convert=lambda names: tuple(name for name in names if name not in ("", None)),
        doc="Dotted names of interceptors written in Python, in the order in which they are called (see Plug-ins).")

    # fmt: on
    given_keys: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    plugin_options: Mapping[str, object] = field(default_factory=dict, repr=False)  # unknown keys; strings are wrapped as Secrets

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> ProducerConfig:
        """Read a configuration by Kafka's keys. Values may be str, int, bool or list; None means not set.

        Strings are read as Java reads them: trimmed, booleans in any case, lists separated by commas. A key without effect is a
        warning in the log, and so is an unknown key that no plug-in gets. Never blocks: host names are not looked up.

        Raises:
            ConfigError: with all problems of the configuration.
        """
        mapping = cls.conceal(mapping)
        problems: list[str] = []
        config = cls.read(mapping, problems)
        if problems:
            raise ConfigError(join_problems(problems))
        return config

    @staticmethod
    def conceal(mapping: Mapping[str, object]) -> dict[str, object]:
        """A copy with every secret wrapped, for code that keeps the mapping in a local variable or an attribute."""
        return conceal(mapping, PRODUCER_KEYS)

    @classmethod
    def read(
        cls, mapping: Mapping[str, object], problems: list[str], *, defaults: Mapping[str, object] | None = None, prefix: str = ""
    ) -> ProducerConfig:
        """Like from_mapping, but adds what is wrong to `problems`; if there is any problem, the result must not be used.

        Args:
            mapping: values by Kafka's keys, secrets wrapped (see `conceal`).
            problems: the list to add to.
            defaults: values by attribute name that replace Kafka's defaults.
            prefix: what the user wrote before each key, for the log.
        """
        given_values = {key: value for key, value in mapping.items() if value is not None}
        options = options_of(cls)
        values: OptionValues = {each.name: each.default for each in fields(cls)} | dict(defaults or {})
        valid_values = read_all(options, given_values, problems)
        invalid_keys = {each.key for attribute, each in options.items() if attribute not in valid_values} & given_values.keys()
        values |= valid_values
        values["given_keys"] = frozenset(given_values) & PRODUCER_KEYS.keys()
        values["plugin_options"] = keys_for_plugins(given_values, values, PRODUCER_KEYS, prefix)
        if "config.providers" in given_values:  # without this key, Java does not look for references either
            problems.extend(reference_problem(key) for key, value in values["plugin_options"].items() if holds_reference(value))
        names_of_others = names_to_replace(given_values, PRODUCER_KEYS)
        used_names = {*names_of_others, *values["plugin_options"]}
        warn_of_keys_without_effect([key for key in given_values if key not in used_names], PRODUCER_KEYS, prefix)
        if defaults:
            _lower_defaults(values, options, invalid_keys)
        invalid_keys |= {counterpart.key for counterpart in names_of_others.values()}  # no rule asks for what a remedy names
        for keys, rule in PRODUCER_RULES:
            if invalid_keys.isdisjoint(keys):
                problems.extend(rule(values) or ())  # None from a rule that changes values
        if problems or not names_of_others.keys() <= values["plugin_options"].keys():
            problems[:0] = remedies(names_of_others, prefix)
        return cls(**values)

    def to_mapping(self) -> dict[str, object]:
        """A mapping from which from_mapping makes an equal configuration in another process.

        Secrets stay wrapped. Left out are keys without effect, and a client.id that was not given: each producer gets its own.
        """
        mapping: dict[str, object] = {}
        for attribute in fields(self):
            each: Option | None = attribute.metadata.get("option")
            value = getattr(self, attribute.name)
            if each is not None and (each.key in self.given_keys or (value != attribute.default and each.key != "client.id")):
                mapping[each.key] = value
        mapping["bootstrap.servers"] = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap_servers
        ]
        return {key: value for key, value in (mapping | dict(self.plugin_options)).items() if value is not None}

    @property
    def request_bytes(self) -> int:
        """The most bytes of batches in one request; a larger batch has a request to itself.

        Kafka's default of max.request.size, 1 MiB, suits batches of 16 KiB, and also limits single records. If it is not set, a
        request has room for several large batches, as each request costs client and broker as much as many records. Above
        1 MiB, it takes an eighth of buffer.memory at most, so that five requests in flight to one broker leave memory for others.
        """
        if "max.request.size" in self.given_keys:
            return self.max_request_size
        several_batches = min(BATCHES_PER_REQUEST * self.batch_size, self.buffer_memory // REQUESTS_IN_MEMORY, MAX_REQUEST_BYTES)
        return max(self.max_request_size, several_batches)

    def for_plugins(self) -> dict[str, object]:
        """The configuration that a plug-in's `configure` gets: the keys of `to_mapping`, the client.id and the keys for plug-ins.

        Kafka's secrets are wrapped (`reveal()`). Values of keys for plug-ins are as the user wrote them.
        """
        values = {key: value.reveal() if isinstance(value, Secret) else value for key, value in self.plugin_options.items()}
        return self.to_mapping() | {"client.id": self.client_id} | values


PRODUCER_KEYS: dict[str, Option] = {each.key: each for each in options_of(ProducerConfig).values()}


def _lower_defaults(values: OptionValues, options: Mapping[str, Option], invalid_keys: set[str]) -> None:
    """Lower the sink's defaults that contradict what the user set; none becomes lower than Kafka's default."""
    if not invalid_keys.isdisjoint(("delivery.timeout.ms", "request.timeout.ms", "max.request.size")):
        return
    for attribute, limit in (
        ("linger_ms", values["delivery_timeout_ms"] - values["request_timeout_ms"]),
        ("batch_size", values["max_request_size"]),
    ):
        each = options[attribute]
        if each.key not in values["given_keys"]:
            values[attribute] = min(values[attribute], max(limit, each.default))
