"""The requests that this client sends, as brokers read them."""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from spark_kafka_sink.protocol.primitives import Buffer, Reader
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.headers import read_request_header

REQUESTS: dict[int, type[Message]] = {
    ApiKey.PRODUCE: ProduceRequest,
    ApiKey.METADATA: MetadataRequest,
    ApiKey.API_VERSIONS: ApiVersionsRequest,
    ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest,
    ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest,
    ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest,
    ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest,
    ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest,
    ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest,
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest,
    ApiKey.DESCRIBE_PRODUCERS: DescribeProducersRequest,
    ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest,
    ApiKey.END_TXN: EndTxnRequest,
    ApiKey.FIND_COORDINATOR: FindCoordinatorRequest,
    ApiKey.LIST_OFFSETS: ListOffsetsRequest,
    ApiKey.LIST_TRANSACTIONS: ListTransactionsRequest,
    ApiKey.OFFSET_COMMIT: OffsetCommitRequest,
    ApiKey.OFFSET_FETCH: OffsetFetchRequest,
    ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest,
}


def read_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """A frame without the size in front. Raises KeyError for a request that is not in the table, ProtocolError for nonsense."""
    reader = Reader(frame)
    header = read_request_header(reader)
    return header, REQUESTS[header.api_key].decode(header.api_version, reader.take(reader.remaining_bytes()))
