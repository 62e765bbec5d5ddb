"""What holds for transactions whatever happens: readers see all of what was committed and nothing else, and nobody hangs.

A seed makes each story: what the application does, and what goes wrong around it (transaction_stories.py). Real producers play
it over simulated brokers, on one thread and one clock (simulated_producer.py, simulated_cluster.py); what must hold then is
TransactionalApplication.check. A test that fails tells the simplest story that fails in the same way.
"""

from __future__ import annotations

import pytest

from tests.producer.transactions.transaction_stories import Story, StoryWriter, play_or_simplify

levels = pytest.mark.parametrize(("level", "upgrades"), [(1, False), (2, False), (1, True)], ids=["TV1", "TV2", "upgrade"])
several = pytest.mark.parametrize(
    "seeds",
    [range(30), pytest.param(range(30, 10_000), marks=[pytest.mark.soak, pytest.mark.timeout(1_200)])],
    ids=["some", "many"],
)


def play_what_passes(story: Story) -> None:
    application = story.play()
    assert application.fatal == application.abortable == []
    if story.options.get("max_block_ms", 60_000) == 60_000:
        assert application.time_outs == 0  # nothing that passes takes so long


def play_anything(story: Story) -> None:
    application = story.play()
    assert application.has_reason_to_fail() or not application.fatal, application.fatal


@several
@levels
def test_passing_faults_lose_no_row(level: int, upgrades: bool, seeds: range) -> None:
    for seed in seeds:
        play_or_simplify(StoryWriter(seed, level, passes=True, upgrades=upgrades).write(), play_what_passes)


@several
@levels
def test_readers_see_what_is_committed_whatever_happens(level: int, upgrades: bool, seeds: range) -> None:
    for seed in seeds:
        play_or_simplify(StoryWriter(seed, level, passes=False, upgrades=upgrades).write(), play_anything)
