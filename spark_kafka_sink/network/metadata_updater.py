"""Sends Metadata requests when an update is due, chooses the node to ask, and handles the answers.

Part of NetworkClient, on its thread. Metadata decides when an update is due.
Law: at most one Metadata request is in flight, unless an exception came while one was sent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from spark_kafka_sink.clock import LONG_AGO_MS, NEVER_MS
from spark_kafka_sink.errors import KafkaError, printable, printable_list
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.metadata import Metadata, MetadataRequestAndVersion
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.schema import Request
from spark_kafka_sink.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_RELIABLE_EPOCHS = 9  # KAFKA-7738: older brokers may answer with an epoch that is out of date
_CREATION_ERRORS = (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.LEADER_NOT_AVAILABLE)
_MAX_CREATION_MS = 1000  # for which _CREATION_ERRORS of a topic are not warned of
_REMEDY = "; create topics that are unknown, or correct their names"


class MetadataSender(Protocol):
    """The methods of NetworkClient that MetadataUpdater calls."""

    def find_least_loaded_node(self, now_ms: int) -> tuple[Node | None, bool]:
        """The node to ask, and whether any node is connected."""
        ...

    def can_send(self, node_id: int, now_ms: int) -> bool: ...
    def can_connect(self, node_id: int, now_ms: int) -> bool: ...
    def is_any_node_connecting(self) -> bool: ...
    def initiate_connect(self, node: Node, now_ms: int) -> None: ...
    def renew_session(self, node_id: int, now_ms: int) -> None: ...
    def send_metadata_request(self, node_id: int, request: MetadataRequest, now_ms: int) -> None: ...


class MetadataUpdater:
    """Keeps one client's Metadata up to date."""

    def __init__(self, metadata: Metadata, sender: MetadataSender, config: ProducerConfig) -> None:
        self._metadata = metadata
        self._sender = sender
        self._request_timeout_ms = config.request_timeout_ms
        self._reconnect_backoff_ms = config.reconnect_backoff_ms
        self._may_rebootstrap = config.metadata_recovery_strategy == "rebootstrap"
        self._rebootstrap_trigger_ms = config.metadata_recovery_rebootstrap_trigger_ms
        self._request_in_progress: MetadataRequestAndVersion | None = None
        self._update_due_since_ms: int | None = None  # since when an update has been due without success
        self._unready_since_ms: dict[str | None, int] = {}  # topic -> since when answers say that it is unknown or has no leader
        self._logged_errors: dict[str | None, ErrorCode] = {}  # topic -> the error that was logged last, while it lasts

    def is_update_due(self, now_ms: int) -> bool:
        return self._request_in_progress is None and self._metadata.time_to_next_update_ms(now_ms) == 0

    def maybe_update(self, now_ms: int) -> int:
        """If an update is due, ask a node or connect to one. Returns after how many ms to call again."""
        delay_ms = self._metadata.time_to_next_update_ms(now_ms)
        if self._request_in_progress is not None:
            delay_ms = max(delay_ms, self._request_timeout_ms)
        if delay_ms > 0:
            return delay_ms
        if self._update_due_since_ms is None:
            self._update_due_since_ms = now_ms
        node, is_any_connected = self._sender.find_least_loaded_node(now_ms)
        if node is None and not is_any_connected and self._may_rebootstrap and not self._metadata.cluster().is_bootstrap:
            self.rebootstrap(now_ms)
            node, _ = self._sender.find_least_loaded_node(now_ms)
        if node is None:
            return self._reconnect_backoff_ms  # every node is backing off or busy
        return self._ask_or_connect(node, now_ms)

    def _ask_or_connect(self, node: Node, now_ms: int) -> int:
        if self._sender.can_send(node.id, now_ms):
            self._request_in_progress = self._metadata.new_request(now_ms)
            try:
                self._sender.send_metadata_request(node.id, self._request_in_progress.request, now_ms)
            except BaseException:
                self._request_in_progress = None  # otherwise no other request would ever be sent
                raise
            return self._request_timeout_ms
        self._sender.renew_session(node.id, now_ms)
        if self._sender.is_any_node_connecting():
            return self._reconnect_backoff_ms  # one attempt at a time, so that a slow one does not lead to connecting to all
        if self._sender.can_connect(node.id, now_ms):
            self._sender.initiate_connect(node, now_ms)
            return self._reconnect_backoff_ms
        return NEVER_MS  # connected and busy, or in its handshake: an event ends the wait

    def handle_disconnect(self, node: str, now_ms: int) -> None:
        """Request an update after a connection was lost or could not be made. `node` is for the log."""
        if self._metadata.cluster().is_bootstrap:
            logger.debug("! bootstrap server %s disconnected before it answered with metadata", node)
        if self.is_update_due(now_ms):
            self._metadata.note_failed_update(now_ms)
        self._metadata.request_update(f"lost the connection to {node}")  # the metadata may be out of date

    def handle_failed_request(self, request: Request[Any], now_ms: int, *, fatal_error: KafkaError | None = None) -> None:
        """Let the next request be sent after a back-off. `fatal_error`: a caller that waits for metadata gets it."""
        if self._take_if_in_progress(request) is None:
            return
        if fatal_error is not None:
            self._metadata.report_error(fatal_error)
        self._metadata.note_failed_update(now_ms)

    def handle_response(self, request: Request[Any], response: MetadataResponse, version: int, now_ms: int) -> None:
        """Pass the answer on to Metadata, with a warning for each topic that has an error. Ends the request in progress."""
        in_progress = self._take_if_in_progress(request)
        if in_progress is None:
            return
        self._warn_of_topics(response, now_ms, is_partial=in_progress.is_partial_update)
        _warn_of_lost_listeners(response)
        if response.error_code == Errors.REBOOTSTRAP_REQUIRED.number:
            self._update_due_since_ms = LONG_AGO_MS  # so that needs_rebootstrap() is true in this poll
            self._metadata.note_failed_update(now_ms)
        elif not response.brokers:
            logger.debug("! ignoring metadata without brokers: the broker is starting")
            self._metadata.note_failed_update(now_ms)
        elif self._metadata.is_other_cluster(response.cluster_id):
            self._refuse_other_cluster(response.cluster_id, now_ms)
        else:
            self._update_due_since_ms = None
            self._metadata.update(
                response,
                now_ms,
                request_version=in_progress.request_version,
                is_partial_update=in_progress.is_partial_update,
                has_reliable_leader_epochs=version >= _FIRST_VERSION_WITH_RELIABLE_EPOCHS,
                refresh_count=in_progress.refresh_count,
                has_more=in_progress.has_more,
            )
            if in_progress.refresh_count and not in_progress.has_more:
                self._forget_absent_topics()

    def _take_if_in_progress(self, request: Request[Any]) -> MetadataRequestAndVersion | None:
        """End the request in progress. None if it is another one: nothing waits for a request whose send was interrupted."""
        in_progress = self._request_in_progress
        if in_progress is None or in_progress.request is not request:
            return None
        self._request_in_progress = None
        return in_progress

    def _warn_of_topics(self, response: MetadataResponse, now_ms: int, *, is_partial: bool) -> None:
        """Warn once of each topic's error. A topic in creation is unknown, then has no leader: a warning only if that lasts."""
        errors = {topic.name: Errors.for_code(topic.error_code) for topic in response.topics if topic.error_code}
        answered_names = {topic.name for topic in response.topics}
        unready_names = {name for name, error in errors.items() if error in _CREATION_ERRORS}
        if not is_partial:  # the answer is about all topics
            answered_names |= self._unready_since_ms.keys() | self._logged_errors.keys()
        unready_since_ms = {name: ms for name, ms in self._unready_since_ms.items() if name not in answered_names}
        self._unready_since_ms = unready_since_ms | {name: self._unready_since_ms.get(name, now_ms) for name in unready_names}
        new_names = {name for name in unready_names if now_ms - self._unready_since_ms[name] < _MAX_CREATION_MS}
        logged_errors = {name: error for name, error in self._logged_errors.items() if name not in answered_names}
        logged_names = {name for name, error in errors.items() if self._logged_errors.get(name) == error}
        self._logged_errors = logged_errors | {name: error for name, error in errors.items() if name not in new_names}
        muted_names = new_names | logged_names
        for level, names in ((logging.DEBUG, muted_names), (logging.WARNING, errors.keys() - muted_names)):
            if names:
                problems = printable_list(f"{name}: {errors[name]}" for name in sorted(names, key=str))
                is_missing = any(errors[name] == Errors.UNKNOWN_TOPIC_OR_PARTITION for name in names)
                logger.log(level, "! metadata reports problems with topics: %s%s", problems, _REMEDY if is_missing else "")

    def _forget_absent_topics(self) -> None:
        """After a full update in several requests, none of which was about all topics."""
        topics = self._metadata.cluster().topics
        self._unready_since_ms = {name: ms for name, ms in self._unready_since_ms.items() if name in topics}
        self._logged_errors = {name: error for name, error in self._logged_errors.items() if name in topics}

    def _refuse_other_cluster(self, cluster_id: str | None, now_ms: int) -> None:
        """Back off, and ask bootstrap.servers again. Fail for good if they led to the other cluster, or may not be asked."""
        self._metadata.note_failed_update(now_ms)
        if self._metadata.cluster().is_bootstrap or not self._may_rebootstrap:
            self._metadata.report_other_cluster(cluster_id)
            return
        logger.warning(
            "! ignoring metadata from a broker of another cluster, %s; asking bootstrap.servers", printable(cluster_id)
        )
        self._update_due_since_ms = LONG_AGO_MS  # so that needs_rebootstrap() is true in this poll

    def needs_rebootstrap(self, now_ms: int) -> bool:
        """Whether no update has succeeded for metadata.recovery.rebootstrap.trigger.ms, or a broker demands it (KIP-1102)."""
        since_ms = self._update_due_since_ms
        return self._may_rebootstrap and since_ms is not None and now_ms - since_ms > self._rebootstrap_trigger_ms

    def rebootstrap(self, now_ms: int) -> None:
        """Start again from bootstrap.servers. The time after which this may be repeated begins now."""
        self._metadata.rebootstrap()
        self._update_due_since_ms = now_ms


def _warn_of_lost_listeners(response: MetadataResponse) -> None:
    names = [
        str(TopicPartition(topic.name or "", partition.partition_index))
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == Errors.LISTENER_NOT_FOUND.number
    ]
    if names:
        logger.warning("! the leaders of %d partitions do not have this listener: %s", len(names), printable_list(names))
