"""DescribeConfigs: settings of brokers and topics (DescribeConfigsRequest.json).

A request for a broker's settings, such as transaction.max.timeout.ms, goes to that broker, with its id as resource name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import IGNORABLE, Int8, Int16, Int32, Message, Request, since


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsSynonym(Message):
    name: str
    value: str | None = None
    source: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult(Message):
    name: str
    value: str | None  # None if sensitive
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: Annotated[Int8, since(3), IGNORABLE] = 0
    documentation: Annotated[str | None, since(3), IGNORABLE] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: str | None = None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse(Message):
    API_KEY: ClassVar = ApiKey.DESCRIBE_CONFIGS

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource(Message):
    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None  # None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: Annotated[bool, since(3)] = False
