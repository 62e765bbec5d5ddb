"""The requests that a producer sends, as brokers read them."""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader, read_request_header
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.primitives import Buffer, Reader
from spark_kafka_sink.protocol.schema import Message

REQUESTS: dict[int, type[Message]] = {
    ApiKey.PRODUCE: ProduceRequest,
    ApiKey.METADATA: MetadataRequest,
    ApiKey.API_VERSIONS: ApiVersionsRequest,
    ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest,
    ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest,
    ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest,
}


def read_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """A frame without the size in front. Raises KeyError for a request that is not in the table, ProtocolError for nonsense."""
    reader = Reader(frame)
    header = read_request_header(reader)
    return header, REQUESTS[header.api_key].decode(header.api_version, reader.take(reader.remaining()))
