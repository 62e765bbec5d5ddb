"""An interrupt (Ctrl-C) in a caller's thread, at each point where Python looks for signals. interrupts.py has the rule.

After it each row is settled once, no call takes longer than its limit, and the memory is whole. A call that only waited can be
made again, and nothing is lost; after one that handed rows over the producer has ended, and each call says why.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fakes.fake_broker import FakeBroker
from tests.interrupts import Interrupts, places_of
from tests.producer.application_stories import STORIES, look_at, producer_for
from tests.producer.interrupted_application import InterruptedApplication
from tests.producer.transactions.transactional_brokers import cluster_of

SOAK_LIMIT_S = 1_800  # hundreds of plays of a story
LIMIT_S = 240  # a story that takes two minutes ends the program, with its stacks


@pytest.fixture(autouse=True)
def _ignore_interrupts_of_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may strike a generator that is being closed. Python prints it and goes on; a second one may strike the printing."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with cluster_of(2) as cluster:
        yield cluster


_numbers = itertools.count()


def play(broker: FakeBroker, story: str, *at: int) -> Interrupts:
    """The story, interrupted at these points; the producer and the broker are looked at afterwards."""
    name = f"{story}-{next(_numbers)}"
    application, interrupts = InterruptedApplication(producer_for(broker, story, name), name), Interrupts(*at)
    try:
        application.play(STORIES[story], interrupts)
    finally:
        application.producer.close(0)
    look_at(broker, application)
    if at and not interrupts.where:  # no two plays pass as many points: this one ended before the first that was named
        assert at[0] // 2 < interrupts.points <= at[0]
    return interrupts


def points_of(broker: FakeBroker, story: str) -> list[int]:
    """Where an interrupt may come: the first and the last time that the story passes each place in the sources."""
    interrupts = play(broker, story)
    assert len(interrupts.places) > 300
    return places_of(interrupts)


@pytest.mark.parametrize("story", STORIES)
def test_wherever_an_interrupt_comes_nothing_is_lost_and_nothing_hangs(broker: FakeBroker, story: str) -> None:
    """About one of 100 left damage: a lock that stayed locked, memory that never came back, a commit without a row."""
    points = points_of(broker, story)
    places = {where for at in points[:: len(points) // 16] for where in play(broker, story, at).where}
    assert len(places) >= 8  # of some 17 plays: calls in loops come more than once


@pytest.mark.parametrize("story", STORIES)
def test_a_second_interrupt_while_the_first_one_is_handled_changes_nothing(broker: FakeBroker, story: str) -> None:
    points = points_of(broker, story)
    for at in points[3 :: len(points) // 8]:
        play(broker, story, at, at + 1 + at % 9)


def play_alone(story: str, *at: int) -> None:
    """With brokers of its own: hundreds of plays leave gigabytes with the same ones, and each would read all of that."""
    with cluster_of(2) as brokers:
        play(brokers, story, *at)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("story", STORIES)
def test_an_interrupt_at_any_place_of_any_call_loses_no_row(broker: FakeBroker, story: str) -> None:
    for at in points_of(broker, story):
        play_alone(story, at)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("story", STORIES)
def test_two_interrupts_at_any_places_lose_no_row(broker: FakeBroker, story: str) -> None:
    for at in points_of(broker, story):
        play_alone(story, at, at + 1 + at % 40)


LOCKS_STAY_LOCKED = (3, 14) <= sys.version_info < (3, 15)  # python/cpython#148874


@pytest.mark.soak
@pytest.mark.skipif(LOCKS_STAY_LOCKED, reason="Python 3.14 can leave a lock locked: docs/producer.md promises nothing there")
def test_a_producer_ends_well_after_five_thousand_real_signals() -> None:
    program = [sys.executable, "-m", "tests.producer.signalled", "5000"]
    process = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "the producer has ended" in process.stdout
