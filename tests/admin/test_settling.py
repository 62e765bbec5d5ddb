"""TransactionClient over sockets, against the fake cluster: requests that settle transactions without control records."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthorizationError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.admin.clusters import Cluster, client_of, count, state_of
from tests.admin.open_transactions import Writer
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State

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
