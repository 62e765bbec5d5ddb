"""Topics of a Cluster: many of them share their memory, and none ever changes."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.network.cluster import Cluster, Topic, Topics
from tests.steps import count_steps

NAMES = [f"t{number}" for number in range(40)]


def topic(number: int) -> Topic:
    """Any one, that can be told from others."""
    return Topic(None, {}, is_internal=bool(number % 2))._replace(partitions={number: None})


@pytest.mark.parametrize("seed", range(5))
def test_changed_topics_are_those_before_with_the_changes_and_those_before_stay(seed: int) -> None:
    random = Random(seed)
    expected: dict[str, Topic] = {}
    made: list[tuple[Topics, dict[str, Topic]]] = [(Topics(), {})]
    for number in range(300):
        removed = random.sample(NAMES, random.randrange(3))
        added = {name: topic(number) for name in random.sample(NAMES, random.randrange(4))}
        expected = {name: each for name, each in expected.items() if name not in removed} | added
        made.append((made[-1][0].with_changes(added, removed), expected))
    for topics, then in made:
        assert dict(topics) == then
        assert len(topics) == len(then)
        assert {name for name in NAMES if name in topics} == then.keys()
        assert [topics.get(name) for name in NAMES] == [then.get(name) for name in NAMES]


def test_a_topic_that_was_removed_is_not_there() -> None:
    topics = Topics(dict.fromkeys(NAMES, topic(1))).with_changes({}, NAMES[:1])
    assert topics.get(NAMES[0], "another") == "another"
    with pytest.raises(KeyError):
        topics[NAMES[0]]
    assert Cluster(topics=topics).partition_count(NAMES[0]) is None


def test_a_change_takes_no_more_steps_when_there_are_thousands_of_topics() -> None:
    def steps(count: int) -> int:
        topics = Topics({f"t{number}": topic(number) for number in range(count)})
        return count_steps(lambda: topics.with_changes({"new": topic(0)}))

    assert steps(10_000) == steps(100)
