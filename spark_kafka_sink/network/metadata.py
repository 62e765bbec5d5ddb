"""What a client knows about the cluster, how old that is, and which callers wait for an update.

Callers add topics and wait. MetadataUpdater, on NetworkClient's thread, asks `time_to_next_update_ms`, sends requests and passes
each answer to `update`. Metadata itself sends nothing. `cluster()` is an immutable snapshot that is read without a lock.
Laws: a partition's leader epoch does not decrease, unless its topic was re-created or removed, bootstrap() was called, or brokers
report no reliable epochs. An answer removes topics that were not used for metadata.max.idle.ms. An error is raised once,
to one waiting caller, unless it is permanent or Metadata is closed. A request names MAX_TOPICS_PER_REQUEST at most: rows name
topics, and may name any number of them. More topics are refreshed in several requests, one right after the other.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from spark_kafka_sink.clock import LONG_AGO_MS, Clock
from spark_kafka_sink.config.producer_config import MIN_METADATA_AGE_MS, ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, NetworkError, closed_error, fresh_copy, printable
from spark_kafka_sink.interrupts import Waiters
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Cluster, Node, PartitionInfo, Topic, Topics
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.permissions import to_grant
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MAX_TOPICS_PER_REQUEST = 1_000
_REJECTION_ERRORS = (Errors.INVALID_TOPIC_EXCEPTION, Errors.TOPIC_AUTHORIZATION_FAILED)
_MAX_QUOTED_BROKERS = 10  # that could not be reached, in one message


class _Throttle(NamedTuple):
    """A broker has answered and then read nothing from its connection for a while, because of a quota."""

    address: str
    throttle_ms: int
    ends_ms: int


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition, by its node id, and the leader epoch; None: there is none, or it is not known."""

    leader: int | None
    epoch: int | None


class MetadataRequestAndVersion(NamedTuple):
    """A Metadata request, and what Metadata must know of it when its answer comes."""

    request: MetadataRequest
    request_version: int  # for update(): it tells whether topics were added after the request
    is_partial_update: bool  # only some topics are requested: new ones, or a part of those to refresh
    refresh_count: int = 0  # how many of the topics that wait to be refreshed are requested
    has_more: bool = False  # other topics wait to be requested


class Metadata:
    """The cluster as one client knows it. Any thread may call any method; only `await_update` blocks. One class, though a long
    one: every field is guarded by the one lock, and an answer changes almost all of them together.

    Args:
        config: reads bootstrap_servers, metadata_max_age_ms, metadata_max_idle_ms, retry_backoff_ms, retry_backoff_max_ms.
        clock: for waits; methods get the time as an argument.
        random: for the jitter of back-offs.
    """

    def __init__(self, config: ProducerConfig, clock: Clock, *, random: Random | None = None) -> None:
        self._clock = clock
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())
        self._max_age_ms = max(config.metadata_max_age_ms, MIN_METADATA_AGE_MS)
        self._max_idle_ms = config.metadata_max_idle_ms

        self._lock = threading.RLock()  # guards all below
        self._waiters = Waiters(self._lock)  # woken on every update, fatal error and close
        self._cluster = Cluster()  # replaced as a whole, so that reading it needs no lock
        self._cluster_before_bootstrap = Cluster()  # what was known before the last bootstrap()
        self._update_version = 0  # counts answers and calls of bootstrap()
        self._request_version = 0  # counts additions of topics
        self._needs_full_update = False
        self._needs_partial_update = False
        self._unrefreshed_topics: list[str] = []  # of a full update in several requests: known topics that are not answered yet
        self._is_refreshing = False  # a full update in several requests has begun
        self._needs_another_refresh = False  # requested since then
        self._last_refresh_ms = LONG_AGO_MS
        self._last_successful_refresh_ms = LONG_AGO_MS
        self.last_answer_ms = LONG_AGO_MS  # to any request, partial ones included
        self._failure_count = 0  # failed updates since the last answer
        self._equivalent_response_count = 0  # answers since the last one with something new
        self._topics: OrderedDict[str, int] = OrderedDict()  # topic -> when it is removed; the first to be removed first
        self._new_topics: set[str] = set()  # no answer yet
        self._forgotten_topics: set[str] = set()  # not in _topics any more, and left out of the cluster with the next answer
        self._epochs: dict[str, dict[int, int]] = {}  # by topic and partition: the last leader epochs seen
        self._cluster_id: str | None = None  # of the first answer; later answers must come from the same cluster
        self._error_for_one_caller: KafkaError | None = None
        self._permanent_error: KafkaError | None = None
        self._rejected_topics: dict[str, ErrorCode] = {}  # the cluster's unauthorized and invalid topics
        self._topic_errors: dict[str, ErrorCode] = {}  # a copy of _rejected_topics, which raise_error_for_topic() empties
        self._connection_errors: dict[str, str] = {}  # host:port -> why it could not be reached; latest last
        self._throttles: dict[int, _Throttle] = {}  # by node id: the last one
        self._is_closed = False
        self._ended_by: KafkaError | None = None
        self.bootstrap(config.bootstrap_servers)

    # WHAT IS KNOWN

    def cluster(self) -> Cluster:
        return self._cluster

    def last_successful_refresh_ms(self) -> int | None:
        """When brokers last answered a full request; None if never."""
        refreshed_ms = self._last_successful_refresh_ms
        return None if refreshed_ms == LONG_AGO_MS else refreshed_ms

    def leader_and_epoch(self, topic_partition: TopicPartition) -> LeaderAndEpoch:
        """The leader, unless a newer epoch than the leader's has been seen; then only the epoch."""
        with self._lock:
            epoch = self._epoch_locked(topic_partition)
            info = self._cluster.partition(topic_partition)
            if info is None or (epoch is not None and info.leader_epoch != epoch):
                return LeaderAndEpoch(None, epoch)
            return LeaderAndEpoch(self._cluster.leader_for(topic_partition), info.leader_epoch)

    def _epoch_locked(self, topic_partition: TopicPartition) -> int | None:
        return self._epochs.get(topic_partition.topic, {}).get(topic_partition.partition)

    def last_known_leader(self, topic_partition: TopicPartition) -> Node | None:
        """The leader, for error texts. While only the bootstrap servers are known, the leader before the last bootstrap()."""
        with self._lock:
            cluster = self._last_known_cluster_locked()
            leader = cluster.leader_for(topic_partition)
            return None if leader is None else cluster.node(leader)

    def _last_known_cluster_locked(self) -> Cluster:
        return self._cluster_before_bootstrap if self._cluster.is_bootstrap else self._cluster

    # CALLERS: TOPICS, WAITING, ERRORS

    def add_topic(self, topic: str, now_ms: int) -> None:
        """Keep the topic for another metadata.max.idle.ms; request a new topic at once."""
        with self._lock:
            if topic not in self._topics:
                self._new_topics.add(topic)
                self._request_update_for_new_topics_locked()
            self._forgotten_topics.discard(topic)
            self._topics[topic] = now_ms + self._max_idle_ms
            self._topics.move_to_end(topic)

    def forget_topic(self, topic: str) -> None:
        """Do not request the topic any more, until it is added again."""
        with self._lock:
            if self._topics.pop(topic, None) is not None:
                self._forgotten_topics.add(topic)
            self._new_topics.discard(topic)

    def request_update(self, reason: str, *, is_urgent: bool = False) -> int:
        """Request an update of all topics, which is sent when the back-off after the last answer or failure has passed.

        Args:
            reason: for the log.
            is_urgent: do not wait for the back-off after an answer, only for the back-off after a failure.

        Returns:
            The current version, for await_update.
        """
        with self._lock:
            if not self._needs_full_update:
                logger.debug("= metadata: update requested: %s", reason)
            self._needs_full_update = True
            self._needs_another_refresh |= self._is_refreshing
            if is_urgent:
                self._equivalent_response_count = 0
                if not self._failure_count:
                    self._last_refresh_ms = LONG_AGO_MS
            return self._update_version

    def request_update_for_topic(self, topic: str) -> int:
        """Request an update as request_update does. A topic without an answer is requested at once, without the known topics."""
        with self._lock:
            if topic in self._new_topics:
                self._request_update_for_new_topics_locked()
                return self._update_version
            return self.request_update(f"topic {topic}")

    def _request_update_for_new_topics_locked(self) -> None:
        self._last_refresh_ms = LONG_AGO_MS
        self._needs_partial_update = True
        self._equivalent_response_count = 0
        self._request_version += 1

    def await_update(self, last_version: int, timeout_ms: int) -> None:
        """Block until there is a version newer than `last_version`, at most `timeout_ms`.

        Raises:
            KafkaTimeoutError: no update within `timeout_ms`; quotes why brokers could not be reached.
            ProducerClosedError: this object is closed; if an error ended the producer, a copy of that error instead.
            KafkaError: a fatal error, such as a failed authentication, which one waiting caller gets; or a permanent one.
        """
        started_ms = self._clock.now_ms()
        if not self._waiters.wait_until(
            lambda: self._raise_or_compare_locked(last_version), self._clock, started_ms + timeout_ms
        ):
            hint = self.last_trouble(started_ms)
            raise KafkaTimeoutError(f"no broker answered with metadata within {timeout_ms} ms{f'; {hint}' if hint else ''}")

    def _raise_or_compare_locked(self, version: int) -> bool:
        """Take and raise the kept error; without one, return whether there is a newer version."""
        error = self._take_error_locked()
        if error is not None:
            raise fresh_copy(error)
        return self._update_version > version

    def raise_error_for_topic(self, topic: str) -> None:
        """Raise the kept error, else the error of this topic if it is unauthorized or invalid. Drops the errors of all topics."""
        with self._lock:
            error = self._topic_errors.get(topic)
            self._topic_errors = {}
            kept_error = self._take_kept_error_locked()
            if kept_error is not None:
                raise fresh_copy(kept_error)
            if error is not None:
                exception = error.exception(f"topic {topic}")
                exception.message += to_grant(error, topic=topic)
                raise exception

    def take_error(self) -> KafkaError | None:
        """Return the error that `await_update` would raise at once, if there is one. It counts as raised."""
        with self._lock:
            error = self._take_error_locked()
            return None if error is None else fresh_copy(error)

    def _take_error_locked(self) -> KafkaError | None:
        error = self._take_kept_error_locked()
        if error is None and self._is_closed:
            error = closed_error(self._ended_by, "the producer was closed while a caller waited for metadata")
        return error

    def _take_kept_error_locked(self) -> KafkaError | None:
        """Return the error that is kept. Callers raise a copy, as a raised error keeps the frames that it passed alive."""
        error = self._permanent_error or self._error_for_one_caller
        self._error_for_one_caller = None
        return error

    def last_connection_error(self) -> str | None:
        """Why brokers could not be reached, like "127.0.0.1:9092: [Errno 111] Connection refused"; None if all could."""
        with self._lock:
            problems = [f"{address}: {reason}" for address, reason in self._connection_errors.items()]
            suffix = f"; and {len(problems) - _MAX_QUOTED_BROKERS:,} more" if len(problems) > _MAX_QUOTED_BROKERS else ""
            return "; ".join(problems[-_MAX_QUOTED_BROKERS:]) + suffix or None

    def last_trouble(self, since_ms: int, node_id: int | None = None) -> str | None:
        """Why brokers do not answer: they could not be reached, or throttle this client since then. `node_id`: throttles of
        this node only. None: neither."""
        return "; ".join(filter(None, (self.last_connection_error(), self._throttle_text(since_ms, node_id)))) or None

    def _throttle_text(self, since_ms: int, node_id: int | None = None) -> str | None:
        """The longest of the last throttles, among those that have not ended before `since_ms`."""
        with self._lock:
            throttles = {node: each for node, each in self._throttles.items() if each.ends_ms > since_ms}
        nodes = [node for node in throttles if node_id in (None, node)]
        if not nodes:
            return None
        node = max(nodes, key=lambda each: throttles[each].throttle_ms)
        return (
            f"node {node} at {throttles[node].address} throttles this client, the last time for"
            f" {throttles[node].throttle_ms:,} ms, because of a quota of its user or client.id (producer_byte_rate,"
            " request_percentage): raise the quota, or send less"
        )

    def silence_text(self, since_ms: int) -> str:
        """Why no broker has answered since then, and what to do, for an error."""
        throttle_text, connection_error = self._throttle_text(since_ms), self.last_connection_error()
        if throttle_text is not None and connection_error is None:
            return f"no broker has answered yet: {throttle_text}"
        trouble = self.last_trouble(since_ms) or "no connection has failed, but no answer has come"
        return f"no broker answered: {trouble}; check bootstrap.servers and the network"

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Callers that wait now or later get ProducerClosedError, or `ended_by` if an error ended the producer."""
        with self._lock:
            self._is_closed = True
            self._ended_by = ended_by
            self._waiters.wake_all_locked()

    # NETWORKCLIENT'S THREAD: WHEN TO SEND WHICH REQUEST, AND ITS OUTCOME

    def bootstrap(self, servers: Sequence[tuple[str, int]]) -> None:
        """Start from `servers`, which get the node ids -1, -2, …"""
        with self._lock:
            self._bootstrap_servers = tuple(servers)
            self._needs_full_update = True
            self._is_refreshing, self._unrefreshed_topics = False, []
            self._update_version += 1
            if not self._cluster.is_bootstrap:
                self._cluster_before_bootstrap = self._cluster
            nodes = [Node(-1 - index, host, port) for index, (host, port) in enumerate(servers)]
            self._cluster = Cluster(nodes=nodes, is_bootstrap=True)

    def rebootstrap(self) -> None:
        """Forget every broker and start again from bootstrap.servers (KIP-899)."""
        with self._lock:
            logger.info("= metadata: starting again from bootstrap.servers %s", self._bootstrap_servers)
            self.bootstrap(self._bootstrap_servers)

    def time_to_next_update_ms(self, now_ms: int) -> int:
        """Milliseconds until an update is due: one was requested or the metadata is too old, and the back-off has passed."""
        with self._lock:
            until_too_old_ms = max(self._last_successful_refresh_ms + self._max_age_ms - now_ms, 0)
            if self._needs_full_update or self._needs_partial_update:
                until_too_old_ms = 0
            return max(until_too_old_ms, self._time_to_allow_update_locked(now_ms))

    def _time_to_allow_update_locked(self, now_ms: int) -> int:
        if self._last_successful_refresh_ms + self._max_age_ms <= now_ms:
            self._equivalent_response_count = 0  # answers without anything new do not delay a refresh by age
        backoff_ms = self._backoff.backoff_ms(max(self._failure_count - 1, 0))
        if self._equivalent_response_count > 0:
            backoff_ms = max(backoff_ms, self._backoff.backoff_ms(self._equivalent_response_count - 1))
        return max(self._last_refresh_ms + backoff_ms - now_ms, 0)

    def new_request(self, now_ms: int) -> MetadataRequestAndVersion:
        """The request that is due: for new topics only, unless everything has to be refreshed."""
        with self._lock:
            is_fresh = self._last_successful_refresh_ms + self._max_age_ms > now_ms
            if self._needs_full_update or not is_fresh:
                if len(self._topics) <= MAX_TOPICS_PER_REQUEST and not self._is_refreshing:
                    return self._request_locked(sorted(self._topics), is_partial_update=False)
                if not self._is_refreshing:
                    self._begin_refresh_locked()
            topics = heapq.nsmallest(MAX_TOPICS_PER_REQUEST, self._new_topics)
            refreshed_topics = self._unrefreshed_topics[: MAX_TOPICS_PER_REQUEST - len(topics)]
            left_count = len(self._new_topics) + len(self._unrefreshed_topics) - len(topics) - len(refreshed_topics)
            return self._request_locked([*topics, *refreshed_topics], True, len(refreshed_topics), left_count > 0)

    def _request_locked(
        self, topics: Iterable[str], is_partial_update: bool, refresh_count: int = 0, has_more: bool = False
    ) -> MetadataRequestAndVersion:
        request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=topic) for topic in topics))
        return MetadataRequestAndVersion(request, self._request_version, is_partial_update, refresh_count, has_more)

    def _begin_refresh_locked(self) -> None:
        """Begin a full update in several requests. Topics that exist come first: they do not wait for names that do not."""
        self._is_refreshing, self._needs_another_refresh = True, False
        known_topics = self._topics.keys() - self._new_topics
        self._unrefreshed_topics = sorted(known_topics, key=lambda topic: (self._cluster.partition_count(topic) is None, topic))

    def note_failed_update(self, now_ms: int) -> None:
        """Back off before the next request, as one has failed."""
        with self._lock:
            self._last_refresh_ms = now_ms
            self._failure_count += 1
            self._equivalent_response_count = 0

    def report_error(self, error: KafkaError) -> None:
        """Raise `error` to one caller that waits now, or to the next one that waits, unless an answer comes first."""
        with self._lock:
            self._error_for_one_caller = error
            self._waiters.wake_all_locked()

    def is_other_cluster(self, cluster_id: str | None) -> bool:
        """Whether an answer comes from another cluster than the answers before it. Brokers before 0.10.1 have no cluster id."""
        with self._lock:
            return None not in (cluster_id, self._cluster_id) and cluster_id != self._cluster_id

    def report_other_cluster(self, cluster_id: str | None) -> None:
        """Keep a permanent error, as bootstrap.servers lead to another cluster now. Every caller gets it, and nothing is written.

        The other cluster does not know this producer's id and sequences: it may take a batch for a duplicate from another
        producer, and drop the batch. And the rows would be spread over two clusters.
        """
        with self._lock:
            if self._permanent_error is not None:
                return
            new_id, old_id = printable(cluster_id), printable(self._cluster_id)
            self._permanent_error = NetworkError(
                f"the brokers behind bootstrap.servers belong to cluster {new_id} now, but this producer has written to cluster"
                f" {old_id}: the rows acknowledged so far are there, and it writes no rows to another cluster. Check"
                " bootstrap.servers; if the change is intended, write all rows again with a new producer (a retried task does)",
                condition="KAFKA_CLUSTER_CHANGED",
            )
            logger.error("! metadata: %s", self._permanent_error)
            self._waiters.wake_all_locked()

    def permanent_error(self) -> KafkaError | None:
        """Why this producer cannot be used any more; None if it can."""
        return self._permanent_error

    def report_unreachable(self, address: str, reason: str) -> None:
        """Keep why a broker cannot be reached, for last_connection_error()."""
        with self._lock:
            self._connection_errors.pop(address, None)
            self._connection_errors[address] = reason

    def report_throttle(self, node: Node, throttle_ms: int, now_ms: int) -> None:
        """Keep that a broker throttles this client, for last_trouble()."""
        with self._lock:
            self._throttles[node.id] = _Throttle(node.address, throttle_ms, now_ms + throttle_ms)

    def report_reachable(self, address: str) -> None:
        with self._lock:
            self._connection_errors.pop(address, None)

    def update(
        self,
        response: MetadataResponse,
        now_ms: int,
        *,
        request_version: int | None = None,
        is_partial_update: bool = False,
        has_reliable_leader_epochs: bool = True,
        refresh_count: int = 0,
        has_more: bool = False,
    ) -> None:
        """Apply an answer and wake the callers that wait.

        Args:
            response: the answer; it must name brokers.
            now_ms: the time of the answer.
            request_version: of the request; None when the answer covers all topics there are now.
            is_partial_update: topics that the answer does not mention stay as they are.
            has_reliable_leader_epochs: false before Metadata v9, where a broker may report an old epoch (KAFKA-7738).
            refresh_count, has_more: of the request.
        """
        with self._lock:
            if self._is_closed:
                return
            self._needs_partial_update = request_version is not None and request_version < self._request_version
            self._last_refresh_ms = self.last_answer_ms = now_ms
            self._failure_count = 0
            self._update_version += 1
            self._error_for_one_caller = None  # the callers that wait get this answer instead of an error that is out of date
            self._equivalent_response_count += 1  # reset if a partition has something new
            waiting_count = len(self._new_topics) + len(self._unrefreshed_topics)
            del self._unrefreshed_topics[:refresh_count]
            if not is_partial_update or (self._is_refreshing and not has_more):
                self._needs_full_update = self._is_refreshing and self._needs_another_refresh
                self._is_refreshing = False
                self._last_successful_refresh_ms = now_ms
            self._replace_cluster_locked(response, now_ms, is_partial_update, has_reliable_leader_epochs)
            self._new_topics.difference_update(topic.name for topic in response.topics if topic.name is not None)
            if has_more:
                self._needs_partial_update = True
                if len(self._new_topics) + len(self._unrefreshed_topics) < waiting_count:
                    self._last_refresh_ms = LONG_AGO_MS  # ask for the others at once
            self._waiters.wake_all_locked()

    # READING AN ANSWER

    def _replace_cluster_locked(
        self, response: MetadataResponse, now_ms: int, is_partial_update: bool, has_reliable_leader_epochs: bool
    ) -> None:
        removed_topics = self._remove_topics_locked(now_ms)
        topics = {
            answer.name: self._read_topic_locked(answer, answer.name, has_reliable_leader_epochs)
            for answer in response.topics
            if answer.name is not None and answer.name in self._topics
        }
        all_topics = self._cluster.topics.with_changes(topics, removed_topics) if is_partial_update else Topics(topics)
        self._cluster = Cluster(
            nodes=[Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers],
            topics=all_topics,
            cluster_id=response.cluster_id,
        )
        errors = {name: self._cluster.topic_error(name) for name in (*self._rejected_topics, *topics)}
        self._rejected_topics = {name: error for name, error in errors.items() if error in _REJECTION_ERRORS}
        self._topic_errors = self._rejected_topics.copy()
        addresses = {node.address for node in self._cluster.nodes}
        self._connection_errors = {key: reason for key, reason in self._connection_errors.items() if key in addresses}
        if self._cluster_id is None and response.cluster_id is not None:
            self._cluster_id = response.cluster_id
            logger.info("= metadata: cluster id %s", printable(response.cluster_id))
        logger.debug("< metadata version %d: %r", self._update_version, self._cluster)

    def _remove_topics_locked(self, now_ms: int) -> set[str]:
        """Remove and return the topics that were forgotten, or not used for too long. A topic without an answer so far stays."""
        removed_topics, self._forgotten_topics = self._forgotten_topics, set()
        for topic, expires_ms in self._topics.items():
            if expires_ms > now_ms:
                break
            if topic not in self._new_topics:
                logger.debug("- metadata: topic %s has not been used for %d ms and is removed", topic, self._max_idle_ms)
                removed_topics.add(topic)
        for topic in removed_topics:
            self._topics.pop(topic, None)
            self._epochs.pop(topic, None)
        return removed_topics

    def _read_topic_locked(self, answer: MetadataResponseTopic, name: str, has_reliable_leader_epochs: bool) -> Topic:
        topic_id = None if answer.topic_id == ZERO_UUID else answer.topic_id
        if answer.error_code:
            error = Errors.for_code(answer.error_code)
            if error.must_refresh_metadata:
                self.request_update(f"topic {name}: {error}")
            return Topic(topic_id, {}, error, answer.is_internal)
        # True also when no id was known, as after bootstrap(): any epoch is accepted then.
        is_recreated = topic_id is not None and topic_id != self._cluster.topic_id(name)
        if is_recreated and self._last_known_cluster_locked().topic_id(name) not in (None, topic_id):
            logger.info("= metadata: topic %s was re-created with id %s", name, topic_id)
        partitions: dict[int, PartitionInfo] = {}
        for partition in answer.partitions:
            info = self._read_partition_locked(name, partition, is_recreated, has_reliable_leader_epochs)
            partitions[info.partition] = info
            error = Errors.for_code(partition.error_code)
            if error.must_refresh_metadata:
                self.request_update(f"{name}-{partition.partition_index}: {error}")
        return Topic(topic_id, partitions, None, answer.is_internal)

    def _read_partition_locked(
        self, topic: str, answer: MetadataResponsePartition, is_recreated: bool, has_reliable_leader_epochs: bool
    ) -> PartitionInfo:
        """The partition as answered; as known before, if the answer has an older epoch."""
        key = TopicPartition(topic, answer.partition_index)
        if not has_reliable_leader_epochs or answer.leader_epoch < 0:
            self._epochs.get(topic, {}).pop(answer.partition_index, None)
            self._equivalent_response_count = 0
            return _partition_info(topic, answer, None)
        known_epoch = self._epoch_locked(key)
        if known_epoch is not None and not is_recreated and answer.leader_epoch < known_epoch:
            logger.debug("! metadata: ignoring epoch %d of %s, %d has been seen", answer.leader_epoch, key, known_epoch)
            return self._cluster.partition(key) or _partition_info(topic, answer, None)._replace(leader=None)
        if known_epoch is None or is_recreated or answer.leader_epoch > known_epoch:
            self._equivalent_response_count = 0
        self._epochs.setdefault(topic, {})[answer.partition_index] = answer.leader_epoch
        return _partition_info(topic, answer, answer.leader_epoch)

    # HINTS FROM PRODUCE RESPONSES (KIP-951)

    def update_partition_leadership(
        self, leaders: Mapping[TopicPartition, LeaderAndEpoch], nodes: Iterable[Node]
    ) -> set[TopicPartition]:
        """Apply newer leaders that a broker named when it rejected a batch; older or incomplete hints are ignored.

        Args:
            leaders: the leaders that the broker knows.
            nodes: their addresses; nodes known before stay known.

        Returns:
            The partitions whose leader changed.
        """
        with self._lock:
            known_nodes = {node.id: node for node in self._cluster.nodes} | {node.id: node for node in nodes}
            newer_leaders = {key: hint for key, hint in leaders.items() if self._is_newer_locked(key, hint, known_nodes)}
            if not newer_leaders:
                return set()
            topics: dict[str, Topic] = {}
            for partition, hint in newer_leaders.items():
                logger.debug("= metadata: %s is led by node %s in epoch %s", partition, hint.leader, hint.epoch)
                topic = topics.get(partition.topic) or self._cluster.topics[partition.topic]
                info = topic.partitions[partition.partition]._replace(leader=hint.leader, leader_epoch=hint.epoch)
                topics[partition.topic] = topic._replace(partitions={**topic.partitions, partition.partition: info})
                assert hint.epoch is not None
                self._epochs.setdefault(partition.topic, {})[partition.partition] = hint.epoch
            self._cluster = Cluster(
                nodes=known_nodes.values(), topics=self._cluster.topics.with_changes(topics), cluster_id=self._cluster.cluster_id
            )
            return set(newer_leaders)

    def _is_newer_locked(self, partition: TopicPartition, hint: LeaderAndEpoch, nodes: Mapping[int, Node]) -> bool:
        epoch = self.leader_and_epoch(partition).epoch
        return (
            hint.leader in nodes
            and hint.epoch is not None
            and hint.epoch >= 0
            and (epoch is None or hint.epoch > epoch)
            and self._cluster.partition(partition) is not None
        )


def _partition_info(topic: str, answer: MetadataResponsePartition, epoch: int | None) -> PartitionInfo:
    leader = answer.leader_id if answer.leader_id >= 0 else None
    replicas = answer.replica_nodes, answer.isr_nodes, answer.offline_replicas
    return PartitionInfo(topic, answer.partition_index, leader, epoch, *replicas)
