"""Transactions that somebody has left open, in a FakeBroker: written by hand, a request at a time, to the right nodes."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.schema import Request
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.raw_client import DirectClient
from tests.fakes.record_encoder import encode_batch

TOPIC = "t"


class Writer:
    """The producer of one transactional id, which never ends its transaction. Goes by the cluster's transaction.version."""

    def __init__(self, broker: FakeBroker, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.is_v2 = broker.transactions.transaction_version >= 2
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        assert not self.init()

    def coordinator(self, request: Request[Any], version: int, key_type: KeyType, key: str) -> Any:
        return DirectClient(self.broker, self.broker.coordinators.node_of(key_type, key)).ask(request, version)

    def init(self) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        answer = self.coordinator(request, 5, KeyType.TRANSACTION, self.transactional_id)
        if not answer.error_code:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return Errors.for_code(answer.error_code)

    def write(self, *values: bytes, partition: int = 0) -> ErrorCode:
        if not self.is_v2:
            request = AddPartitionsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=(AddPartitionsToTxnTopic(name=TOPIC, partitions=(partition,)),),
            )
            self.coordinator(request, 3, KeyType.TRANSACTION, self.transactional_id)
        sequence = self.sequences.get(partition, 0)
        batch = encode_batch(
            values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.sequences[partition] = sequence + len(values)
        data = TopicProduceData(name=TOPIC, partition_data=(PartitionProduceData(index=partition, records=[batch]),))
        produce = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=1, topic_data=(data,))
        leader = DirectClient(self.broker, self.broker.topics[TOPIC].partitions[partition].leader)
        answer = leader.ask(produce, 12 if self.is_v2 else 11)
        return Errors.for_code(answer.responses[0].partition_responses[0].error_code)

    def commit_offset(self, group: str, offset: int, metadata: str = "", partition: int = 0) -> ErrorCode:
        if not self.is_v2:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            self.coordinator(request, 4, KeyType.TRANSACTION, self.transactional_id)
        data = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(TxnOffsetCommitRequestTopic(name=TOPIC, partitions=(data,)),),
        )
        answer = self.coordinator(commit, 5 if self.is_v2 else 4, KeyType.GROUP, group)
        return Errors.for_code(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool) -> ErrorCode:
        """End it by the producer itself, without taking over the epoch that follows."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.coordinator(request, 5 if self.is_v2 else 4, KeyType.TRANSACTION, self.transactional_id)
        return Errors.for_code(answer.error_code)

    def prepared(self) -> PreparedTransaction:
        return PreparedTransaction(self.transactional_id, self.producer_id, self.epoch, 2 if self.is_v2 else 1)


def partition(index: int = 0) -> TopicPartition:
    return TopicPartition(TOPIC, index)
