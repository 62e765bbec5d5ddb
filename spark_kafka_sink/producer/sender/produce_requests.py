"""Produce requests: makes a request from the batches for a node, and reads its answer batch by batch.

BatchOutcomes applies the answers. Sender thread only.
"""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

from spark_kafka_sink.network.cluster import Cluster, Node
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import LeaderAndEpoch
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender.batch_outcomes import BatchOutcomes
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MAX_VERSION_BY_NAME = 12  # version 13 and later name topics by id; a topic whose id is unknown needs an older version
_NOT_LEADER_CODES = (Errors.NOT_LEADER_OR_FOLLOWER.number, Errors.FENCED_LEADER_EPOCH.number)


class ProduceRequests:
    """Sends batches in Produce requests, and passes on the answer for each batch."""

    def __init__(self, parts: SenderParts, outcomes: BatchOutcomes) -> None:
        self._acks = parts.config.acks
        self._timeout_ms = parts.config.request_timeout_ms
        self._client = parts.client
        self._metadata = parts.metadata
        self._sequencer = parts.sequencer
        self._metrics = parts.metrics
        self._failures = parts.failures
        self._clock = parts.clock
        self._outcomes = outcomes

    # REQUESTS

    def send(self, node: int, batches: list[ProducerBatch], cluster: Cluster, now_ms: int) -> None:
        """Send drained batches to their leader. If this raises, they are queued again, unless the client has the request."""
        request_count = self._client.in_flight_request_count(node)
        try:
            self._outcomes.note_drained(batches)
            self._metrics.request_sent(batches)
            request = self._make_request(node, batches, cluster, now_ms)
            if logger.isEnabledFor(logging.DEBUG):
                for batch in batches:
                    logger.debug("> node %d: %r", node, batch)
            self._client.send(request, now_ms)
        except BaseException:
            if self._client.in_flight_request_count(node) == request_count:  # else the client has it, and will call back
                self._outcomes.take_back(batches, now_ms)
            raise

    def _make_request(self, node: int, batches: list[ProducerBatch], cluster: Cluster, now_ms: int) -> ClientRequest:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.topic_partition.partition, records=batch.wire_buffers())
            by_topic.setdefault(batch.topic_partition.topic, []).append(data)
        topics = tuple(
            TopicProduceData(name=topic, topic_id=cluster.topic_id(topic) or ZERO_UUID, partition_data=tuple(partitions))
            for topic, partitions in by_topic.items()
        )
        message = ProduceRequest(
            transactional_id=self._sequencer.transactional_id, acks=self._acks, timeout_ms=self._timeout_ms, topic_data=topics
        )
        topic_names = {topic.topic_id: topic.name for topic in topics}
        return ClientRequest(
            node_id=node,
            message=message,
            created_ms=now_ms,
            expect_response=self._acks != 0,
            request_timeout_ms=self._timeout_ms,
            callback=partial(self._handle_response, batches, topic_names),
            max_version=self._max_version(topics),
        )

    def _max_version(self, topics: tuple[TopicProduceData, ...]) -> int | None:
        """The newest version to use; None: the newest that the node knows."""
        has_all_ids = all(topic.topic_id != ZERO_UUID for topic in topics)
        version_caps = [None if has_all_ids else MAX_VERSION_BY_NAME, self._sequencer.max_produce_version]
        return min((cap for cap in version_caps if cap is not None), default=None)

    # ANSWERS

    def _handle_response(self, batches: list[ProducerBatch], topic_names: dict[UUID, str], response: ClientResponse) -> None:
        """Never raises: the client has other answers of the same poll to deliver."""
        now_ms = self._clock.now_ms()
        node = response.request.node_id
        for batch in batches:
            self._outcomes.in_flight.remove(batch)
        answers: dict[TopicPartition, PartitionProduceResponse] = {}
        with self._failures.guard_step(f"the answer of node {node}"):
            answers = self._answers_by_partition(response, batches, topic_names)
        for batch in batches:
            answer = answers.get(batch.topic_partition) or _make_answer(
                batch, Errors.UNKNOWN_SERVER_ERROR, "the response does not mention this partition"
            )
            with self._failures.guard_step(batch):
                self._outcomes.handle_answer(batch, answer, (node, response.correlation_id), now_ms)

    def _answers_by_partition(
        self, response: ClientResponse, batches: list[ProducerBatch], topic_names: dict[UUID, str]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        message: ProduceResponse | None = response.message
        if message is None:
            error, text = _error_without_message(response)
            return {batch.topic_partition: _make_answer(batch, error, text) for batch in batches}
        self._metrics.request_answered(response.request.node_id, response.received_ms - response.request.created_ms)
        answers = {
            TopicPartition(topic.name or topic_names.get(topic.topic_id, ""), answer.index): answer
            for topic in message.responses
            for answer in topic.partition_responses
        }
        self._learn_leaders(message, answers)
        return answers

    def _learn_leaders(self, message: ProduceResponse, answers: dict[TopicPartition, PartitionProduceResponse]) -> None:
        """A broker that rejects a batch may name the new leader, which saves a metadata request (KIP-951)."""
        new_leaders = {
            topic_partition: LeaderAndEpoch(answer.current_leader.leader_id, answer.current_leader.leader_epoch)
            for topic_partition, answer in answers.items()
            if answer.error_code in _NOT_LEADER_CODES
            and min(answer.current_leader.leader_id, answer.current_leader.leader_epoch) >= 0
        }
        if new_leaders:
            nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in message.node_endpoints]
            self._metadata.update_partition_leadership(new_leaders, nodes)


def _make_answer(batch: ProducerBatch, error: ErrorCode, text: str | None) -> PartitionProduceResponse:
    """The answer to apply to a batch if the broker sent none."""
    return PartitionProduceResponse(index=batch.topic_partition.partition, error_code=error.number, error_message=text)


def _error_without_message(response: ClientResponse) -> tuple[ErrorCode, str | None]:
    """What a missing answer means: success with acks=0, else a lost connection or a request that could not be sent."""
    node = response.request.node_id
    if response.error is not None and not response.was_disconnected:
        return Errors.UNSUPPORTED_VERSION, response.error.message
    if response.has_timed_out:
        limit_ms = response.request.request_timeout_ms
        text = f"disconnected from node {node}, which did not answer within request.timeout.ms={limit_ms}"
        return Errors.REQUEST_TIMED_OUT, text
    if response.was_disconnected:
        return Errors.NETWORK_EXCEPTION, f"disconnected from node {node} before it answered"
    return Errors.NONE, None
