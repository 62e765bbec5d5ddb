"""The sink's writers with deliveryGuarantee=exactly-once, against the fake broker: tasks and commits as Spark would call them."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_kafka_sink import exactly_once_options
from spark_kafka_sink.admin.leaders import FindLeaders
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once import heartbeat as heartbeat_module
from spark_kafka_sink.exactly_once.writes import CommitFailedError, DriverTime, ReplayError, WriteAbortedError
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import FindCoordinatorHandler
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.sink import exactly_once_task
from spark_kafka_sink.sink import writer as writer_module
from spark_kafka_sink.sink.commit_message import KafkaCommitMessage
from spark_kafka_sink.sink.commit_summary import CommitSummary
from spark_kafka_sink.sink.datasource import KafkaDataSource
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.worker_cache import CLIENTS, TRANSACTIONAL, TRANSACTIONAL_FOR_LARGE_ROWS
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter
from tests.exactly_once.runs import visible_rows
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.fakes.transaction_coordinator import State
from tests.sink.schemas import schema

QUERY = "46d4ee9a-3b99-40ec-b2a5-dcdd7ece5680"
SUMMARIES: list[CommitSummary] = []


def remember(summary: CommitSummary) -> None:
    SUMMARIES.append(summary)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    SUMMARIES.clear()
    with FakeBroker(topics={"t": 1, "dead": 1}) as broker:
        yield broker
        TRANSACTIONAL_FOR_LARGE_ROWS.close()
        TRANSACTIONAL.close()  # before the broker, as this process goes on to the next test
        CLIENTS.close()


def options(broker: FakeBroker, **more: str) -> dict[str, str]:
    own = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "t",
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "p",
        "onCommit": f"{__name__}.remember",
    }
    return own | {name.replace("__", "."): value for name, value in more.items()}


def batch_writer(broker: FakeBroker, **more: str) -> KafkaBatchWriter:
    more = {"allowUnnamedWrite": "true"} | more
    return KafkaDataSource(CaseInsensitiveDict(options(broker, **more))).writer(schema(value="string"), False)


def stream_writer(broker: FakeBroker, **more: str) -> KafkaStreamWriter:
    return KafkaDataSource(CaseInsensitiveDict(options(broker, **more))).streamWriter(schema(value="string"), False)


def run_task(
    monkeypatch: pytest.MonkeyPatch, writer: Any, rows: list[str], partition: int = 0, **task: Any
) -> KafkaCommitMessage:
    """Write as Spark does: the writer is pickled into a task, and the message is pickled back."""
    monkeypatch.setattr(writer_module.Task, "current", classmethod(lambda _: Task(partition=partition, **task)))
    batches = [pa.RecordBatch.from_arrays([pa.array(rows, pa.string())], names=["value"])] if rows else []
    message = pickle.loads(pickle.dumps(writer)).write(iter(batches))
    received = pickle.loads(pickle.dumps(message))
    assert received == message
    return received


def ongoing_ids(broker: FakeBroker) -> list[str]:
    return [name for name, each in broker.transactions.transactions.items() if each.state is State.ONGOING]


def test_rows_of_a_batch_are_seen_when_the_driver_commits(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = time.time()
    writer = batch_writer(broker)
    messages = [run_task(monkeypatch, writer, rows, partition) for partition, rows in enumerate([["a", "b"], ["c"], []])]
    assert visible_rows(broker) == []
    writer.commit(messages)
    assert visible_rows(broker) == ["a", "b", "c"]
    (summary,) = SUMMARIES
    assert summary.rows == 3
    assert summary.exactly_once is not None
    assert (summary.exactly_once.owner, summary.exactly_once.how) == ("%unnamed", "committed")
    assert int(before_s * 1000) <= summary.exactly_once.version <= time.time() * 1000
    assert [(each.first, each.last, each.rows) for each in summary.written] == [(0, 2, 3)]


def test_a_failed_write_is_not_seen_and_leaves_nothing_open(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = batch_writer(broker)
    message = run_task(monkeypatch, writer, ["a"])
    writer.abort([message, None])
    assert visible_rows(broker) == []
    assert ongoing_ids(broker) == []


def test_a_task_of_a_write_that_was_given_up_ends_quietly_and_cannot_be_committed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """query.stop() filled the log with stack traces of such tasks, where Spark does not kill them."""
    writer = batch_writer(broker)
    message = run_task(monkeypatch, writer, ["a"])
    writer.abort([message, None])
    late = run_task(monkeypatch, writer, ["b"], 1)
    assert (late.spark_partition, late.rows, late.found_abort) == (1, 0, True)
    with pytest.raises(WriteAbortedError, match=r"1 of 2 tasks ended without their rows.*Nothing of this write is seen"):
        writer.commit([message, late])
    assert (visible_rows(broker), ongoing_ids(broker)) == ([], [])


def test_abort_without_any_message_ends_what_is_open(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"query_id": QUERY, "batch_id": 0}
    run_task(monkeypatch, stream_writer(broker), ["a"], **task)
    stream_writer(broker).abort([], 0)
    assert ongoing_ids(broker) == []


def test_a_write_with_the_same_name_and_number_is_found(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Log and report escaped the name, as "job%2D1%2Fa", so that it could not be looked up by txnAppId."""
    write_options = {"txnAppId": "job-1/a", "txnVersion": "5", "reportPath": str(tmp_path / "report")}
    for _ in range(2):
        writer = batch_writer(broker, **write_options)
        writer.commit([run_task(monkeypatch, writer, ["a"])])
    assert visible_rows(broker) == ["a"]
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert [line["exactly_once"]["how"] for line in lines] == ["committed", "found"]
    assert [line["rows"] for line in lines] == [1, 0]
    assert {(line["exactly_once"]["owner"], line["exactly_once"]["version"]) for line in lines} == {("job-1/a", 5)}
    assert "version 5 of job-1/a: " in caplog.text
    assert [each.exactly_once.how for each in SUMMARIES if each.exactly_once] == ["committed", "found"]


def test_a_micro_batch_is_known_by_query_and_batch(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_id in (0, 0, 1, 1):
        writer = stream_writer(broker)  # another process plans, and another commits
        message = run_task(monkeypatch, writer, [f"row {batch_id}"], query_id=QUERY, batch_id=batch_id)
        stream_writer(broker).commit([message], batch_id)
    assert visible_rows(broker) == ["row 0", "row 1"]
    assert list(broker.transactions.transactions) == [f"p-{QUERY.replace('-', '')}-0-1000"]


@pytest.mark.parametrize(
    ("name_options", "task", "takes_one"),
    [
        ({}, {}, False),
        ({"txnAppId": "job", "txnVersion": "5"}, {}, True),
        ({}, {"query_id": QUERY, "batch_id": 0}, True),
    ],
    ids=["df.write", "df.write with a name", "foreachBatch"],
)
def test_rows_are_fingerprinted_where_another_run_may_bring_them_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, name_options: dict[str, str], task: dict[str, Any], takes_one: bool
) -> None:
    """A write that has an id of its own is never repeated: nobody would compare its rows."""
    writer = batch_writer(broker, **name_options)
    message = run_task(monkeypatch, writer, ["a", "b"], **task)
    assert message.exactly_once is not None
    assert message.exactly_once.content.rows == 2
    assert (message.exactly_once.content.fingerprint != 0) == takes_one
    writer.commit([message])
    assert visible_rows(broker) == ["a", "b"]


def test_two_writes_of_one_micro_batch_need_a_prefix_each(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"query_id": QUERY, "batch_id": 0}
    first, second = batch_writer(broker), batch_writer(broker)
    first.commit([run_task(monkeypatch, first, ["a"], **task)])
    with pytest.raises(ReplayError, match="a txnVersion or transactionalIdPrefix of their own"):
        second.commit([run_task(monkeypatch, second, ["b"], **task)])
    other = batch_writer(broker, transactionalIdPrefix="p2")
    other.commit([run_task(monkeypatch, other, ["b"], **task)])
    assert visible_rows(broker) == ["a", "b"]


def fail_to_commit(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, **more: str) -> str:
    """Record the decision of a write, and let no transaction be ended. Returns what the user is told."""
    writer = batch_writer(broker, **more)
    messages = [run_task(monkeypatch, writer, rows, partition) for partition, rows in enumerate([["a"], ["b"]])]
    broker.fail_next(ApiKey.END_TXN, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, times=2)
    with pytest.raises(CommitFailedError) as raised:
        writer.commit(messages)
    writer.abort(messages)
    assert "2 of 2 transactions of version" in str(raised.value)
    return str(raised.value)


def test_what_a_named_write_has_decided_stays_open_for_its_repetition(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_options = {"txnAppId": "job-1", "txnVersion": "5"}
    assert "The version is decided: the next run commits what is left" in fail_to_commit(broker, monkeypatch, **name_options)
    assert len(ongoing_ids(broker)) == 2
    writer = batch_writer(broker, **name_options)
    writer.commit([run_task(monkeypatch, writer, ["a"]), run_task(monkeypatch, writer, ["b"], 1)])
    assert visible_rows(broker) == ["a", "b"]
    assert SUMMARIES[-1].exactly_once is not None
    assert SUMMARIES[-1].exactly_once.how == "rolled-forward"


def test_what_a_write_without_a_name_has_decided_is_committed_by_the_next(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = fail_to_commit(broker, monkeypatch)
    assert "the next unnamed write with this transactionalIdPrefix commits them" in message
    assert "its repetition is another write, and writes these rows again. With txnAppId and txnVersion" in message
    assert len(ongoing_ids(broker)) == 2
    writer = batch_writer(broker)
    writer.commit([run_task(monkeypatch, writer, ["c"])])
    assert visible_rows(broker) == ["a", "b", "c"]
    assert ongoing_ids(broker) == []


def test_a_write_does_not_fail_for_one_without_a_name_that_was_lost(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver died after its decision, and the transactions timed out. Nobody repeats the write: to fail once helps nobody."""
    fail_to_commit(broker, monkeypatch)
    for each in broker.transactions.transactions.values():
        each.start_ms = 0
    assert broker.transactions.abort_timed_out()
    writer = batch_writer(broker)
    writer.commit([run_task(monkeypatch, writer, ["c"])])
    assert visible_rows(broker) == ["c"]
    assert "only a part of version" in caplog.text


def test_an_unnamed_write_of_a_driver_whose_clock_went_back_is_refused(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be taken for those of an earlier write, which has the same number of rows and no fingerprint."""
    moments = iter([2_000, 1_000])
    monkeypatch.setattr(DriverTime, "now", classmethod(lambda cls: cls("host", next(moments))))
    first = batch_writer(broker)
    first.commit([run_task(monkeypatch, first, ["a"])])
    second = batch_writer(broker)
    with pytest.raises(CommitFailedError, match=r"planned at 1000 ms .* at 2000 ms.*Nothing was written"):
        second.commit([run_task(monkeypatch, second, ["b"])])
    assert visible_rows(broker) == ["a"]


def test_what_an_unnamed_write_has_decided_is_committed_whatever_the_clock_says(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([2_000, 500, 1_000])  # of the plan, of abort(), and of the next plan
    monkeypatch.setattr(DriverTime, "now", classmethod(lambda cls: cls("host", next(moments))))
    fail_to_commit(broker, monkeypatch)
    second = batch_writer(broker)
    with pytest.raises(CommitFailedError, match="by its driver's clock"):
        second.commit([run_task(monkeypatch, second, ["c"])])
    assert visible_rows(broker) == ["a", "b"]
    assert ongoing_ids(broker) == []


def test_writes_without_a_name_have_one_transactional_id_for_each_partition(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(1_000, 2_000))
    monkeypatch.setattr(DriverTime, "now", classmethod(lambda cls: cls("host", next(moments))))
    for number in range(5):
        writer = batch_writer(broker)
        writer.commit([run_task(monkeypatch, writer, [f"{number}"])])
    assert visible_rows(broker) == ["0", "1", "2", "3", "4"]
    assert list(broker.transactions.transactions) == ["p-%unnamed-0-1000"]


def test_other_rows_of_a_repetition_are_counted_where_they_are_accepted(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_options = {"txnAppId": "job", "txnVersion": "5", "onNonDeterministicReplay": "keepfirst"}
    for rows in (["a"], ["b", "c"]):
        writer = batch_writer(broker, **write_options)
        writer.commit([run_task(monkeypatch, writer, rows)])
    assert visible_rows(broker) == ["a"]
    assert [each.exactly_once.other_rows for each in SUMMARIES if each.exactly_once] == [0, 2]


def test_a_stream_whose_batch_spark_does_not_tell_writes_nothing(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match="KAFKA_NO_STREAM_IDENTITY"):
        run_task(monkeypatch, stream_writer(broker), ["a"], query_id=QUERY)
    assert not broker.values("t")


@pytest.mark.parametrize("identity", [{}, {"query_id": QUERY}, {"batch_id": 0}], ids=["nothing", "the query", "the batch"])
def test_a_write_without_a_name_writes_nothing_unless_it_is_allowed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, identity: dict[str, Any]
) -> None:
    """The write took another name each time. In foreachBatch over Spark Connect, or in a thread of the function's, a micro-batch
    that was repeated was written again, without a word: Spark tells such a task neither query nor batch."""
    writer = batch_writer(broker, allowUnnamedWrite="false")
    with pytest.raises(
        KafkaError, match=r"KAFKA_UNNAMED_WRITE.*Set txnAppId and txnVersion.*allowUnnamedWrite=true.*partition 0"
    ):
        run_task(monkeypatch, writer, ["a"], **identity)
    assert broker.requests == []
    writer.abort([None])
    assert (broker.values("t"), list(broker.transactions.transactions)) == ([], [])


def test_a_write_with_exactly_once_options_is_found_by_its_repetition(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in (0, 1, 1):
        writer = batch_writer(broker, allowUnnamedWrite="false", **exactly_once_options("my orders", batch_id))
        writer.commit([run_task(monkeypatch, writer, [f"row {batch_id}"])])
    assert visible_rows(broker) == ["row 0", "row 1"]
    assert [each.exactly_once.how for each in SUMMARIES if each.exactly_once] == ["committed", "committed", "found"]


def test_dead_letters_and_skipped_rows_are_part_of_the_transaction(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = batch_writer(
        broker, onRecordTooLarge="deadLetter", deadLetterTopic="dead", kafka__max__request__size="1000", kafka__batch__size="500"
    )
    large = "x" * 2000
    message = run_task(monkeypatch, writer, ["a", large, "b"])
    assert (message.rows, message.dead_lettered) == (2, 1)
    assert (visible_rows(broker), visible_rows(broker, "dead")) == ([], [])
    writer.commit([message])
    assert (visible_rows(broker), visible_rows(broker, "dead")) == (["a", "b"], [large])
    assert ongoing_ids(broker) == []


def test_a_marker_topic_that_does_not_exist_raises_before_any_row_is_written(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker failed after all rows, with an error that did not name the option."""
    monkeypatch.setattr(exactly_once_task, "MARKER_TOPIC_TIMEOUT_MS", 5_000)
    monkeypatch.setattr(heartbeat_module, "INTERVAL_MS", 20)
    with pytest.raises(KafkaError, match=r"KAFKA_UNKNOWN_TOPIC\] markerTopic=absent was not found: .*Create the topic"):
        run_task(monkeypatch, batch_writer(broker, markerTopic="absent"), ["a"])
    assert broker.requests_of(ApiKey.PRODUCE) == []
    assert broker.requests_of(ApiKey.OFFSET_COMMIT) == []  # there is no heartbeat, which would fail too and alarm somebody
    assert "absent" not in broker.topics


def test_a_marker_topic_is_looked_for_once_and_only_if_it_is_another_topic(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_names: list[str] = []
    message = FindLeaders.message

    def remembered(self: FindLeaders, items: Sequence[str], node_id: int, version: int) -> MetadataRequest:
        topic_names.extend(items)
        return message(self, items, node_id, version)

    monkeypatch.setattr(FindLeaders, "message", remembered)
    for number in range(3):
        run_task(monkeypatch, batch_writer(broker, markerTopic="dead"), ["a"], number)
        run_task(monkeypatch, batch_writer(broker), ["a"], number)
        run_task(monkeypatch, batch_writer(broker, markerTopic="t"), ["a"], number)
    assert topic_names == ["dead"]


def test_only_dead_letters_make_requests_larger_than_the_user_allows(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of such a task took up to 100 MB, which a service with small limits refuses by closing the connection."""
    broker.add_topic("wide", 20)
    own = {"kafka__max__request__size": "5000", "kafka__batch__size": "1000", "kafka__linger__ms": "1000"}
    writer = batch_writer(broker, topic="wide", onRecordTooLarge="deadLetter", deadLetterTopic="dead", **own)
    large = "x" * 20_000
    message = run_task(monkeypatch, writer, [*(f"{number:0900}" for number in range(300)), large])
    assert (message.rows, message.dead_lettered) == (300, 1)
    requests = [request.message for request in broker.requests_of(ApiKey.PRODUCE)]
    batches = [[part.records for topic in request.topic_data for part in topic.partition_data] for request in requests]
    sizes = [sum(len(buffer) for records in each for buffer in records) for each in batches]
    assert [size for size in sizes if size > 5000] == [pytest.approx(20_000, rel=0.1)]
    assert max(map(len, batches)) > 1


LETTER = "x" * 2000


@pytest.mark.parametrize(
    "values",
    [
        [[LETTER]],
        [["a", LETTER], ["b"]],
        [["a"], [LETTER], ["b"], ["c"]],
        [["a" * 900] * 40, [LETTER], ["b" * 900] * 400],
        [[LETTER], ["b" * 900] * 400, [LETTER, "c"]],
    ],
    ids=["alone", "with rows", "amid rows", "amid many rows", "twice"],
)
@pytest.mark.parametrize("when", ["at once", "when the rows wait to be acknowledged", "while more rows are read"])
def test_a_dead_letter_that_a_broker_rejects_is_the_tasks_error(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, when: str, values: list[list[str]]
) -> None:
    """The transaction is aborted then. Its other rows fail too, with an error that does not say why."""
    broker.add_topic("tight", 1, max_message_bytes=1500)
    limits = {"kafka__max__request__size": "1000", "kafka__batch__size": "500", "kafka__linger__ms": "0"}
    writer = batch_writer(broker, onRecordTooLarge="deadLetter", deadLetterTopic="tight", **limits)
    answer, tight = threading.Event(), TopicPartition("tight", 0)
    if when == "at once":
        answer.set()
    broker.inject(Fault(ApiKey.PRODUCE, topic_partition=tight, error=Errors.MESSAGE_TOO_LARGE, release=answer))

    def batches() -> Iterator[pa.RecordBatch]:
        for each in values:
            yield pa.RecordBatch.from_arrays([pa.array(each, pa.string())], names=["value"])
            if when == "while more rows are read":
                answer.set()
        answer.set()

    monkeypatch.setattr(writer_module.Task, "current", classmethod(lambda _: Task(partition=0)))
    refused = r"KAFKA_MESSAGE_TOO_LARGE\] rows cannot be written to deadLetterTopic=tight either"
    with pytest.raises(KafkaError, match=refused) as raised:
        writer.write(batches())
    assert "max.request.size" not in str(raised.value)
    assert ongoing_ids(broker) == []


def test_a_task_whose_rows_are_all_skipped_leaves_its_marker(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    write_options = {"txnAppId": "a", "txnVersion": "1", "onRecordTooLarge": "skip", "kafka__max__request__size": "1000"}
    for _ in range(2):
        writer = batch_writer(broker, **write_options)
        message = run_task(monkeypatch, writer, ["x" * 2000])
        writer.commit([message])
    assert [each.skipped for each in SUMMARIES] == [1, 0]


def test_a_row_that_a_broker_rejects_fails_its_task(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = batch_writer(broker, onInvalidRecord="skip")
    broker.inject(Fault(ApiKey.PRODUCE, error=Errors.INVALID_RECORD, error_message="no"))
    with pytest.raises(KafkaError, match="a row that a broker rejects fails its task"):
        run_task(monkeypatch, writer, ["a"])
    assert ongoing_ids(broker) == []
    message = run_task(monkeypatch, writer, ["a"], attempt=1)
    writer.commit([message])
    assert visible_rows(broker) == ["a"]


def heartbeats(broker: FakeBroker) -> list[str]:
    return [each for each in broker.offsets.groups if each.endswith("-heartbeat")]


def slow_rows(until: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """The first row comes when `until` is true; a test that fails ends after a minute."""
    deadline, never = time.monotonic() + 60, threading.Event()
    while not until() and time.monotonic() < deadline:
        never.wait(0.01)
    yield pa.RecordBatch.from_arrays([pa.array(["a"])], names=["value"])


def test_a_task_that_waits_for_its_first_row_shows_a_heartbeat_under_its_query(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "INTERVAL_MS", 200)
    task = Task(query_id=QUERY, batch_id=0)
    monkeypatch.setattr(writer_module.Task, "current", classmethod(lambda _: task))
    written = stream_writer(broker).write(slow_rows(lambda: len(broker.requests_of(ApiKey.OFFSET_COMMIT)) >= 2))
    assert heartbeats(broker) == [f"p-{QUERY.replace('-', '')}-heartbeat"]
    stream_writer(broker).commit([written], 0)
    assert visible_rows(broker) == ["a"]


def test_a_heartbeat_that_brokers_refuse_fails_no_task(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat_module, "INTERVAL_MS", 3_000)  # which is also how long a heartbeat waits for its answer
    broker.fail_next(ApiKey.OFFSET_COMMIT, Errors.GROUP_AUTHORIZATION_FAILED)
    writer = batch_writer(broker)
    message = writer.write(slow_rows(lambda: "no heartbeat" in caplog.text))
    assert "Grant the user READ on the group" in caplog.text
    writer.commit([message])
    assert visible_rows(broker) == ["a"]


def test_a_task_of_a_moment_commits_no_heartbeat(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    run_task(monkeypatch, batch_writer(broker), ["a"])
    assert not broker.requests_of(ApiKey.OFFSET_COMMIT)
    assert CLIENTS.idle_count() == 1


def test_a_write_without_tasks_commits_nothing(broker: FakeBroker) -> None:
    batch_writer(broker).commit([])
    assert [each.exactly_once for each in SUMMARIES] == [None]


@pytest.mark.parametrize(("timeout_options", "timeout_ms"), [({}, 900_000), ({"kafka__transaction__timeout__ms": "5000"}, 5_000)])
def test_the_time_out_is_the_longest_that_brokers_allow_unless_the_user_sets_it(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, timeout_options: dict[str, str], timeout_ms: int
) -> None:
    run_task(monkeypatch, batch_writer(broker, **timeout_options), ["a"])
    (transaction,) = broker.transactions.transactions.values()
    assert transaction.timeout_ms == timeout_ms


@pytest.mark.parametrize(
    ("api", "error", "hint"),
    [
        (ApiKey.PRODUCE, Errors.INVALID_PRODUCER_EPOCH, "another write with the same transactionalIdPrefix has begun"),
        (ApiKey.TXN_OFFSET_COMMIT, Errors.PRODUCER_FENCED, "another write with the same transactionalIdPrefix has begun"),
        (
            ApiKey.INIT_PRODUCER_ID,
            Errors.INVALID_TRANSACTION_TIMEOUT,
            "lower kafka.transaction.timeout.ms to the brokers' transaction",
        ),
        (ApiKey.PRODUCE, Errors.TRANSACTION_ABORTABLE, "abort"),
        (ApiKey.TXN_OFFSET_COMMIT, Errors.TRANSACTION_ABORTABLE, "abort"),
    ],
)
def test_errors_of_the_producer_name_their_reasons_in_spark(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, api: ApiKey, error: Any, hint: str
) -> None:
    broker.fail_next(api, error)
    with pytest.raises(KafkaError, match=hint) as raised:
        run_task(monkeypatch, batch_writer(broker, kafka__transaction__timeout__ms="60000"), ["a"])
    for_callers_of_a_producer = ("close it", "abort_transaction")
    assert not [each for each in for_callers_of_a_producer if each in str(raised.value)]


# FAILURES WHILE THE MARKER IS ON ITS WAY

LIMIT_S = 30
SMALL_BATCHES = {"kafka__batch__size": "50000", "kafka__linger__ms": "0"}
ROWS_OF_MANY_BATCHES = 40_000


def write_until_failed(monkeypatch: pytest.MonkeyPatch, writer: Any, values: list[str]) -> None:
    """Run a task whose input ends after the transaction has failed."""
    failed, become_abortable = threading.Event(), TransactionManager.become_abortable

    def note(transactions: TransactionManager, error: KafkaError) -> None:
        become_abortable(transactions, error)
        failed.set()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])
        assert failed.wait(LIMIT_S)

    monkeypatch.setattr(TransactionManager, "become_abortable", note)
    monkeypatch.setattr(writer_module.Task, "current", classmethod(lambda _: Task(partition=0)))
    writer.write(batches())


def test_a_row_that_was_rejected_before_the_input_ends_is_named(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker was refused first, with an error that named no row."""
    broker.add_topic("small", 1, max_message_bytes=4000)
    values = ["a" * 40] * ROWS_OF_MANY_BATCHES + ["b" * 5000]
    with pytest.raises(KafkaError, match=rf"^\[KAFKA_MESSAGE_TOO_LARGE\].*row {ROWS_OF_MANY_BATCHES} of this task"):
        write_until_failed(monkeypatch, batch_writer(broker, topic="small", **SMALL_BATCHES), values)


def test_a_task_whose_marker_times_out_leaves_nothing_open(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task closed its producer while that prepared the transaction, and left it to the driver: readers waited until then."""
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.COORDINATOR_LOAD_IN_PROGRESS, times=100_000)
    writer = batch_writer(broker, kafka__max__block__ms="1500")
    with pytest.raises(KafkaError, match="KAFKA_TRANSACTION_TIMEOUT"):
        run_task(monkeypatch, writer, ["a"])
    assert ongoing_ids(broker) == []


def test_rows_that_wait_fail_with_the_reason_of_the_transaction(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator of the marker's group is looked up while rows are queued; their error said that others had failed."""
    errors = FindCoordinatorHandler.errors

    def denied(self: FindCoordinatorHandler, answer: Any) -> Iterator[Any]:
        if self.group is None:
            yield from errors(self, answer)
        else:
            yield from self._problems_of(
                Errors.GROUP_AUTHORIZATION_FAILED.number, f"the coordinator of {self.key}", group=self.group
            )

    monkeypatch.setattr(FindCoordinatorHandler, "errors", denied)
    writer = batch_writer(broker, **SMALL_BATCHES)
    with pytest.raises(KafkaError) as raised:
        run_task(monkeypatch, writer, ["a" * 40] * ROWS_OF_MANY_BATCHES)
    assert raised.value.condition == "KAFKA_GROUP_AUTHORIZATION_FAILED"
