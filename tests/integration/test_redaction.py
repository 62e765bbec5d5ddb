"""Spark shows the options of a write in its plans. With the settings of conf/spark-defaults.conf no secret is among them.

Plans are looked at where users meet them: explain, the SQL tab's data, and the event log that the history server reads. Every
option that is a password carries a canary of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.config.option import PASSWORD
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS
from spark_kafka_sink.sink.datasource import KafkaDataSource
from tests.conftest import ROOT
from tests.fakes.fake_broker import FakeBroker
from tests.integration.writing import FORMAT
from tests.schemas.fake_registry import FakeRegistry

SETTING = "spark.sql.redaction.options.regex"
TABLE = "a_topic"
SECRETS = {
    key: f"canary{number:02}x" for number, key in enumerate(key for key, row in PRODUCER_KEYS.items() if row.kind is PASSWORD)
}
# What Spark 4 does not take for a secret by itself.
NOT_SPARKS = {
    "sasl.jaas.config",  # unless its text has the word password, secret or token
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.truststore.certificates",
}


def shown(text: str) -> set[str]:
    return {key for key, canary in SECRETS.items() if canary in text}


def sample_regex() -> str:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    return next((line.split()[1] for line in lines if line.startswith(SETTING)), "(?i)url")


def options(broker: FakeBroker) -> dict[str, str]:
    login = f"my.LoginModule required key={SECRETS['sasl.jaas.config']};"
    secrets = SECRETS | {"sasl.jaas.config": login}
    return {f"kafka.{key}": value for key, value in secrets.items()} | {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "orders",
    }


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own, in which the SQL tab shows logical plans too."""
    session = spark.newSession()
    session.dataSource.register(KafkaDataSource)
    session.conf.set("spark.sql.ui.explainMode", "extended")
    yield session
    session.sql(f"DROP TABLE IF EXISTS {TABLE}")


class EventLog:
    """What Spark writes with spark.eventLog.enabled=true, from here on."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        jvm: Any = spark._jvm
        self._context: Any = spark.sparkContext._jsc.sc()
        conf = self._context.getConf().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
        place = jvm.java.net.URI(directory.as_uri())
        self._listener = jvm.org.apache.spark.scheduler.EventLoggingListener("canary", jvm.scala.Option.empty(), place, conf)
        self._directory = directory
        self._listener.start()
        self._context.addSparkListener(self._listener)

    def read(self) -> str:
        self._context.listenerBus().waitUntilEmpty()
        self._context.removeSparkListener(self._listener)
        self._listener.stop()
        return "".join(file.read_text(encoding="utf-8") for file in self._directory.rglob("*") if file.name == "canary")


def executions(session: SparkSession) -> list[Any]:
    """Of the SQL tab, of all tests so far."""
    java: Any = session._jsparkSession
    scala_list = java.sharedState().statusStore().executionsList()
    return [scala_list.apply(index) for index in range(scala_list.size())]


def plans_of_the_sql_tab(session: SparkSession, of: list[Any]) -> str:
    java: Any = session._jsparkSession
    store = java.sharedState().statusStore()
    texts = []
    for execution in of:
        nodes = store.planGraph(execution.executionId()).allNodes()
        texts += [execution.description(), execution.details(), execution.physicalPlanDescription()]
        texts += [execution.modifiedConfigs().toString()]
        texts += [f"{node.name()} {node.desc()}" for node in map(nodes.apply, range(nodes.size()))]
    return "\n".join(texts)


def explained_insert(session: SparkSession, options: dict[str, str]) -> str:
    option_list = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    session.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (value STRING) USING `{FORMAT}`")
    text: str = session.sql(f"EXPLAIN EXTENDED INSERT INTO {TABLE} WITH ({option_list}) SELECT 'a'").collect()[0][0]
    return text


def test_the_sample_settings_leave_no_secret_in_any_plan(session: SparkSession, tmp_path: Path) -> None:
    """A private key given as PEM text, or the passphrase of one, was to be read in the SQL tab and in event logs."""
    session.conf.set(SETTING, sample_regex())
    log = EventLog(session, tmp_path)
    earlier = {execution.executionId() for execution in executions(session)}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows").write_text("a\n")
    with FakeBroker(topics={"orders": 1}) as broker:
        session.range(2).selectExpr("string(id) AS value").write.format(FORMAT).mode("append").options(**options(broker)).save()
        stream = session.readStream.text(str(tmp_path / "in")).writeStream.format(FORMAT).options(**options(broker))
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        java: Any = query._jsq
        explained = java.explainInternal(True) + explained_insert(session, options(broker)) + str(query.lastProgress)
        session.range(1).selectExpr("'b' AS value").writeTo(TABLE).options(**options(broker)).append()
        assert sorted(broker.values("orders")) == [b"0", b"1", b"a", b"b"]
    events = log.read()
    checkpoint = "".join(file.read_text("latin-1") for file in (tmp_path / "checkpoint").rglob("*") if file.is_file())
    plans = plans_of_the_sql_tab(session, [each for each in executions(session) if each.executionId() not in earlier])
    for text in (plans, events, explained):
        assert "redacted" in text  # these options do stand there
    assert shown(plans + events + explained + checkpoint) == set()


def test_what_the_sample_settings_add_is_what_sparks_own_do_not_catch(session: SparkSession) -> None:
    with FakeBroker(topics={"orders": 1}) as broker:
        assert shown(explained_insert(session, options(broker))) == NOT_SPARKS


def test_an_option_that_is_a_secret_is_redacted_by_spark_or_by_the_sample_settings() -> None:
    sparks_own = r"(?i)secret|password|token|access[.]?key"
    left = {key for key in SECRETS if not re.search(sparks_own, key)}
    assert left == NOT_SPARKS
    assert {key for key in left if not re.search(sample_regex(), key)} == set()


@pytest.mark.parametrize("place", ["basic.auth.user.info", "schema.registry.url"])
def test_the_sample_settings_hide_the_login_of_a_schema_registry(session: SparkSession, place: str) -> None:
    login = "me:canary99x"
    with FakeBroker(topics={"orders": 1}) as broker, FakeRegistry(login=login) as registry:
        sink_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders", "valueFormat": "avro"}
        sink_options["schema.registry.url"] = registry.url.replace(
            "://", f"://{login}@" if place == "schema.registry.url" else "://"
        )
        if place == "basic.auth.user.info":
            sink_options[place] = login
            assert "canary99x" in explained_insert(session, sink_options)
        session.conf.set(SETTING, sample_regex())
        explained = explained_insert(session, sink_options)
        session.range(1).selectExpr("'b' AS value").write.format(FORMAT).mode("append").options(**sink_options).save()
        assert broker.values("orders") == [b"\0\0\0\0\1\2b"]
    assert "redacted" in explained
    assert "canary99x" not in explained
