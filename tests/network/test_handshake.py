"""network/handshake.py: the first words of a connection, and which versions follow from them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import BrokerError, UnsupportedVersionError
from spark_kafka_sink.network.handshake import NodeApiVersions, Session, handshake
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.network_config import api_versions


def finish(steps: object, answer: Message) -> NodeApiVersions:
    with pytest.raises(StopIteration) as finished:
        steps.send(answer)  # type: ignore[attr-defined]
    assert isinstance(finished.value.value, Session)
    return finished.value.value.api_versions


def test_it_asks_for_versions_and_introduces_itself() -> None:
    steps = handshake()
    message, version = next(steps)
    assert version == 4
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_name == "pykafka-sink"
    assert message.client_software_version
    assert finish(steps, api_versions()).latest_usable_version(ApiKey.PRODUCE) == 13


def test_a_broker_that_refuses_the_version_is_asked_in_version_0() -> None:
    steps = handshake()
    next(steps)
    _, version = steps.send(ApiVersionsResponse(error_code=35))
    assert version == 0
    assert finish(steps, api_versions({ApiKey.PRODUCE: (0, 8)})).latest_usable_version(ApiKey.PRODUCE) == 8


def test_a_broker_that_refuses_version_0_too_is_of_no_use() -> None:
    steps = handshake()
    next(steps)
    steps.send(ApiVersionsResponse(error_code=35))
    with pytest.raises(BrokerError, match="KAFKA_UNSUPPORTED_VERSION"):
        steps.send(ApiVersionsResponse(error_code=35))


def test_any_other_error_ends_the_handshake() -> None:
    steps = handshake()
    next(steps)
    with pytest.raises(BrokerError, match="KAFKA_INVALID_REQUEST"):
        steps.send(ApiVersionsResponse(error_code=42))


@pytest.mark.parametrize(
    ("theirs", "max_version", "expected"),
    [
        ((0, 13), None, 13),
        ((0, 20), None, 13),  # newer than we are
        ((0, 9), None, 9),
        ((5, 9), None, 9),
        ((0, 20), 12, 12),  # the request must not be newer
        ((0, 3), 12, 3),
        ((3, 3), 3, 3),
    ],
)
def test_the_newest_common_version_is_used(theirs: tuple[int, int], max_version: int | None, expected: int) -> None:
    versions = NodeApiVersions(api_versions({ApiKey.PRODUCE: theirs}))
    assert versions.latest_usable_version(ApiKey.PRODUCE, max_version) == expected


@pytest.mark.parametrize(
    ("theirs", "max_version"),
    [
        ((0, 2), None),  # advertised by some brokers, and refused by them (KAFKA-18659)
        ((14, 20), None),
        ((13, 13), 12),
    ],
)
def test_no_common_version_is_an_error_that_names_both_ranges(theirs: tuple[int, int], max_version: int | None) -> None:
    versions = NodeApiVersions(api_versions({ApiKey.PRODUCE: theirs}))
    with pytest.raises(UnsupportedVersionError, match=f"the broker speaks {theirs[0]} to {theirs[1]}, this client can use 3 to"):
        versions.latest_usable_version(ApiKey.PRODUCE, max_version)


def test_an_api_that_the_broker_does_not_know_is_an_error() -> None:
    with pytest.raises(UnsupportedVersionError, match="INIT_PRODUCER_ID in common: the broker does not know it"):
        NodeApiVersions(ApiVersionsResponse()).latest_usable_version(ApiKey.INIT_PRODUCER_ID)


def test_finalized_features_are_known() -> None:
    feature = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)
    assert NodeApiVersions(ApiVersionsResponse(finalized_features=(feature,))).finalized_features == {"transaction.version": 2}
