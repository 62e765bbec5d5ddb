"""TransactionClient over sockets, against the fake cluster: requests that settle transactions without control records."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_operations import EndOutcome, EndToRepeat, TransactionEnd
from spark_kafka_sink.errors import AuthorizationError, BrokerError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.clusters import Cluster, client_of, count, state_of
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State, offsets_partition

# TAKING IDS OVER


def identity_of(broker: FakeBroker, transactional_id: str) -> ProducerIdentity:
    transaction = broker.transactions.transactions[transactional_id]
    return ProducerIdentity(transaction.producer_id, transaction.epoch)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_an_id_is_taken_over_from_the_producer_that_ended_its_transaction(cluster: Cluster, level: int, commit: bool) -> None:
    broker = cluster(transaction_version=level)
    writer, empty = Writer(broker, "P-1"), Writer(broker, "P-2")
    writer.write(b"x")
    assert not writer.end(commit=commit)
    last_identity = identity_of(broker, "P-1")
    with client_of(broker) as client:
        identities = client.take_over({"P-1": last_identity, "P-2": ProducerIdentity(empty.producer_id, empty.epoch)})
    assert identities == {
        "P-1": (last_identity.producer_id, last_identity.producer_epoch + 1),
        "P-2": (empty.producer_id, empty.epoch + 1),
    }
    assert identities == {name: identity_of(broker, name) for name in identities}
    assert {broker.transactions.transactions[name].timeout_ms for name in identities} == {30_000}
    assert {state_of(broker, name) for name in identities} == {State.EMPTY}


def test_an_id_that_somebody_else_has_taken_meanwhile_is_left_to_him(cluster: Cluster) -> None:
    """A plain InitProducerId would fence the other one, whatever he is doing with the id."""
    broker = cluster()
    expected = {}
    for name in ("P-1", "P-2", "P-3"):
        expected[name] = ProducerIdentity(Writer(broker, name).producer_id, 0)
    other = Writer(broker, "P-1")
    assert not other.init()
    expected["P-3"] = ProducerIdentity(other.producer_id + 1000, 0)
    with client_of(broker) as client:
        identities = client.take_over(expected)
    assert identities == {"P-1": None, "P-2": (expected["P-2"].producer_id, 1), "P-3": None}
    assert not other.write(b"x")
    assert not other.end(commit=True)


@pytest.mark.parametrize(
    "error", [Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH, Errors.INVALID_PRODUCER_ID_MAPPING], ids=str
)
def test_every_answer_that_names_another_producer_is_understood(cluster: Cluster, error: ErrorCode) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, error)
    with client_of(broker) as client:
        assert client.take_over({"P": ProducerIdentity(writer.producer_id, 0)}) == {"P": None}


def test_a_lost_answer_to_a_take_over_is_asked_for_again_without_another_epoch(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    broker.drop_next(ApiKey.INIT_PRODUCER_ID, after_append=True)
    with client_of(broker) as client:
        assert client.take_over({"P": ProducerIdentity(writer.producer_id, 0)}) == {"P": (writer.producer_id, 1)}
    assert count(broker, ApiKey.INIT_PRODUCER_ID) == 3  # the writer's, and two


def test_an_id_that_may_not_be_written_is_an_error_and_not_somebody_elses(cluster: Cluster) -> None:
    broker = cluster()
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with client_of(broker) as client, pytest.raises(AuthorizationError, match="Grant the user WRITE on the transactional id 'P'"):
        client.take_over({"P": ProducerIdentity(1, 0)})


def test_a_broker_that_cannot_be_told_whom_to_expect_is_not_asked_without_it(cluster: Cluster) -> None:
    broker = cluster(versions={ApiKey.INIT_PRODUCER_ID: (0, 2)})
    with client_of(broker) as client, pytest.raises(UnsupportedVersionError, match="INIT_PRODUCER_ID is needed in version 3"):
        client.take_over({"P": ProducerIdentity(1, 0)})
    assert count(broker, ApiKey.INIT_PRODUCER_ID) == 0


def test_nothing_to_take_over_asks_nobody(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        assert client.take_over({}) == {}
    assert broker.requests == []


# ENDING AGAIN


def hanging(broker: FakeBroker, name: str, *, commit: bool, group: str | None = None) -> Writer:
    """A writer whose transaction is complete at its coordinator, without control records in partition 0 and in the group's."""
    writer = Writer(broker, name)
    writer.write(b"hangs")
    writer.write(b"is ended", partition=1)
    broker.transactions.skipped = {partition()}
    if group is not None:
        assert not writer.commit_offset(group, 7)
        broker.transactions.skipped.add(offsets_partition(group))
    assert not writer.end(commit=commit)
    broker.transactions.skipped = set()
    return writer


def present(broker: FakeBroker, name: str) -> PreparedTransaction:
    level = broker.transactions.transaction_version
    return PreparedTransaction(name, *identity_of(broker, name), level)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_control_record_that_was_skipped_comes_with_a_second_end(cluster: Cluster, level: int, commit: bool) -> None:
    """EndTxn was answered with success, and no reader saw the rows: the next abort would have taken them away for good."""
    broker = cluster(transaction_version=level)
    writers = [hanging(broker, f"P-{number}", commit=commit, group=f"g-{number}") for number in range(3)]
    assert broker.last_stable_offset(TOPIC, 0) == 0
    repeats = [EndToRepeat(present(broker, f"P-{n}"), frozenset({partition(), partition(1)}), f"g-{n}") for n in range(3)]
    with client_of(broker) as client:
        outcomes = client.end_again(repeats, commit)
    assert outcomes == {f"P-{number}": EndOutcome(TransactionEnd.ENDED) for number in range(3)}
    assert broker.committed_values(TOPIC) == ([b"hangs"] * 3 + [b"is ended"] * 3 if commit else [])
    assert broker.last_stable_offset(TOPIC, 0) == 6
    assert [partition() in broker.offsets.committed(f"g-{number}") for number in range(3)] == [commit] * 3
    assert {state_of(broker, f"P-{n}") for n in range(3)} == {State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT}
    assert {request.header.api_version for request in broker.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)} == {3}
    for writer in writers:
        assert not writer.init()
        assert not writer.write(b"next")


@pytest.mark.parametrize("level", [1, 2])
def test_an_end_that_broke_off_after_the_transaction_had_begun_is_repeated(cluster: Cluster, level: int) -> None:
    broker = cluster(transaction_version=level)
    hanging(broker, "P", commit=True)
    repeat = EndToRepeat(present(broker, "P"), frozenset({partition()}))
    broker.fail_next(ApiKey.END_TXN, Errors.UNKNOWN_SERVER_ERROR)
    with client_of(broker) as client:
        assert client.end_again([repeat], True)["P"].end is TransactionEnd.FAILED
        assert state_of(broker, "P") is State.ONGOING
        assert present(broker, "P") == repeat.transaction
        assert client.end_again([repeat], True)["P"].end is TransactionEnd.ENDED
    assert broker.committed_values(TOPIC) == [b"hangs", b"is ended"]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("api_key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN])
def test_what_gets_lost_while_ending_again_is_asked_for_again(cluster: Cluster, level: int, api_key: ApiKey) -> None:
    broker = cluster(transaction_version=level)
    hanging(broker, "P", commit=True, group="g")
    broker.drop_next(api_key, after_append=True)
    broker.fail_next(api_key, Errors.CONCURRENT_TRANSACTIONS, times=2)
    with client_of(broker) as client:
        outcomes = client.end_again([EndToRepeat(present(broker, "P"), frozenset({partition()}), "g")], True)
    assert outcomes["P"].end is TransactionEnd.ENDED
    assert broker.committed_values(TOPIC) == [b"hangs", b"is ended"]
    assert broker.offsets.committed("g")


def test_an_identity_that_is_not_in_force_any_more_ends_nothing(cluster: Cluster) -> None:
    broker = cluster()
    repeats = []
    for name in ("P-1", "P-2"):
        hanging(broker, name, commit=True)
        repeats.append(EndToRepeat(present(broker, name), frozenset({partition()}), "g"))
    successor = Writer(broker, "P-1")
    with client_of(broker) as client:
        outcomes = client.end_again(repeats, True)
    assert outcomes["P-1"].end is TransactionEnd.NOT_OPEN
    assert isinstance(outcomes["P-1"].error, BrokerError)
    assert outcomes["P-2"].end is TransactionEnd.ENDED
    assert count(broker, ApiKey.END_TXN) == 3  # the writers' two, and one
    assert not successor.write(b"x", partition=2)


def test_a_transaction_with_nothing_to_end_is_not_open(cluster: Cluster) -> None:
    broker = cluster()
    hanging(broker, "P", commit=True)
    with client_of(broker) as client:
        outcome = client.end_again([EndToRepeat(present(broker, "P"), frozenset())], True)["P"]
        assert client.end_again([], True) == {}
    assert outcome.end is TransactionEnd.NOT_OPEN
    assert outcome.error is not None
    assert outcome.error.condition == "KAFKA_INVALID_TXN_STATE"


def test_partitions_that_were_deleted_are_left_out_and_named(cluster: Cluster) -> None:
    """A coordinator that does not know one of the partitions adds none of them."""
    broker = cluster()
    hanging(broker, "P-1", commit=True)
    hanging(broker, "P-2", commit=True)
    deleted = TopicPartition("deleted", 3)
    repeats = [
        EndToRepeat(present(broker, "P-1"), frozenset({partition(), deleted})),
        EndToRepeat(present(broker, "P-2"), frozenset({deleted}), "g"),
    ]
    with client_of(broker) as client:
        outcomes = client.end_again(repeats, True)
    assert outcomes == {name: EndOutcome(TransactionEnd.ENDED, missing=frozenset({deleted})) for name in ("P-1", "P-2")}
    assert broker.transactions.transactions["P-2"].partitions == set()
    with broker.lock:
        assert broker.topics[TOPIC].partitions[0].transactions.first_offsets.keys() == {repeats[1].transaction.producer_id}


@pytest.mark.parametrize(
    ("api_key", "error", "text"),
    [
        (ApiKey.ADD_PARTITIONS_TO_TXN, Errors.TOPIC_AUTHORIZATION_FAILED, "Grant the user WRITE on the topic 't'"),
        (ApiKey.ADD_OFFSETS_TO_TXN, Errors.GROUP_AUTHORIZATION_FAILED, "Grant the user READ on the group 'g'"),
    ],
)
def test_what_cannot_be_added_is_an_error_and_the_rest_is_ended(
    cluster: Cluster, api_key: ApiKey, error: ErrorCode, text: str
) -> None:
    """What could be added has begun the transaction: if it stayed open, its coordinator would abort it, and rows were lost."""
    broker = cluster()
    hanging(broker, "P", commit=True, group="g")
    broker.fail_next(api_key, error)
    with client_of(broker) as client:
        outcome = client.end_again([EndToRepeat(present(broker, "P"), frozenset({partition()}), "g")], True)["P"]
    assert outcome.end is TransactionEnd.FAILED
    assert text in str(outcome.error)
    assert state_of(broker, "P") is State.COMPLETE_COMMIT
    assert bool(broker.offsets.committed("g")) == (api_key is ApiKey.ADD_PARTITIONS_TO_TXN)
    assert (b"hangs" in broker.committed_values(TOPIC)) == (api_key is ApiKey.ADD_OFFSETS_TO_TXN)


# GROUPS AND BROKERS


def test_offsets_that_a_transaction_holds_are_said_at_once(cluster: Cluster) -> None:
    broker = cluster()
    names = [f"g-{number}" for number in range(8)]
    with client_of(broker) as client:
        for name in names:
            client.commit_offsets(name, {partition(): (1, "before")})
        writer = Writer(broker, "P")
        assert not writer.commit_offset("g-1", 2)
        assert not writer.commit_offset("g-2", 2)
        broker.transactions.skipped = {offsets_partition("g-1")}
        assert not writer.end(commit=True)
        broker.transactions.skipped = set()
        question = client.stable_offsets_question({name: [partition()] for name in names})
        offsets = client.ask(question)
        assert client.end_again([EndToRepeat(present(broker, "P"), frozenset(), "g-1")], True)["P"].error is None
        after = client.ask(question)
    before = {partition(): CommittedOffset(1, "before")}
    committed = {partition(): CommittedOffset(2, "")}
    assert offsets == dict.fromkeys(names, before) | {"g-1": None, "g-2": committed}
    assert after == offsets | {"g-1": committed}


def test_a_group_that_may_not_be_read_is_an_error_of_its_own(cluster: Cluster) -> None:
    broker = cluster(nodes=1)
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED)
    with client_of(broker, max_in_flight_requests_per_connection=1) as client:
        (outcome,) = client.ask(client.stable_offsets_question({"g": [partition()]})).values()
        assert isinstance(outcome, AuthorizationError)
        assert client.ask(client.stable_offsets_question({"g": [partition()]})) == {"g": {}}
        assert client.ask(client.stable_offsets_question({})) == {}


def test_brokers_that_may_skip_control_records_are_known_by_what_they_support(cluster: Cluster) -> None:
    """Kafka 4.3.0 and newer; 4.2.0 and older do not, and the oldest name no features at all."""
    broker = cluster(nodes=5)
    for node_id, level in enumerate((29, 30, 33, 31)):
        broker.supported_features[node_id]["metadata.version"] = level
    del broker.supported_features[4]["metadata.version"]
    with client_of(broker) as client:
        assert client.brokers_that_may_skip_control_records() == [1, 2, 3]


def test_a_broker_that_does_not_answer_in_time_may_skip_control_records(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        assert client.brokers_that_may_skip_control_records() == []
        broker.hold_next(ApiKey.API_VERSIONS, node_id=1)
        assert client.brokers_that_may_skip_control_records(timeout_ms=1_000) == [1]
