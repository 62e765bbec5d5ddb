"""network/metadata.py: freshness, epochs, errors, waiting. The scenarios are those of Kafka's MetadataTest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import chain
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.config.producer_config import MIN_METADATA_AGE_MS
from spark_kafka_sink.errors import AuthenticationError, KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.network import metadata as metadata_module
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.metadata import LeaderAndEpoch, Metadata
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.network_config import metadata, network_config, topic
from tests.steps import count_steps

BACKOFF_MS = 100
MAX_BACKOFF_MS = 1000
MAX_AGE_MS = 10_000
MAX_IDLE_MS = 20_000
TP = TopicPartition("orders", 0)
ID_1, ID_2 = UUID(int=1), UUID(int=2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meta(clock: ManualClock) -> Metadata:
    return new_metadata(clock)


def new_metadata(clock: ManualClock) -> Metadata:
    config = network_config(
        retry_backoff_ms=BACKOFF_MS,
        retry_backoff_max_ms=MAX_BACKOFF_MS,
        metadata_max_age_ms=MAX_AGE_MS,
        metadata_max_idle_ms=MAX_IDLE_MS,
    )
    return Metadata(config, clock, random=Random(0))


@pytest.fixture
def orders(meta: Metadata, clock: ManualClock) -> Metadata:
    """Knows the topic orders with a partition led by node 0 in epoch 5."""
    meta.add_topic("orders", clock.now_ms())
    meta.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    return meta


def about(milliseconds: int) -> tuple[int, int]:
    return int(milliseconds * 0.8) - 1, int(milliseconds * 1.2) + 1


def is_about(actual: int, milliseconds: int) -> bool:
    low, high = about(milliseconds)
    return low <= actual <= high


class PatientClock(ManualClock):
    """Lets a waiting thread wait for another one instead of letting the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()
        self.was_notified = False

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        self.waits.set()  # the waiter is in the list: whatever the other thread does now wakes it
        self.was_notified = waitable.wait(min(timeout_ms, 10_000) / 1000)
        return self.was_notified


def run_while_waiting(clock: PatientClock, wait: Callable[[], None], act: Callable[[], None]) -> BaseException | None:
    """What `wait` raised, run in another thread; `act` comes when it waits."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            wait()
        except KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert clock.waits.wait(10)
    act()
    thread.join(10)
    assert not thread.is_alive()
    assert clock.was_notified
    return raised[0] if raised else None


# WHAT IS KNOWN


def test_metadata_starts_from_the_bootstrap_servers(meta: Metadata, clock: ManualClock) -> None:
    assert meta.cluster().nodes == (Node(-1, "boot1", 9001), Node(-2, "boot2", 9002))
    assert meta.cluster().is_bootstrap
    assert meta.time_to_next_update_ms(clock.now_ms()) == 0


def test_an_answer_replaces_the_cluster(orders: Metadata) -> None:
    cluster = orders.cluster()
    assert [node.id for node in cluster.nodes] == [0, 1]
    assert not cluster.is_bootstrap
    assert cluster.cluster_id == "c"
    assert cluster.partition_count("orders") == 2
    assert cluster.leader_for(TP) == 0
    assert cluster.leader_epoch(TP) == 5
    assert cluster.topic_id("orders") == ID_1


def test_a_cluster_once_taken_never_changes(orders: Metadata, clock: ManualClock) -> None:
    before = orders.cluster()
    orders.update(metadata(topic("orders", [1], epoch=6, topic_id=ID_1)), clock.now_ms())
    assert before.leader_for(TP) == 0
    assert orders.cluster().leader_for(TP) == 1


def test_topics_that_nobody_asked_for_are_ignored(meta: Metadata, clock: ManualClock) -> None:
    meta.update(metadata(topic("other", [0])), clock.now_ms())
    assert meta.cluster().partition_count("other") is None


def test_a_partition_without_a_leader_is_not_available(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [-1, 1], epoch=6, topic_id=ID_1)), clock.now_ms())
    cluster = orders.cluster()
    assert cluster.leader_for(TP) is None
    assert [info.partition for info in cluster.partitions_for("orders")] == [0, 1]
    assert [info.partition for info in cluster.available_partitions("orders")] == [1]
    assert orders.time_to_next_update_ms(clock.now_ms() + MAX_BACKOFF_MS) == 0  # and asked for again


def test_a_leader_without_an_address_is_no_leader(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [7, 1], epoch=6, topic_id=ID_1)), clock.now_ms())
    assert orders.cluster().leader_for(TP) is None
    assert [info.partition for info in orders.cluster().available_partitions("orders")] == [1]
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(None, 6)


# EPOCHS


def test_an_older_epoch_does_not_replace_a_newer_one(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [1, 1], epoch=4, topic_id=ID_1)), clock.now_ms())
    assert orders.cluster().leader_for(TP) == 0
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(0, 5)


def test_the_same_epoch_is_taken_over(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [1, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    assert orders.cluster().leader_for(TP) == 1


def test_a_re_created_topic_starts_a_new_count_of_epochs(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [1, 1], epoch=0, topic_id=ID_2)), clock.now_ms())
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(1, 0)
    assert orders.cluster().topic_id("orders") == ID_2


def test_re_creation_is_logged_once_for_the_topic_and_not_after_starting_over(
    orders: Metadata, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time that brokers had been away, the log told of each partition of each topic that it was re-created."""
    with caplog.at_level(logging.INFO):
        orders.rebootstrap()
        orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
        assert "re-created" not in caplog.text
        orders.update(metadata(topic("orders", [0, 1], epoch=0, topic_id=ID_2)), clock.now_ms())
    assert caplog.text.count("topic orders was re-created") == 1
    assert orders.leader_and_epoch(TP).epoch == 0


@pytest.mark.parametrize(
    ("before", "after", "is_believed"),
    [(None, ID_1, True), (ID_1, ID_1, False), (ID_1, None, False), (None, None, False)],
    ids=["first id", "same id", "id is told no longer", "no ids"],
)
def test_an_older_epoch_counts_only_with_another_topic_id(
    meta: Metadata, clock: ManualClock, before: UUID | None, after: UUID | None, is_believed: bool
) -> None:
    meta.add_topic("orders", clock.now_ms())
    meta.update(metadata(topic("orders", [0], epoch=5, topic_id=before or ZERO_UUID)), clock.now_ms())
    meta.update(metadata(topic("orders", [1], epoch=4, topic_id=after or ZERO_UUID)), clock.now_ms())
    assert meta.leader_and_epoch(TP) == (LeaderAndEpoch(1, 4) if is_believed else LeaderAndEpoch(0, 5))
    assert meta.cluster().topic_id("orders") == after


def test_a_leader_of_an_older_epoch_stays_out_though_its_node_has_come(orders: Metadata, clock: ManualClock) -> None:
    """Two answers in the wrong order: the newer one names a leader that the older one's brokers do not list."""
    orders.update(metadata(topic("orders", [2, 1], epoch=6, topic_id=ID_1), nodes=3), clock.now_ms())
    orders.update(metadata(topic("orders", [1, 1], epoch=5, topic_id=ID_1), nodes=2), clock.now_ms())
    assert orders.cluster().leader_for(TP) is None
    assert orders.cluster().leader_epoch(TP) == 6


def test_epochs_outlive_an_answer_that_does_not_know_the_topic(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [], error_code=3, topic_id=ID_1)), clock.now_ms())
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(None, 5)
    orders.update(metadata(topic("orders", [1, 1], epoch=4, topic_id=ID_1)), clock.now_ms())
    assert orders.cluster().leader_for(TP) is None  # an answer from before; but how many partitions there are it does tell
    assert orders.cluster().partition_count("orders") == 2
    orders.update(metadata(topic("orders", [1, 1], epoch=6, topic_id=ID_1)), clock.now_ms())
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(1, 6)


def test_brokers_without_reliable_epochs_are_always_believed(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [1, 1], epoch=3)), clock.now_ms(), has_reliable_leader_epochs=False)
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(1, None)


def test_a_partition_without_an_epoch_is_believed(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [1, 1], epoch=-1, topic_id=ID_1)), clock.now_ms())
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(1, None)


# WHEN TO UPDATE


def test_an_update_is_due_by_age(orders: Metadata, clock: ManualClock) -> None:
    assert orders.time_to_next_update_ms(clock.now_ms()) == MAX_AGE_MS
    clock.advance(MAX_AGE_MS)
    assert orders.time_to_next_update_ms(clock.now_ms()) == 0
    assert not orders.new_request(clock.now_ms()).is_partial_update


def test_a_requested_update_waits_for_back_off(orders: Metadata, clock: ManualClock) -> None:
    version = orders.request_update("test")
    assert version == orders.request_update("test")
    assert is_about(orders.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)
    clock.advance(2 * BACKOFF_MS)
    assert orders.time_to_next_update_ms(clock.now_ms()) == 0


def test_failed_updates_back_off_exponentially(orders: Metadata, clock: ManualClock) -> None:
    orders.request_update("test")
    for expected in (100, 200, 400, 800):
        orders.note_failed_update(clock.now_ms())
        assert is_about(orders.time_to_next_update_ms(clock.now_ms()), expected)
    for _ in range(60):
        orders.note_failed_update(clock.now_ms())
    assert orders.time_to_next_update_ms(clock.now_ms()) <= MAX_BACKOFF_MS
    orders.update(metadata(topic("orders", [0, 1], epoch=6, topic_id=ID_1)), clock.now_ms())
    orders.request_update("again")
    assert is_about(orders.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)


def test_answers_without_news_back_off_exponentially_until_there_is_news(orders: Metadata, clock: ManualClock) -> None:
    same = metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1))
    for expected in (100, 200, 400):
        orders.update(same, clock.now_ms())
        orders.request_update("waiting for a leader")
        assert is_about(orders.time_to_next_update_ms(clock.now_ms()), expected)
    orders.update(metadata(topic("orders", [0, 1], epoch=6, topic_id=ID_1)), clock.now_ms())
    orders.request_update("waiting for a leader")
    assert is_about(orders.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)


def test_an_update_that_must_not_wait_follows_an_answer_at_once(orders: Metadata, clock: ManualClock) -> None:
    for _ in range(5):
        orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    orders.request_update("test", is_urgent=True)
    assert orders.time_to_next_update_ms(clock.now_ms()) == 0


def test_an_update_that_must_not_wait_waits_after_a_failure_all_the_same(orders: Metadata, clock: ManualClock) -> None:
    orders.note_failed_update(clock.now_ms())
    orders.request_update("test", is_urgent=True)
    assert is_about(orders.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)


# TOPICS


def names(meta: Metadata, clock: ManualClock) -> list[str | None]:
    request = meta.new_request(clock.now_ms()).request
    assert request.topics is not None
    return [topic.name for topic in request.topics]


def test_a_new_topic_is_fetched_alone_and_at_once(orders: Metadata, clock: ManualClock) -> None:
    orders.add_topic("new", clock.now_ms())
    assert orders.time_to_next_update_ms(clock.now_ms()) == 0
    request = orders.new_request(clock.now_ms())
    assert request.is_partial_update
    assert names(orders, clock) == ["new"]
    orders.update(metadata(topic("new", [1])), clock.now_ms(), request_version=request.request_version, is_partial_update=True)
    assert orders.cluster().partition_count("new") == 1
    assert orders.cluster().partition_count("orders") == 2
    assert orders.time_to_next_update_ms(clock.now_ms()) == MAX_AGE_MS


def test_a_topic_added_while_a_request_is_under_way_is_asked_for_next(orders: Metadata, clock: ManualClock) -> None:
    orders.add_topic("a", clock.now_ms())
    request = orders.new_request(clock.now_ms())
    orders.add_topic("b", clock.now_ms())
    orders.update(metadata(topic("a", [0])), clock.now_ms(), request_version=request.request_version, is_partial_update=True)
    assert is_about(orders.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)
    assert names(orders, clock) == ["b"]


# MANY TOPICS


def answer_next(meta: Metadata, clock: ManualClock, unknown: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Answer the request that is due. Returns the topics that it names."""
    due_request = meta.new_request(clock.now_ms())
    names = [each.name or "" for each in due_request.request.topics or ()]
    answers = [topic(name, [], error_code=3) if unknown(name) else topic(name, [0], epoch=3) for name in names]
    meta.update(
        metadata(*answers),
        clock.now_ms(),
        request_version=due_request.request_version,
        is_partial_update=due_request.is_partial_update,
        refresh_count=due_request.refresh_count,
        has_more=due_request.has_more,
    )
    return names


def test_no_request_names_more_topics_than_the_limit(meta: Metadata, clock: ManualClock) -> None:
    """Rows name topics: a column of 40,000 different ones made one request that named them all."""
    meta.update(metadata(), clock.now_ms())
    all_names = [f"t{number:05}" for number in range(2_500)]
    for name in all_names:
        meta.add_topic(name, clock.now_ms())
    requests = []
    while meta.time_to_next_update_ms(clock.now_ms()) == 0:  # each follows the last one at once
        requests.append(answer_next(meta, clock))
    assert [len(each) for each in requests] == [1000, 1000, 500]
    assert list(chain(*requests)) == all_names
    assert set(meta.cluster().topics) == set(all_names)


def test_a_refresh_of_many_topics_takes_several_requests_and_loses_none(meta: Metadata, clock: ManualClock) -> None:
    meta.update(metadata(), clock.now_ms())
    for number in range(2_500):
        meta.add_topic(f"t{number:05}", clock.now_ms())
    is_odd = lambda name: int(name[1:]) % 2 == 1  # noqa: E731
    while meta.time_to_next_update_ms(clock.now_ms()) == 0:
        answer_next(meta, clock, unknown=is_odd)
    clock.advance(MAX_BACKOFF_MS * 2)
    meta.add_topic("t99998", clock.now_ms())
    requests = [answer_next(meta, clock, unknown=is_odd)]
    meta.add_topic("t99999", clock.now_ms())
    while meta.time_to_next_update_ms(clock.now_ms()) == 0:
        requests.append(answer_next(meta, clock, unknown=is_odd))
    assert [len(each) for each in requests] == [1000, 1000, 502]
    assert (requests[0][0], requests[1][0]) == ("t99998", "t99999")  # new topics do not wait for the old ones
    assert not any(map(is_odd, requests[0])), "names that exist did not come first"
    assert len(set(chain(*requests))) == len(meta.cluster().topics) == 2_502
    clock.advance(MAX_BACKOFF_MS * 2)
    assert meta.time_to_next_update_ms(clock.now_ms()) == 0  # some topics do not exist: they are asked for again


def test_a_refresh_that_is_complete_is_due_again_by_age(meta: Metadata, clock: ManualClock) -> None:
    meta.update(metadata(), clock.now_ms())
    for number in range(1_001):
        meta.add_topic(f"t{number}", clock.now_ms())
    meta.request_update("test")
    assert [len(answer_next(meta, clock)) for _ in range(2)] == [1000, 1]
    assert meta.time_to_next_update_ms(clock.now_ms()) == MAX_AGE_MS
    clock.advance(MAX_AGE_MS)
    assert len(answer_next(meta, clock)) == 1000
    meta.request_update("a leader has changed, perhaps of a topic that was answered already")
    assert len(answer_next(meta, clock)) == 1
    clock.advance(2 * BACKOFF_MS)
    assert len(answer_next(meta, clock)) == 1000


def test_names_without_an_answer_are_not_asked_for_without_a_pause(meta: Metadata, clock: ManualClock) -> None:
    meta.update(metadata(), clock.now_ms())
    for number in range(1_001):
        meta.add_topic(f"t{number}", clock.now_ms())
    meta.update(metadata(topic("other", [0])), clock.now_ms(), is_partial_update=True, has_more=True)
    assert is_about(meta.time_to_next_update_ms(clock.now_ms()), BACKOFF_MS)


@given(st.lists(st.sampled_from(["add", "refresh", "answer", "answer", "answer", "fail", "bootstrap", "forget"]), max_size=60))
def test_whatever_happens_every_topic_is_asked_for(steps: list[str]) -> None:
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_module, "MAX_TOPICS_PER_REQUEST", 3)
        meta = new_metadata(clock)
        topic_names: list[str] = []
        for step in steps:
            if step == "add":
                topic_names.append(f"t{len(topic_names)}")
                meta.add_topic(topic_names[-1], clock.now_ms())
            elif step == "refresh":
                meta.request_update("test")
            elif step == "answer":
                assert len(answer_next(meta, clock, unknown=lambda name: name.endswith("5"))) <= 3
            elif step == "fail":
                meta.note_failed_update(clock.now_ms())
            elif step == "bootstrap":
                meta.bootstrap([("a", 1)])
            elif topic_names:
                meta.forget_topic(topic_names.pop())
        for _ in range(60):
            delay_ms = meta.time_to_next_update_ms(clock.now_ms())
            if delay_ms > 2 * MAX_BACKOFF_MS:
                break
            clock.advance(delay_ms)
            answer_next(meta, clock)
        assert delay_ms > 2 * MAX_BACKOFF_MS, "it never comes to rest"
        assert {name for name in topic_names if meta.cluster().partition_count(name)} == set(topic_names)
        assert not meta.cluster().is_bootstrap


def test_a_known_topic_does_not_ask_for_an_update(orders: Metadata, clock: ManualClock) -> None:
    orders.add_topic("orders", clock.now_ms())
    assert orders.time_to_next_update_ms(clock.now_ms()) == MAX_AGE_MS


def test_a_full_update_asks_for_every_topic(orders: Metadata, clock: ManualClock) -> None:
    orders.add_topic("new", clock.now_ms())
    orders.request_update("test")
    assert names(orders, clock) == ["new", "orders"]


def test_an_unused_topic_is_forgotten(orders: Metadata, clock: ManualClock) -> None:
    clock.advance(MAX_IDLE_MS)
    orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    orders.request_update("test")
    assert names(orders, clock) == []
    assert orders.cluster().partition_count("orders") is None
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(None, None)


def test_unused_topics_leave_with_any_answer_and_those_used_since_stay(orders: Metadata, clock: ManualClock) -> None:
    names_of = {f"t{number}" for number in range(100)}
    for name in sorted(names_of):
        orders.add_topic(name, clock.now_ms())
    orders.update(metadata(*(topic(name, [0], epoch=3) for name in sorted(names_of))), clock.now_ms(), is_partial_update=True)
    clock.advance(MAX_IDLE_MS - 1)
    orders.add_topic("t50", clock.now_ms())
    clock.advance(1)
    orders.add_topic("new", clock.now_ms())
    orders.update(metadata(topic("new", [0])), clock.now_ms(), is_partial_update=True)
    assert set(orders.cluster().topics) == {"t50", "new"}
    assert orders.leader_and_epoch(TopicPartition("t50", 0)) == LeaderAndEpoch(0, 3)
    assert orders.leader_and_epoch(TopicPartition("t51", 0)) == LeaderAndEpoch(None, None)
    orders.request_update("test")
    assert names(orders, clock) == ["new", "t50"]


def test_a_forgotten_topic_leaves_with_the_next_answer_unless_it_is_added_again(orders: Metadata, clock: ManualClock) -> None:
    orders.forget_topic("orders")
    orders.forget_topic("never added")
    assert orders.cluster().partition_count("orders") == 2
    orders.add_topic("orders", clock.now_ms())
    orders.update(metadata(topic("other", [0])), clock.now_ms(), is_partial_update=True)
    assert orders.cluster().partition_count("orders") == 2
    orders.forget_topic("orders")
    orders.update(metadata(topic("other", [0])), clock.now_ms(), is_partial_update=True)
    assert orders.cluster().partition_count("orders") is None
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(None, None)


def test_an_answer_about_one_topic_takes_no_more_steps_when_thousands_are_known(meta: Metadata, clock: ManualClock) -> None:
    """All topics were copied and looked at for each answer: send() of 8,000 records to a topic each took the Sender 72 s."""

    def steps_to_learn(first: int, last: int) -> int:
        def learn() -> None:
            for number in range(first, last):
                meta.add_topic(f"t{number}", clock.now_ms())
                meta.update(metadata(topic(f"t{number}", [0])), clock.now_ms(), is_partial_update=True)

        return count_steps(learn)

    few = steps_to_learn(0, 100)
    steps_to_learn(100, 2_000)
    assert steps_to_learn(2_000, 2_100) < 1.5 * few


def test_a_used_topic_is_kept(orders: Metadata, clock: ManualClock) -> None:
    clock.advance(MAX_IDLE_MS)
    orders.add_topic("orders", clock.now_ms())
    orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    orders.request_update("test")
    assert names(orders, clock) == ["orders"]


def test_a_topic_is_not_forgotten_before_it_was_answered_for(meta: Metadata, clock: ManualClock) -> None:
    meta.add_topic("orders", clock.now_ms())
    clock.advance(MAX_IDLE_MS)
    meta.update(metadata(topic("orders", [0])), clock.now_ms())
    meta.request_update("test")
    assert names(meta, clock) == ["orders"]


def test_an_update_for_a_topic_that_is_still_new_is_partial_and_at_once(orders: Metadata, clock: ManualClock) -> None:
    orders.add_topic("new", clock.now_ms())
    orders.note_failed_update(clock.now_ms())
    orders.request_update_for_topic("new")
    assert orders.time_to_next_update_ms(clock.now_ms()) == 0
    assert names(orders, clock) == ["new"]
    orders.request_update_for_topic("orders")
    assert names(orders, clock) == ["new", "orders"]


# ERRORS


@pytest.mark.parametrize(("code", "condition"), [(17, "KAFKA_INVALID_TOPIC_EXCEPTION"), (29, "KAFKA_TOPIC_AUTHORIZATION_FAILED")])
def test_an_invalid_or_unauthorized_topic_is_reported_once(
    orders: Metadata, clock: ManualClock, code: int, condition: str
) -> None:
    orders.update(metadata(topic("orders", [], error_code=code)), clock.now_ms())
    orders.raise_error_for_topic("another")
    orders.update(metadata(topic("orders", [], error_code=code)), clock.now_ms())
    with pytest.raises(KafkaError) as raised:
        orders.raise_error_for_topic("orders")
    assert raised.value.condition == condition
    assert "topic orders" in str(raised.value)
    orders.raise_error_for_topic("orders")
    assert orders.cluster().topic_error("orders") == Errors.for_code(code)


def test_a_later_answer_clears_topic_errors(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [], error_code=29)), clock.now_ms())
    orders.update(metadata(topic("orders", [0], epoch=9)), clock.now_ms())
    orders.raise_error_for_topic("orders")
    assert orders.cluster().topic_error("orders") is None


def test_an_unknown_topic_is_asked_for_again_and_is_no_error_to_raise(orders: Metadata, clock: ManualClock) -> None:
    orders.update(metadata(topic("orders", [], error_code=3)), clock.now_ms())
    orders.raise_error_for_topic("orders")
    assert orders.cluster().topic_error("orders") is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert orders.time_to_next_update_ms(clock.now_ms()) <= MAX_BACKOFF_MS


def test_a_fatal_error_is_raised_once(meta: Metadata) -> None:
    meta.report_error(AuthenticationError("no"))
    with pytest.raises(AuthenticationError, match=r"no$"):
        meta.await_update(0, 10)
    meta.raise_error_for_topic("orders")


def test_a_refusal_that_is_over_is_not_raised_hours_later(orders: Metadata, clock: ManualClock) -> None:
    """A broker that restarted did not know the user yet. Long after it did, the first send to a new topic got that error."""
    orders.report_error(AuthenticationError("unknown user"))
    orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    orders.add_topic("new", clock.now_ms())
    orders.raise_error_for_topic("new")
    with pytest.raises(KafkaTimeoutError, match="within 0 ms"):
        orders.await_update(orders.request_update("test"), 0)


# WAITING


def test_waiting_ends_when_there_is_a_newer_version() -> None:
    clock = PatientClock()
    meta = Metadata(network_config(), clock)
    version = meta.request_update("test")
    error = run_while_waiting(clock, lambda: meta.await_update(version, 60_000), lambda: meta.update(metadata(), 0))
    assert error is None
    assert meta.request_update("test") == version + 1


def test_a_wait_for_an_update_that_has_come_already_ends_at_once(orders: Metadata) -> None:
    orders.await_update(orders.request_update("test") - 1, 0)


def test_waiting_ends_with_the_time_out_and_names_why_nobody_answered(meta: Metadata, clock: ManualClock) -> None:
    before_ms = clock.now_ms()
    with pytest.raises(KafkaTimeoutError, match=r"within 5000 ms$"):
        meta.await_update(meta.request_update("test"), 5000)
    assert clock.now_ms() - before_ms == 5000
    meta.report_unreachable("boot1:9001", "[Errno 111] Connection refused")
    with pytest.raises(KafkaTimeoutError, match=r"boot1:9001: \[Errno 111\] Connection refused"):
        meta.await_update(meta.request_update("test"), 5000)


def test_a_wait_without_time_ends_at_once(meta: Metadata) -> None:
    with pytest.raises(KafkaTimeoutError, match="no broker answered"):
        meta.await_update(meta.request_update("test"), -1)


def test_close_ends_waiting() -> None:
    clock = PatientClock()
    meta = Metadata(network_config(), clock)
    error = run_while_waiting(clock, lambda: meta.await_update(meta.request_update("test"), 60_000), meta.close)
    assert isinstance(error, ProducerClosedError)


def test_a_fatal_error_ends_waiting() -> None:
    clock = PatientClock()
    meta = Metadata(network_config(), clock)
    error = run_while_waiting(
        clock,
        lambda: meta.await_update(meta.request_update("test"), 60_000),
        lambda: meta.report_error(AuthenticationError("no")),
    )
    assert isinstance(error, AuthenticationError)


def test_an_answer_after_close_is_ignored(orders: Metadata, clock: ManualClock) -> None:
    version = orders.request_update("test")
    orders.close()
    orders.update(metadata(), clock.now_ms())
    assert orders.request_update("test") == version


# LEADER HINTS, REBOOTSTRAP, CONNECTION ERRORS


def test_a_newer_leader_is_taken_from_a_hint(orders: Metadata) -> None:
    changed = orders.update_partition_leadership({TP: LeaderAndEpoch(7, 6)}, [Node(7, "broker7", 9017)])
    assert changed == {TP}
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(7, 6)
    assert orders.cluster().node(7) == Node(7, "broker7", 9017)
    assert orders.cluster().node(0) is not None
    assert orders.cluster().topic_id("orders") == ID_1
    assert orders.cluster().leader_for(TopicPartition("orders", 1)) == 1


def test_metadata_from_before_a_hint_does_not_undo_it(orders: Metadata, clock: ManualClock) -> None:
    orders.update_partition_leadership({TP: LeaderAndEpoch(1, 6)}, [])
    orders.update(metadata(topic("orders", [0, 1], epoch=5, topic_id=ID_1)), clock.now_ms())
    assert orders.leader_and_epoch(TP) == LeaderAndEpoch(1, 6)


@pytest.mark.parametrize(
    ("topic_partition", "hint"),
    [
        (TP, LeaderAndEpoch(1, 5)),  # not newer
        (TP, LeaderAndEpoch(1, 4)),
        (TP, LeaderAndEpoch(1, -1)),
        (TP, LeaderAndEpoch(None, 6)),
        (TP, LeaderAndEpoch(1, None)),
        (TP, LeaderAndEpoch(9, 6)),  # address unknown
        (TopicPartition("orders", 9), LeaderAndEpoch(1, 6)),
        (TopicPartition("unknown", 0), LeaderAndEpoch(1, 6)),
    ],
)
def test_a_hint_that_is_old_or_incomplete_is_ignored(
    orders: Metadata, topic_partition: TopicPartition, hint: LeaderAndEpoch
) -> None:
    before = orders.cluster()
    assert orders.update_partition_leadership({topic_partition: hint}, []) == set()
    assert orders.cluster() is before


def test_the_last_known_leader_outlives_starting_over(orders: Metadata) -> None:
    assert orders.last_known_leader(TP) == Node(0, "broker0", 9010)
    orders.rebootstrap()
    orders.rebootstrap()
    assert orders.cluster().leader_for(TP) is None
    assert orders.last_known_leader(TP) == Node(0, "broker0", 9010)
    assert orders.last_known_leader(TopicPartition("other", 0)) is None


def test_rebootstrap_starts_over(orders: Metadata, clock: ManualClock) -> None:
    orders.rebootstrap()
    assert [node.id for node in orders.cluster().nodes] == [-1, -2]
    assert orders.cluster().is_bootstrap
    orders.request_update("test")
    assert names(orders, clock) == ["orders"]


def test_connection_errors_are_kept_until_the_node_can_be_reached(orders: Metadata, clock: ManualClock) -> None:
    assert orders.last_connection_error() is None
    orders.report_unreachable("broker0:9010", "refused")
    orders.report_unreachable("broker1:9011", "timed out")
    assert orders.last_connection_error() == "broker0:9010: refused; broker1:9011: timed out"
    orders.report_reachable("broker0:9010")
    assert orders.last_connection_error() == "broker1:9011: timed out"
    orders.update(metadata(nodes=1), clock.now_ms())  # broker 1 is no part of the cluster any more
    assert orders.last_connection_error() is None


def test_many_threads_read_and_add_while_answers_come(orders: Metadata, clock: ManualClock) -> None:
    failures: list[str] = []

    def read() -> None:
        for number in range(200):
            orders.add_topic(f"t{number}", clock.now_ms())
            cluster = orders.cluster()
            if cluster.partition_count("orders") not in (1, 2):
                failures.append(repr(cluster))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for epoch in range(6, 106):
        orders.update(metadata(topic("orders", [0] * (1 + epoch % 2), epoch=epoch, topic_id=ID_1)), clock.now_ms())
    for thread in threads:
        thread.join(30)
    assert not failures


def test_a_partition_error_that_asks_for_metadata_requests_it(orders: Metadata, clock: ManualClock) -> None:
    partition = MetadataResponsePartition(partition_index=0, leader_id=0, leader_epoch=6, error_code=9)
    orders.update(metadata(MetadataResponseTopic(name="orders", topic_id=ID_1, partitions=(partition,))), clock.now_ms())
    assert orders.cluster().leader_for(TP) == 0
    assert orders.time_to_next_update_ms(clock.now_ms()) <= MAX_BACKOFF_MS


def test_an_answer_leaves_time_for_requests_even_without_age_and_back_off(clock: ManualClock) -> None:
    """With metadata.max.age.ms=0 and retry.backoff.ms=0 an update was always due, and no node was ever ready: a producer got no
    id, and its rows failed after delivery.timeout.ms. Java's producer sends them."""
    meta = Metadata(network_config(retry_backoff_ms=0, retry_backoff_max_ms=0, metadata_max_age_ms=0), clock)
    meta.add_topic("orders", clock.now_ms())
    meta.update(metadata(topic("orders", [0])), clock.now_ms())
    assert meta.time_to_next_update_ms(clock.now_ms()) == MIN_METADATA_AGE_MS


# WHY THERE IS NO ANSWER


def test_the_throttles_that_were_in_effect_are_named(meta: Metadata, clock: ManualClock) -> None:
    started_ms = clock.now_ms()
    assert meta.last_trouble(started_ms) is None
    meta.report_throttle(Node(0, "a", 1), 300, started_ms)
    meta.report_throttle(Node(1, "b", 2), 7_000, started_ms)
    assert "node 1 at b:2 throttles this client, the last time for 7,000 ms" in str(meta.last_trouble(started_ms))
    assert "node 0 at a:1 throttles this client, the last time for 300 ms" in str(meta.last_trouble(started_ms, 0))
    assert meta.last_trouble(started_ms, 2) is None
    assert "node 1" in str(meta.last_trouble(started_ms + 6_999))
    assert meta.last_trouble(started_ms + 7_000) is None  # it had ended before


def test_a_throttle_is_not_taken_for_a_broken_network(meta: Metadata, clock: ManualClock) -> None:
    since_ms = clock.now_ms()
    assert meta.silence_text(since_ms).endswith("no answer has come; check bootstrap.servers and the network")
    meta.report_throttle(Node(0, "a", 1), 300, since_ms)
    assert "check" not in meta.silence_text(since_ms)
    meta.report_unreachable("b:2", "connection refused")
    text = meta.silence_text(since_ms)
    assert text.startswith("no broker answered: b:2: connection refused; node 0 at a:1 throttles")
    assert text.endswith("check bootstrap.servers and the network")
