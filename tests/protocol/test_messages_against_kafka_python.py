"""Every message in every version, read and written again by kafka-python: a second opinion beside kio, made by other people."""

from __future__ import annotations

from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer.group
import kafka.protocol.consumer.offsets
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.schema import Message
from tests.protocol.kio_samples import CASES, build_ours, kio_class, kio_messages

MODULES = (
    kafka.protocol.producer,
    kafka.protocol.metadata,
    kafka.protocol.sasl,
    kafka.protocol.consumer.group,
    kafka.protocol.consumer.offsets,
    kafka.protocol.admin,
)


def kafka_python_class(name: str) -> Any:
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def their_name(theirs: Any, name: str) -> str:
    """Kafka's names of AddPartitionsToTxn tell the versions of clients from those of brokers; ours has only the first."""
    return next(candidate for candidate in (name, f"v3_and_below_{name}", f"{name}_v3_and_below") if hasattr(theirs, candidate))


def without_operations(values: Any) -> Any:
    """Kafka-python makes sets of these bit fields, and keeps no bit that it does not know."""
    if isinstance(values, dict):
        return {
            name: 0 if name.endswith("authorized_operations") else without_operations(value) for name, value in values.items()
        }
    return tuple(map(without_operations, values)) if isinstance(values, tuple) else values


def assert_says(theirs: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            if not name.endswith("authorized_operations"):
                assert_says(getattr(theirs, their_name(theirs, name)), value)
    elif isinstance(expected, tuple):
        assert len(theirs) == len(expected)
        for item, value in zip(theirs, expected, strict=True):
            assert_says(item, value)
    else:
        assert theirs == expected


@pytest.mark.parametrize(("cls", "version"), CASES, ids=[f"{cls.__name__}-v{version}" for cls, version in CASES])
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_both_directions_agree_with_kafka_python(cls: type[Message], version: int, data: st.DataObject) -> None:
    values = without_operations(data.draw(kio_messages(kio_class(cls, version))))
    if cls is ApiVersionsResponse:
        values["error_code"] = 0  # they read every error as version 0, whatever it is
    encoded = b"".join(build_ours(cls, values).encode(version))
    theirs = kafka_python_class(cls.__name__).decode(encoded, version=version)
    assert_says(theirs, values)
    assert bytes(theirs.encode()).hex() == encoded.hex()
