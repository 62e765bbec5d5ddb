"""Ids that were fenced are put to rest by an empty commit, on brokers with each version of transactions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndOutcome, EndToRepeat, TransactionEnd, TransactionState
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity
from tests.integration.transaction_brokers import KAFKA_3_9, WITH_VERSION_0, WITH_VERSION_1, WITH_VERSION_2


@pytest.fixture(scope="module", params=[WITH_VERSION_2, WITH_VERSION_1, WITH_VERSION_0, KAFKA_3_9])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransactionClient]:
    with (
        request.param(tmp_path_factory.mktemp("broker")) as cluster,
        TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}) as client,
    ):
        yield client


def states(client: TransactionClient, prefix: str) -> dict[str, str]:
    return {each.transactional_id.removeprefix(prefix): each.state for each in client.list_transactions(prefix)}


def rest(client: TransactionClient, identities: Mapping[str, ProducerIdentity], group: str) -> dict[str, EndOutcome]:
    transactions = (PreparedTransaction(name, *identity, 0) for name, identity in identities.items())
    return client.end_again([EndToRepeat(each, frozenset(), group) for each in transactions], commit=True)


def test_fenced_ids_are_at_rest_and_can_be_fenced_again(client: TransactionClient) -> None:
    prefix = f"P{uuid.uuid4().hex}-"
    ids = [f"{prefix}{number}" for number in range(3)]
    for _ in range(2):
        fenced = client.fence(ids)
        assert set(states(client, prefix).values()) == {TransactionState.EMPTY}
        outcomes = rest(client, fenced, f"{prefix}group")
        assert [outcome.end for outcome in outcomes.values()] == [TransactionEnd.ENDED] * 3
        while set(states(client, prefix).values()) != {TransactionState.COMPLETE_COMMIT}:
            assert set(states(client, prefix).values()) <= {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}


def test_an_id_that_was_taken_meanwhile_is_left_alone(client: TransactionClient) -> None:
    prefix = f"P{uuid.uuid4().hex}-"
    fenced = client.fence([f"{prefix}0"])
    new_identities = client.fence([f"{prefix}0"])
    assert rest(client, fenced, f"{prefix}group")[f"{prefix}0"].end is not TransactionEnd.ENDED
    (description,) = client.describe_transactions([f"{prefix}0"]).values()
    assert description is not None
    assert (description.state, (description.producer_id, description.producer_epoch)) == (
        TransactionState.EMPTY,
        new_identities[f"{prefix}0"],
    )
