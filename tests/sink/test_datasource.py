"""datasource.py and the ways to it: the driver checks everything, and reports all problems."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pyspark
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter

import spark_kafka_sink
from spark_kafka_sink import KafkaDataSource, _autoregister
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.sink_options import BULK_DEFAULTS
from spark_kafka_sink.errors import ConfigError, KafkaError, SchemaError
from spark_kafka_sink.sink import require_pyspark
from spark_kafka_sink.sink.datasource import COMMITTING_PROCESS, check_options
from tests.sink.schemas import schema

ROOT = Path(__file__).resolve().parent.parent.parent
GOOD = schema(key="binary", value="binary")


def source(**options: str) -> KafkaDataSource:
    """Names with double underscores for dots."""
    own = {name.replace("__", "."): value for name, value in options.items()}
    return KafkaDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "topic": "t"} | own))


def test_spark_finds_the_format_by_a_class_method() -> None:
    assert KafkaDataSource.name() == "pykafka-sink"
    assert issubclass(KafkaDataSource, DataSource)


def test_writers_are_sparks_arrow_writers_and_plain_data() -> None:
    batch, stream = source().writer(GOOD, False), source().streamWriter(GOOD, False)
    assert isinstance(batch, DataSourceArrowWriter)
    assert isinstance(stream, DataSourceStreamArrowWriter)
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert pickle.loads(pickle.dumps(stream)) == stream
    assert (batch.plan.mapping, batch.plan.is_stream, stream.plan.is_stream) == (stream.plan.mapping, False, True)


def test_a_task_gets_only_what_has_an_effect_with_secrets_wrapped() -> None:
    writer = source(kafka__sasl__jaas__config="s", kafka__metric__reporters="x", kafka__lingr__ms="1", kafka__acks="all").writer(
        GOOD, False
    )
    assert writer.plan.options.producer.to_mapping() == {
        "bootstrap.servers": ["a:1"],
        "sasl.jaas.config": Secret("s"),
        "acks": -1,
        "batch.size": BULK_DEFAULTS["batch_size"],
        "linger.ms": BULK_DEFAULTS["linger_ms"],
        "send.buffer.bytes": BULK_DEFAULTS["send_buffer_bytes"],
    }


def test_wrong_options_and_columns_come_in_one_error() -> None:
    bad = schema(key="int")
    with pytest.raises(ConfigError) as raised:
        KafkaDataSource(CaseInsensitiveDict({"topik": "t", "kafka.acks": "7", "deliveryGuarantee": "exactly-once"})).writer(
            bad, True
        )
    message = raised.value.message
    assert message.startswith("9 things are wrong:")
    for part in (
        "Overwrite",
        "'topik'",
        "acks",
        "needs transactionalIdPrefix",
        "needs markerTopic",
        "bootstrap.servers",
        "'topic' attribute",
        "key attribute",
        "'value' not found",
    ):
        assert part in message


def test_names_of_a_write_are_not_for_streams() -> None:
    options = {
        "kafka.bootstrap.servers": "h:1",
        "topic": "t",
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "p",
        "txnAppId": "a",
        "txnVersion": "1",
        "allowUnnamedWrite": "true",
    }
    with pytest.raises(ConfigError, match=r"txnAppId and txnVersion and allowUnnamedWrite: only for df\.write"):
        KafkaDataSource(CaseInsensitiveDict(options)).streamWriter(schema(value="string"), False)
    assert KafkaDataSource(CaseInsensitiveDict(options)).writer(schema(value="string"), False).plan.options.is_exactly_once


def test_wrong_columns_alone_are_a_schema_error() -> None:
    with pytest.raises(SchemaError, match=r"^\[KAFKA_INVALID_SCHEMA\] Required attribute 'value' not found\."):
        source().writer(schema(key="string"), False)


@pytest.mark.parametrize("name", ["a/b", ""])
def test_an_impossible_topic_is_the_only_error_that_is_reported(name: str) -> None:
    """The error also said "topic option required when no 'topic' attribute is present", as if the option had not been set."""
    with pytest.raises(ConfigError) as raised:
        KafkaDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "Topic": name})).writer(GOOD, False)
    assert "for configuration topic: a topic's name is" in raised.value.message
    assert "required" not in raised.value.message
    assert "things are wrong" not in raised.value.message


def test_without_any_option_the_error_explains_where_options_of_sql_tables_belong() -> None:
    """Options of CREATE TABLE … OPTIONS do not reach the sink, and the error only said that bootstrap.servers is not set."""
    with pytest.raises(ConfigError, match=r"INSERT INTO … WITH \('kafka.bootstrap.servers' = '…', 'topic' = '…'\) SELECT …"):
        KafkaDataSource(CaseInsensitiveDict()).writer(GOOD, False)
    with pytest.raises(ConfigError) as raised:
        KafkaDataSource(CaseInsensitiveDict(topic="t")).writer(GOOD, False)
    assert "INSERT INTO" not in str(raised.value)


def test_reading_is_refused_with_the_way_to_do_it() -> None:
    for read in (source().schema, lambda: source().reader(GOOD)):
        with pytest.raises(ConfigError, match=r'writes and does not read: read from Kafka with format\("kafka"\)'):
            read()


@pytest.mark.parametrize("kind", [KafkaDataSource, _autoregister.DefaultSource])
@pytest.mark.parametrize("entry", ["schema", "reader", "streamReader"])
def test_every_way_to_read_explains_itself_through_the_shim_too(kind: type[DataSource], entry: str) -> None:
    """The installed package answered `spark.read.format("pykafka-sink").load()` with "schema is not implemented", and both
    answered a stream with "simpleStreamReader is not implemented"."""
    arguments = () if entry == "schema" else (GOOD,)
    with pytest.raises(ConfigError, match=r'writes and does not read: read from Kafka with format\("kafka"\)'):
        getattr(kind(CaseInsensitiveDict()), entry)(*arguments)


def test_overwrite_is_refused_for_a_batch_and_taken_for_a_complete_stream() -> None:
    with pytest.raises(ConfigError, match="Save mode Overwrite not allowed for Kafka") as raised:
        source().writer(GOOD, True)
    # Spark's message for a missing mode recommends "append" or "overwrite": who chose the latter came here to be refused again.
    assert "recommends overwrite too" in str(raised.value)
    assert '.mode("append")' in str(raised.value)
    source().streamWriter(GOOD, True)


def test_a_report_path_needs_its_directory(tmp_path: Path) -> None:
    assert source(reportPath=str(tmp_path / "r.jsonl")).writer(GOOD, False).plan.options.report_path == str(tmp_path / "r.jsonl")
    source(reportPath="r.jsonl").writer(GOOD, False)
    with pytest.raises(ConfigError, match="lies in a directory that does not exist on the driver"):
        source(reportPath=str(tmp_path / "no" / "r.jsonl")).writer(GOOD, False)


def test_a_report_path_is_a_file(tmp_path: Path) -> None:
    """A directory was accepted, and the report of each commit was lost."""
    with pytest.raises(ConfigError, match="is a directory on the driver: name a file"):
        source(reportPath=str(tmp_path)).writer(GOOD, False)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r"reportPath=.* is no regular file on the driver"):
        source(reportPath=str(tmp_path / "fifo")).writer(GOOD, False)


def test_a_report_path_contains_no_nul(tmp_path: Path) -> None:
    """It passed the planning, and the commit ended in ValueError after all rows had been written."""
    with pytest.raises(ConfigError, match=r"reportPath='.*a\\x00b' contains NUL"):
        source(reportPath=str(tmp_path / "a\0b")).writer(GOOD, False)


def test_on_commit_needs_a_function_that_the_driver_can_import() -> None:
    assert source(onCommit="builtins.print").writer(GOOD, False).plan.options.on_commit == "builtins.print"
    with pytest.raises(ConfigError, match=r"onCommit=nowhere\.f cannot be loaded: there is no module nowhere"):
        source(onCommit="nowhere.f").writer(GOOD, False)


def test_a_streams_commit_does_not_check_its_environment_again(tmp_path: Path) -> None:
    """Spark makes a new writer for every commit of a stream. A reportPath whose directory was removed since the batch was
    planned failed the query there, after the rows had been written: the restart wrote them again."""
    directory = tmp_path / "reports"
    options = {"reportPath": str(directory / "r.jsonl"), "onCommit": "nowhere.f"}
    source(**options).streamWriter(GOOD, False).commit([], 7)
    source(**options).streamWriter(GOOD, False).abort([None], 7)


def test_a_streams_planning_checks_its_environment(tmp_path: Path) -> None:
    """Spark pickles the writer that it plans a batch with, and only that one; its serializer passes on only errors of pickle
    as they are."""
    writer = source(reportPath=str(tmp_path / "no" / "r.jsonl"), onCommit="nowhere.f").streamWriter(GOOD, False)
    with pytest.raises(ConfigError) as raised:
        CPickleSerializer().dumps((lambda: writer, None))
    assert raised.value.message.startswith("2 things are wrong:")
    for message in ("lies in a directory that does not exist on the driver", "there is no module nowhere"):
        assert message in raised.value.message


@pytest.mark.parametrize("kind", ["truststore", "keystore"])
def test_a_java_store_on_the_drivers_machine_raises_before_a_task_starts(kind: str, tmp_path: Path) -> None:
    """Such a store failed each attempt of each task."""
    store = tmp_path / "my.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    options = {"kafka__security__protocol": "SSL", f"kafka__ssl__{kind}__location": str(store)}
    message = rf"kafka\.ssl\.{kind}\.location={store} is a JKS store, which only Java can read; convert it with: keytool "
    with pytest.raises(ConfigError, match=message):
        source(**options).writer(GOOD, False)
    with pytest.raises(ConfigError, match=message):
        check_options({name.replace("__", "."): value for name, value in options.items()} | {"kafka.bootstrap.servers": "a:1"})
    source(**options).streamWriter(GOOD, False).commit([], 7)
    on_executors = {f"kafka__ssl__{kind}__location": "sent-with-files.jks"}
    source(**options | on_executors).writer(GOOD, False)


def test_warnings_are_logged_where_spark_plans_a_stream_and_not_where_it_commits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, COMMITTING_PROCESS, ModuleType(COMMITTING_PROCESS))
    source(kafka__lingr__ms="1").streamWriter(GOOD, False)
    assert caplog.text == ""
    monkeypatch.delitem(sys.modules, COMMITTING_PROCESS)
    source(kafka__lingr__s="1").streamWriter(GOOD, False)
    assert caplog.text.count("did you mean 'kafka.linger.ms'?") == 1


def test_sparks_process_that_commits_streams_has_the_expected_name() -> None:
    assert importlib.util.find_spec(COMMITTING_PROCESS) is not None


def test_problems_of_a_streams_options_are_reported_with_those_of_its_environment() -> None:
    with pytest.raises(ConfigError) as raised:
        source(onCommit="nowhere.f", kafka__acks="7").streamWriter(schema(key="int"), False)
    assert raised.value.message.startswith("4 things are wrong:")


def test_the_options_travel_to_the_tasks() -> None:
    writer = source(onInvalidRecord="deadLetter", deadLetterTopic="dead", showKeys="false", kafka__linger__ms="7").writer(
        GOOD, False
    )
    options = pickle.loads(pickle.dumps(writer)).plan.options
    assert options == writer.plan.options
    assert (options.on_invalid_record, options.dead_letter_topic, options.show_keys) == ("deadLetter", "dead", False)
    assert options.producer.linger_ms == 7


# WAYS TO THE DATA SOURCE


def test_the_shim_delegates_to_the_data_source() -> None:
    shim = _autoregister.DefaultSource(CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "topic": "t"}))
    assert _autoregister.DefaultSource.name() == KafkaDataSource.name()
    for made, expected in (
        (shim.writer(GOOD, False), source().writer(GOOD, False)),
        (shim.streamWriter(GOOD, False), source().streamWriter(GOOD, False)),
    ):
        assert type(made) is type(expected)
        assert made.plan.mapping == expected.plan.mapping
        assert made.plan.options.producer.to_mapping() == expected.plan.options.producer.to_mapping()


def run(code: str, *paths: Path) -> str:
    """Run code in an interpreter of its own, with these directories first on its path."""
    setup = f"import sys; sys.path[:0] = {[str(path) for path in (*paths, ROOT)]}\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_shim_imports_even_when_the_package_is_broken(tmp_path: Path) -> None:
    broken = tmp_path / "spark_kafka_sink"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    shim = (ROOT / "spark_kafka_sink" / "_autoregister.py").read_text()
    (tmp_path / "pyspark_kafka_sink.py").write_text(shim)
    printed = run(
        """
        import pyspark_kafka_sink
        source = pyspark_kafka_sink.DefaultSource({})
        try:
            source.writer(None, False)
        except RuntimeError as error:
            print(source.name(), error)
        """,
        tmp_path,
    )
    assert printed.strip() == "pykafka-sink broken"


def test_the_producer_needs_no_pyspark() -> None:
    printed = run(
        """
        sys.modules["pyspark"] = None
        import spark_kafka_sink
        spark_kafka_sink.KafkaProducer, spark_kafka_sink.KafkaError
        try:
            spark_kafka_sink.KafkaDataSource
        except ImportError as error:
            print(error)
        """
    )
    assert printed.startswith("[KAFKA_PYSPARK_MISSING] ")


def test_planning_on_the_driver_loads_no_producer() -> None:
    printed = run(
        """
        import spark_kafka_sink
        spark_kafka_sink.KafkaDataSource
        heavy = ("spark_kafka_sink.producer.p", "spark_kafka_sink.network.", "spark_kafka_sink.schemas")
        print(sorted(name for name in sys.modules if name.startswith(heavy)))
        """
    )
    assert printed.strip() == "[]"


def test_names_of_the_package_are_loaded_when_asked_for() -> None:
    assert spark_kafka_sink.KafkaError is KafkaError
    assert {"KafkaDataSource", "KafkaProducer"} <= set(dir(spark_kafka_sink))
    with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
        spark_kafka_sink.Kafka  # noqa: B018


@pytest.mark.parametrize("version", ["4.0.1", "3.5.4"])
def test_an_old_pyspark_is_refused_in_one_sentence(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ImportError, match=rf"^\[KAFKA_PYSPARK_TOO_OLD\] pyspark {version} .* needs 4\.1 or newer"):
        require_pyspark()


@pytest.mark.parametrize("version", ["4.1.0", "4.2.0.dev1", "5.0.0"])
def test_a_newer_pyspark_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    require_pyspark()
