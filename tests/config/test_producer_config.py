"""config/producer_config.py and option.py: options are read as Kafka reads them, every problem is reported, no secret shows."""

from __future__ import annotations

import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.config.keys_without_effect import PRODUCER_KEYS_WITHOUT_EFFECT
from spark_kafka_sink.config.option import PASSWORD, options_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError
from tests.config.configurations import SERVERS, problem, read

# READING


def test_attributes_are_kafkas_keys_with_underscores() -> None:
    for attribute, row in options_of(ProducerConfig).items():
        assert attribute == row.key.replace(".", "_")


def test_defaults_are_those_of_kafka_4() -> None:
    cfg = read()
    expected: dict[str, object] = {
        "bootstrap_servers": (("localhost", 9092),), "acks": -1, "enable_idempotence": True, "retries": 2**31 - 1,
        "max_in_flight_requests_per_connection": 5, "delivery_timeout_ms": 120_000, "request_timeout_ms": 30_000,
        "linger_ms": 5, "batch_size": 16_384, "buffer_memory": 33_554_432, "max_block_ms": 60_000, "max_request_size": 1_048_576,
        "compression_type": "none", "compression_gzip_level": -1, "compression_lz4_level": 9, "compression_zstd_level": 3,
        "partitioner_class": None, "partitioner_ignore_keys": False, "partitioner_adaptive_partitioning_enable": True,
        "partitioner_availability_timeout_ms": 0, "send_buffer_bytes": 131_072, "receive_buffer_bytes": 32_768,
        "reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 1000, "retry_backoff_ms": 100, "retry_backoff_max_ms": 1000,
        "socket_connection_setup_timeout_ms": 10_000, "socket_connection_setup_timeout_max_ms": 30_000,
        "connections_max_idle_ms": 540_000, "metadata_max_age_ms": 300_000, "metadata_max_idle_ms": 300_000,
        "metadata_recovery_strategy": "rebootstrap", "metadata_recovery_rebootstrap_trigger_ms": 300_000,
        "transaction_timeout_ms": 60_000, "security_protocol": "PLAINTEXT", "client_rack": "",
    }  # fmt: skip
    assert {name: getattr(cfg, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("key", "written", "attribute", "expected"),
    [
        ("linger.ms", " 7 ", "linger_ms", 7),
        ("linger.ms", 7, "linger_ms", 7),
        ("linger.ms", "+7", "linger_ms", 7),
        ("linger.ms", str(2**40), "linger_ms", 2**31 - 1),  # a long in Kafka, used as an int
        ("batch.size", "0", "batch_size", 1),
        ("enable.idempotence", " FALSE ", "enable_idempotence", False),
        ("partitioner.ignore.keys", True, "partitioner_ignore_keys", True),
        ("acks", "-1", "acks", -1),
        ("acks", 1, "acks", 1),
        ("acks", "0", "acks", 0),
        ("metadata.recovery.strategy", "NONE", "metadata_recovery_strategy", "none"),
        ("security.protocol", "plaintext", "security_protocol", "PLAINTEXT"),
        ("ssl.enabled.protocols", "TLSv1.2 , TLSv1.3", "ssl_enabled_protocols", ("TLSv1.2", "TLSv1.3")),
        ("ssl.enabled.protocols", ["TLSv1.3"], "ssl_enabled_protocols", ("TLSv1.3",)),
        ("compression.gzip.level", "-1", "compression_gzip_level", -1),
        ("sasl.login.refresh.window.factor", "0.5", "sasl_login_refresh_window_factor", 0.5),
        ("client.id", None, "client_rack", ""),
    ],
)
def test_values_are_read_as_java_reads_them(key: str, written: object, attribute: str, expected: object) -> None:
    assert getattr(ProducerConfig.from_mapping(SERVERS | {key: written}), attribute) == expected


ACKS = "String must be one of: all, -1, 0, 1"
TRUTH = "Expected value to be either true or false; allowed: true, false"
CODECS = "String must be one of: none, gzip, snappy, lz4, zstd"
PROTOCOLS = "String must be one of (case insensitive): PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"


@pytest.mark.parametrize(
    ("key", "written", "reason"),
    [
        ("acks", "7", ACKS),
        ("acks", "ALL", ACKS),
        ("acks", True, "Expected value to be a string, but it was a bool; allowed: all, -1, 0, 1"),
        ("linger.ms", "-1", "Value must be at least 0"),
        ("linger.ms", "soon", "Not a number of type LONG; allowed: at least 0"),
        ("linger.ms", "1_000", "Not a number of type LONG; allowed: at least 0"),
        ("batch.size", 2**31, "Not a number of type INT; allowed: at least 0"),
        ("batch.size", True, "Not a number of type INT; allowed: at least 0"),
        ("enable.idempotence", "yes", TRUTH),
        ("enable.idempotence", 1, TRUTH),
        ("compression.type", "brotli", CODECS),
        ("compression.zstd.level", "23", "Value must be no more than 22 (allowed: -131072 to 22)"),
        ("compression.gzip.level", "0", "Value must be at least 1 (allowed: 1 to 9, or -1)"),
        ("metadata.max.idle.ms", "1", "Value must be at least 5000"),
        ("transaction.timeout.ms", "0", "Value must be at least 1"),
        ("security.protocol", "TLS", PROTOCOLS),
        ("ssl.cipher.suites", 3, "Expected a comma separated list."),
        ("sasl.login.refresh.window.factor", "half", "Not a number of type DOUBLE; allowed: 0.5 to 1.0"),
    ],
)
def test_the_error_of_a_wrong_value_names_option_value_and_range(key: str, written: object, reason: str) -> None:
    assert problem({key: written}) == f"Invalid value {written} for configuration {key}: {reason}"


@pytest.mark.parametrize(
    ("key", "written", "reason"),
    [
        ("linger.ms", "9" * 5000, "Not a number of type LONG"),
        ("linger.ms", 10**5000, "Not a number of type LONG"),
        ("retries", "-" + "9" * 5000, "Not a number of type INT"),
        ("sasl.login.refresh.window.factor", 10**400, "Not a number of type DOUBLE"),
        ("client.id", 10**5000, "Expected value to be a string"),
        ("bootstrap.servers", "a:" + "9" * 5000, "Invalid url in bootstrap.servers"),
    ],
    ids=["long", "int for long", "int", "int for double", "int for string", "port"],
)
def test_a_number_with_more_digits_than_python_reads_is_a_problem_like_any_other(key: str, written: object, reason: str) -> None:
    """int() and str() raised a ValueError that named no option, for a number of 4,301 digits, and float() an OverflowError."""
    assert reason in problem({key: written})


def test_all_problems_are_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping({"acks": "7", "linger.ms": "-1", "transactional.id": ""})
    lines = raised.value.message.splitlines()
    assert lines[0] == "4 things are wrong:"
    assert len(lines) == 5
    for key in ("acks", "linger.ms", "transactional.id", "bootstrap.servers"):
        assert key in raised.value.message


# BOOTSTRAP.SERVERS


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a:1,b:2", (("a", 1), ("b", 2))),
        (" a:1 , b:2 ,", (("a", 1), ("b", 2))),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("PLAINTEXT://kafka-1.example.org:9092", (("kafka-1.example.org", 9092),)),
    ],
)
def test_bootstrap_servers_become_hosts_and_ports(written: object, expected: object) -> None:
    assert ProducerConfig.from_mapping({"bootstrap.servers": written}).bootstrap_servers == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1_048_576),  # 8 batches of 16 KiB are less
        ({"batch.size": 524_288}, 4_194_304),
        ({"batch.size": 524_288, "max.request.size": 1_048_576}, 1_048_576),
        ({"max.request.size": 2_097_152}, 2_097_152),
        ({"batch.size": 8_388_608}, 4_194_304),  # an eighth of buffer.memory
        ({"batch.size": 524_288, "buffer.memory": 16_777_216}, 2_097_152),
        ({"batch.size": 524_288, "buffer.memory": 1_048_576}, 1_048_576),
        ({"batch.size": 16_000_000, "buffer.memory": 1_000_000_000}, 33_554_432),  # brokers refuse more than 100 MiB by default
    ],
)
def test_requests_have_room_for_several_large_batches_unless_the_user_limits_them(
    options: dict[str, object], expected: int
) -> None:
    assert read(**options).request_bytes == expected


def test_a_server_named_twice_is_kept_once_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert ProducerConfig.from_mapping({"bootstrap.servers": "a:1,b:1,a:1"}).bootstrap_servers == (("a", 1), ("b", 1))
    assert "a:1" in caplog.text


@pytest.mark.parametrize(
    "written", ["localhost", "localhost:", ":9092", "a:b", "::1:9092", "a b:1", "http://kafka:9092", "HTTPS://a:1"]
)
def test_a_server_that_is_not_host_and_port_is_refused(written: str) -> None:
    assert f"Invalid url in bootstrap.servers: {written} (expected host:port" in problem({"bootstrap.servers": written})


def test_a_port_beyond_65535_is_refused() -> None:
    assert "Invalid port in bootstrap.servers: a:65536" in problem({"bootstrap.servers": "a:65536"})


@pytest.mark.parametrize("mapping", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": " , "}, {"bootstrap.servers": None}])
def test_the_error_of_missing_bootstrap_servers_names_the_remedy(mapping: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping(mapping)
    assert raised.value.message.startswith("Kafka option 'bootstrap.servers' is not set. Name at least one broker as host:port")


# PLUG-INS


def test_empty_interceptors_are_no_interceptors() -> None:
    assert read(interceptor_classes="").interceptor_classes == ()
    assert read(interceptor_classes=" , ").interceptor_classes == ()


def test_plugins_are_dotted_names_or_in_python_what_these_would_name() -> None:
    cfg = read(partitioner_class=" my_module.Mine ", interceptor_classes="a.B, c.d.E")
    assert (cfg.partitioner_class, cfg.interceptor_classes) == ("my_module.Mine", ("a.B", "c.d.E"))
    cfg = read(partitioner_class=Path, interceptor_classes=[Path, "a.B"])
    assert (cfg.partitioner_class, cfg.interceptor_classes) == (Path, (Path, "a.B"))
    assert read(interceptor_classes=Path).interceptor_classes == (Path,)


@pytest.mark.parametrize("name", ["org.example.Mine", "com.example.a.Mine", "io.example.Mine", "java.util.Mine"])
def test_java_classes_are_refused_with_the_ways_out(name: str) -> None:
    message = problem({"partitioner.class": name})
    assert message.startswith(f"partitioner.class={name} is a Java class, which cannot be loaded here")
    for way in ("write it in Python (docs/plug-ins.md)", "RoundRobinPartitioner", "a `partition` column"):
        assert way in message
    message = problem({"interceptor.classes": ["good.Name", name]})
    assert message.startswith(f"interceptor.classes={name} is a Java class, which cannot be loaded here")
    assert "\n" not in message


def test_a_python_package_may_be_called_like_a_part_of_a_java_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scala").mkdir()
    (tmp_path / "scala" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read(partitioner_class="scala.Mine").partitioner_class == "scala.Mine"


@pytest.mark.parametrize("name", ["", "Mine", "a..B", "a.B()", "a b.C", ".B", "a.1B"])
def test_a_partitioner_without_a_dotted_name_is_refused(name: str) -> None:
    assert "is not a dotted name: name a Python class package.module.Class" in problem({"partitioner.class": name})


@pytest.mark.parametrize("value", [5, True, ["a.B"]])
def test_a_partitioner_is_no_number_and_no_list(value: object) -> None:
    assert "Expected value to be the name of a class" in problem({"partitioner.class": value})


def test_unknown_keys_are_left_to_the_plugins_as_the_user_wrote_them(caplog: pytest.LogCaptureFixture) -> None:
    user_options = {
        "interceptor.classes": "a.B",
        "audit.file": " /tmp/a ",
        "audit.rows": 5,
        "metric.reporters": "x",
        "client.id": "c",
    }
    cfg = ProducerConfig.from_mapping(SERVERS | user_options)
    assert [record.getMessage()[:25] for record in caplog.records] == ["Option 'metric.reporters'"]
    plugin_options = cfg.for_plugins()
    assert (plugin_options["audit.file"], plugin_options["audit.rows"], plugin_options["client.id"]) == ("/tmp/a", 5, "c")
    again = ProducerConfig.from_mapping(pickle.loads(pickle.dumps(cfg.to_mapping())))
    assert again.for_plugins() == plugin_options
    assert "metric.reporters" not in plugin_options


def test_plugins_see_a_generated_client_id_and_no_bare_secret() -> None:
    cfg = read(partitioner_class="a.B", sasl_jaas_config="hunter2", sasl_pasword="hunter3")
    assert cfg.for_plugins()["client.id"] == cfg.client_id != ""
    assert cfg.for_plugins()["sasl.jaas.config"] == Secret("hunter2")
    assert "hunter" not in repr(cfg) + str(cfg.to_mapping())


def test_a_key_for_plugins_that_looks_misspelt_is_named(caplog: pytest.LogCaptureFixture) -> None:
    read(partitioner_class="a.B", lingr_ms="3")
    assert "Option 'lingr.ms' is passed to the plug-ins; did you mean 'linger.ms'?" in caplog.text


@pytest.mark.parametrize(
    ("name", "partitioner", "ignore_keys"),
    [
        (
            "org.apache.kafka.clients.producer.RoundRobinPartitioner",
            "org.apache.kafka.clients.producer.RoundRobinPartitioner",
            False,
        ),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", None, False),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", None, True),
    ],
)
def test_kafkas_own_partitioners_are_known_by_their_java_names(name: str, partitioner: str | None, ignore_keys: bool) -> None:
    cfg = read(partitioner_class=name)
    assert (cfg.partitioner_class, cfg.partitioner_ignore_keys) == (partitioner, ignore_keys)


def test_an_unknown_key_is_a_warning_that_names_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig.from_mapping(SERVERS | {"lingr.ms": "3"})
    assert "Option 'lingr.ms' is not known to the Kafka producer and has no effect; did you mean 'linger.ms'?" in caplog.text


@pytest.mark.parametrize("key", PRODUCER_KEYS_WITHOUT_EFFECT)
def test_a_key_without_effect_is_a_warning_that_says_why(key: str, caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig.from_mapping(SERVERS | {key: "x"})
    assert f"Option '{key}' has no effect: {PRODUCER_KEYS_WITHOUT_EFFECT[key]}" in caplog.text


PROVIDERS = {"config.providers": "file", "config.providers.file.class": "org.apache.kafka.common.config.provider.FileProvider"}


@pytest.mark.parametrize("providers", [{}, PROVIDERS], ids=["without providers", "with providers"])
@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("ssl.keystore.password", "${file:/run/secrets.properties:password}"),
        ("ssl.key.password", "${env:KEY_PASSWORD}"),
        ("sasl.oauthbearer.client.credentials.client.secret", "prefix-${vault:secret/kafka:id}"),
        ("sasl.jaas.config", 'PlainLoginModule required username="a" password="${file:/x:canary-7Qx2}";'),
        ("bootstrap.servers", ["h:1", "${file:/x:server}"]),
        ("linger.ms", "${file:/x:linger}"),
        ("client.id", "${file::id}"),
    ],
)
def test_a_reference_to_a_config_provider_is_a_problem(key: str, written: object, providers: dict[str, str]) -> None:
    """config.providers was a warning that "values are taken as they stand", and ${file:…} was the password that brokers got."""
    message = problem(providers | {key: written})
    assert message.startswith(f"The value of {key} holds a reference to a config provider, like ${{file:/path:key}}. ")
    assert "canary" not in message


@pytest.mark.parametrize("written", ["pa$$word", "${x}", "$(file:x)", "{file:/x:pw}", "${"])
def test_a_password_that_only_resembles_a_reference_is_taken_as_it_stands(written: str) -> None:
    config = ProducerConfig.from_mapping(SERVERS | PROVIDERS | {"ssl.key.password": written})
    assert config.ssl_key_password == Secret(written)


def test_references_are_looked_for_in_linear_time() -> None:
    """A value of many "${" took quadratic time."""
    assert ProducerConfig.from_mapping({"bootstrap.servers": "h:1", "ssl.key.password": "${a:" * 250_000}).ssl_key_password


def test_a_plugins_value_may_look_like_a_reference_unless_config_providers_are_set() -> None:
    mine = {"interceptor.classes": "my_package.Interceptor", "my.pattern": "${topic:name}"}
    assert ProducerConfig.from_mapping(SERVERS | mine).for_plugins()["my.pattern"] == "${topic:name}"
    assert problem(PROVIDERS | mine).startswith("The value of my.pattern holds a reference")


def test_what_belongs_to_a_config_provider_has_no_effect_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig.from_mapping(SERVERS | PROVIDERS)
    for key in PROVIDERS:
        assert f"Option '{key}' has no effect: config providers are not supported" in caplog.text


def test_a_key_of_the_next_kafka_is_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig.from_mapping(SERVERS | {"bootstrap.resolve.timeout.ms": "1"})
    assert "new in Kafka 4.4" in caplog.text


# SECRETS


PASSWORDS = [row.key for row in options_of(ProducerConfig).values() if row.kind is PASSWORD]


def test_every_option_named_like_a_secret_is_one() -> None:
    for row in options_of(ProducerConfig).values():
        if any(word in row.key for word in ("password", "secret", "passphrase", "jaas")):
            assert row.key in PASSWORDS


@pytest.mark.parametrize("key", PASSWORDS)
def test_a_secret_is_kept_and_never_shown(key: str) -> None:
    cfg = ProducerConfig.from_mapping(SERVERS | {key: "hunter2"})
    secret = getattr(cfg, key.replace(".", "_"))
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in repr(cfg) + str(cfg) + repr(secret) + str(secret) + f"{secret}{secret!r}"
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert pickle.loads(pickle.dumps(secret)).reveal() == "hunter2"


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


@pytest.mark.parametrize(
    "mapping", [{"sasl.jaas.config": "hunter2"}, {"sasl.jass.config": "hunter2"}, {"ssl.key.password": 4242}]
)
def test_an_error_shows_no_secret_even_with_locals(mapping: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    mapping = SERVERS | mapping | {"acks": "7"}
    try:
        ProducerConfig.from_mapping(mapping)
    except ConfigError as error:
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        trace.stack.pop(0)  # this test's own locals
        shown = "".join(trace.format()) + caplog.text
    assert "acks" in shown
    assert "hunter2" not in shown
    assert "for configuration ssl.key.password: Expected" in shown if "ssl.key.password" in mapping else True
    assert "Invalid value 4242" not in shown


# FOR ANOTHER PROCESS


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"acks": "1"},
        {"bootstrap.servers": "[::1]:9092,b:1,b:1"},
        {"request.timeout.ms": "200000", "retry.backoff.ms": "5000", "lingr.ms": "3", "metric.reporters": "x"},
        {"sasl.jaas.config": "secret", "client.id": "c", "ssl.enabled.protocols": "TLSv1.3"},
        {"partitioner.class": "org.apache.kafka.clients.producer.UniformStickyPartitioner", "linger.ms": "5"},
    ],
)
def test_what_a_configuration_tells_another_process_makes_an_equal_one_in_silence(
    mapping: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    first = ProducerConfig.from_mapping(SERVERS | mapping)
    caplog.clear()
    second = ProducerConfig.from_mapping(pickle.loads(pickle.dumps(first.to_mapping())))
    assert caplog.records == []
    ignored = {} if "client.id" in mapping else {"client_id": ""}
    assert vars_of(second) | ignored == vars_of(first) | ignored


def vars_of(cfg: ProducerConfig) -> dict[str, object]:
    return {attribute: getattr(cfg, attribute) for attribute in options_of(ProducerConfig)}


# DEFAULTS


def test_every_default_is_one_that_may_be_written() -> None:
    cls: Any
    for cls in (ProducerConfig, SinkOptions):
        for row in options_of(cls).values():
            if row.default not in (None, "") and row.kind is not PASSWORD:
                written = row.default if isinstance(row.default, str) else json.dumps(row.default)
                assert row.read(written) == row.read(row.default)
