"""Every message in every version, byte for byte against kio's codecs, which are generated from Kafka's own schemas."""

from __future__ import annotations

import datetime
import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from spark_kafka_sink.protocol.api_keys import API_TABLE
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import Message
from tests.protocol.kio_samples import CASES, OUR_NAMES, build_ours, fields_of, kio_class, kio_messages

OUR_NAMES |= {"session_lifetime": "session_lifetime_ms"}
OUR_NAMES |= {"log_append_time": "log_append_time_ms", "retention_time": "retention_time_ms"}
OUR_NAMES |= {"transaction_start_time": "transaction_start_time_ms"}
OUR_NAMES |= {f"v3_and_below_{name}": name for name in ("transactional_id", "producer_id", "producer_epoch", "topics")}
OUR_NAMES |= {"results_by_topic_v3_and_below": "results_by_topic"}


def build_theirs(theirs: Any, values: dict[str, Any]) -> Any:
    arguments = {}
    for name, our_name, kind, _, inner in fields_of(theirs):
        value = values[our_name]
        if value is None:
            pass
        elif kind == "array":
            value = tuple(build_theirs(inner, item) for item in value)
        elif kind == "structure":
            value = build_theirs(inner, value)
        elif kind == "error_code":
            value = ErrorCode(value)
        elif kind in ("timedelta_i32", "timedelta_i64"):
            value = datetime.timedelta(milliseconds=value)
        elif kind == "datetime_i64":
            value = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=value)
        elif kind == "uuid" and value == ZERO_UUID:
            value = None
        arguments[name] = value
    return theirs(**arguments)


@pytest.mark.parametrize(("cls", "version"), CASES, ids=[f"{cls.__name__}-v{version}" for cls, version in CASES])
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_both_directions_agree_with_kio(cls: type[Message], version: int, data: st.DataObject) -> None:
    theirs_class = kio_class(cls, version)
    values = data.draw(kio_messages(theirs_class))
    ours, theirs = build_ours(cls, values), build_theirs(theirs_class, values)
    buffer = io.BytesIO()
    entity_writer(theirs_class)(buffer, theirs)
    encoded = b"".join(ours.encode(version))
    assert encoded.hex() == buffer.getvalue().hex()
    if values.get("error_code") == 35 and cls is ApiVersionsResponse and version > 0:
        return  # read as a refusal on purpose
    assert cls.decode(version, encoded) == ours
    parsed = entity_reader(theirs_class)(encoded, 0)
    assert parsed[0] == theirs


def test_every_version_that_kio_knows_and_we_speak_is_covered() -> None:
    assert len(CASES) == sum(2 * (api.max_version - api.min_version + 1) for api in API_TABLE.values())
