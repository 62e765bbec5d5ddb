"""TransactionClient over a scripted network: a call of several steps has one time-out for all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import groupby

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndToRepeat, TransactionEnd
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult, ResourceType
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.scripted_network import Script, ScriptedNetwork
from tests.fakes.network_config import metadata, topic

TIMEOUT_MS = 10_000


@pytest.fixture
def net() -> ScriptedNetwork:
    return ScriptedNetwork()


@pytest.fixture
def client(net: ScriptedNetwork) -> TransactionClient:
    """Its look for the brokers takes no time."""
    net.network.update_metadata(metadata(nodes=3))
    return TransactionClient({"bootstrap.servers": "b:1"}, requests=net.client)


def just_in_time(net: ScriptedNetwork, answer: Script) -> Script:
    """Each request is answered a second before the time-out, if it is a call's first step."""
    sent_ms: dict[int, int] = {}

    def answer_late(request: ClientRequest) -> Message | None:
        began_ms = sent_ms.setdefault(id(request), net.clock.now_ms())
        return answer(request) if net.clock.now_ms() - began_ms >= TIMEOUT_MS - 1_000 else None

    return answer_late


def ends_in_time(net: ScriptedNetwork, call: Callable[[], object]) -> list[ApiKey]:
    """Make the call, which may time out. Return the requests that it has sent, each run of the same once."""
    began_ms, before = net.clock.now_ms(), len(net.network.sent_requests)
    with suppress(KafkaTimeoutError):
        call()
    assert net.clock.now_ms() - began_ms <= TIMEOUT_MS
    return [key for key, _ in groupby(request.message.API_KEY for request in net.network.sent_requests[before:])]


def leaders(request: ClientRequest, **fields: int) -> MetadataResponse:
    assert isinstance(request.message, MetadataRequest)
    return metadata(*(topic(each.name or "", [0, 1], **fields) for each in request.message.topics or ()), nodes=3)


def test_fencing_and_the_question_for_the_limit_of_brokers_share_the_time_out(
    net: ScriptedNetwork, client: TransactionClient
) -> None:
    config = DescribeConfigsResult(resource_type=ResourceType.BROKER, resource_name="0")
    net.script[ApiKey.DESCRIBE_CONFIGS] = just_in_time(net, lambda _: DescribeConfigsResponse(results=(config,)))
    net.script[ApiKey.INIT_PRODUCER_ID] = just_in_time(net, lambda _: InitProducerIdResponse(producer_id=1, producer_epoch=1))
    api_keys = ends_in_time(net, lambda: client.fence(["P"], TIMEOUT_MS))
    assert api_keys == [ApiKey.DESCRIBE_CONFIGS, ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID]


def test_the_steps_of_ending_again_share_the_time_out(net: ScriptedNetwork, client: TransactionClient) -> None:
    net.script[ApiKey.ADD_OFFSETS_TO_TXN] = just_in_time(net, lambda _: AddOffsetsToTxnResponse())
    net.script[ApiKey.END_TXN] = just_in_time(net, lambda _: EndTxnResponse())
    outcomes = {}
    repeat = EndToRepeat(PreparedTransaction("P", 1, 1, 0), frozenset(), "g")
    api_keys = ends_in_time(net, lambda: outcomes.update(client.end_again([repeat], True, timeout_ms=TIMEOUT_MS)))
    assert api_keys == [ApiKey.FIND_COORDINATOR, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN]
    assert outcomes["P"].end is TransactionEnd.FAILED
    assert isinstance(outcomes["P"].error, KafkaTimeoutError)


def test_both_ways_to_find_the_coordinators_share_the_time_out_of_a_listing(
    net: ScriptedNetwork, client: TransactionClient
) -> None:
    hidden = Errors.TOPIC_AUTHORIZATION_FAILED.number
    net.script[ApiKey.METADATA] = just_in_time(net, lambda request: leaders(request, error_code=hidden))
    net.script[ApiKey.FIND_COORDINATOR] = just_in_time(net, net.find_coordinator)
    api_keys = ends_in_time(net, lambda: client.list_transactions("P", timeout_ms=TIMEOUT_MS))
    assert api_keys == [ApiKey.METADATA, ApiKey.FIND_COORDINATOR]


def test_leaders_and_their_producers_share_the_time_out(net: ScriptedNetwork, client: TransactionClient) -> None:
    net.script[ApiKey.METADATA] = just_in_time(net, leaders)
    api_keys = ends_in_time(net, lambda: client.describe_producers([TopicPartition("t", 0)], timeout_ms=TIMEOUT_MS))
    assert api_keys == [ApiKey.METADATA, ApiKey.DESCRIBE_PRODUCERS]
