"""Random messages of kio's generated classes, and the same messages as ours."""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from functools import cache
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from spark_kafka_sink.protocol.api_keys import API_TABLE
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from spark_kafka_sink.protocol.schema import Message

MESSAGES: list[type[Message]] = [
    ProduceRequest, ProduceResponse, MetadataRequest, MetadataResponse, ApiVersionsRequest, ApiVersionsResponse,
    InitProducerIdRequest, InitProducerIdResponse, SaslHandshakeRequest, SaslHandshakeResponse,
    SaslAuthenticateRequest, SaslAuthenticateResponse,
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    DescribeProducersRequest, DescribeProducersResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse,
    FindCoordinatorRequest, FindCoordinatorResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListTransactionsRequest, ListTransactionsResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
    TxnOffsetCommitRequest, TxnOffsetCommitResponse,
]  # fmt: skip
CASES = [
    (cls, version)
    for cls in MESSAGES
    for version in range(API_TABLE[cls.API_KEY].min_version, API_TABLE[cls.API_KEY].max_version + 1)
]
OUR_NAMES = {"throttle_time": "throttle_time_ms", "timeout": "timeout_ms", "transaction_timeout": "transaction_timeout_ms"}
NULLABLE = ("string", "bytes", "array", "array of string")
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def kio_class(cls: type[Message], version: int) -> Any:
    kind = "request" if cls.__name__.endswith("Request") else "response"
    module = importlib.import_module(f"kio.schema.{API_TABLE[cls.API_KEY].key.name.lower()}.v{version}.{kind}")
    return getattr(module, cls.__name__)


def without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return inner, True
    return hint, False


@cache
def fields_of(theirs: Any) -> list[tuple[str, Any, str, bool, Any]]:
    """(kio's name, our name, kafka type, nullable, element or structure class) of each field."""
    hints = typing.get_type_hints(theirs)
    fields = []
    for field in dataclasses.fields(theirs):
        hint, nullable = without_none(hints[field.name])
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
            kind = "array"
        else:
            kind = str(field.metadata.get("kafka_type", "structure"))
        our_name = OUR_NAMES.get(field.name, field.name)
        fields.append((field.name, our_name, kind, nullable, hint if kind in ("array", "structure") else field.metadata))
        if kind == "array" and not dataclasses.is_dataclass(hint):
            fields[-1] = (field.name, our_name, "array of " + str(field.metadata["kafka_type"]), nullable, None)
    return fields


@cache
def values_of(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGER_BITS:
        half = 1 << (INTEGER_BITS[kind] - 1)
        return st.integers(-half, half - 1)
    return {
        "error_code": st.sampled_from([code.value for code in ErrorCode]).map(int),
        "timedelta_i32": st.integers(-(1 << 31), (1 << 31) - 1),
        "timedelta_i64": st.integers(-(1 << 50), 1 << 50),
        "datetime_i64": st.integers(0, 4_000_000_000_000),
        "string": st.text(max_size=12),
        "bool": st.booleans(),
        "uuid": st.uuids(),
        "records": st.binary(max_size=30),
        "bytes": st.binary(max_size=30),
    }[kind]


@cache
def kio_messages(theirs: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Plain values by our names: what both sides are built from."""
    fields = {}
    for _, our_name, kind, nullable, inner in fields_of(theirs):
        values: st.SearchStrategy[Any]
        if kind == "array":
            values = st.lists(kio_messages(inner), max_size=3).map(tuple)
        elif kind.startswith("array of "):
            values = st.lists(values_of(kind.removeprefix("array of ")), max_size=3).map(tuple)
        elif kind == "structure":
            values = kio_messages(inner)
        else:
            values = values_of(kind)
        nullable = nullable and kind in NULLABLE  # uuid: null is zero; records: we always send some
        fields[our_name] = values | st.none() if nullable else values
    return st.fixed_dictionaries(fields)


def build_ours(cls: Any, values: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    arguments = {}
    for name, value in values.items():
        hint, _ = without_none(hints[name])
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        if isinstance(value, dict):
            value = build_ours(hint, value)
        elif isinstance(value, tuple) and value and isinstance(value[0], dict):
            value = tuple(build_ours(hint, item) for item in value)
        elif name == "records":
            value = (value,)
        arguments[name] = value
    return cls(**arguments)
