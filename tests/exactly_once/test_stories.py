"""Random stories of exactly-once writes end well, also those that once did not. They find what is left out of the protocol."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.exactly_once.stories import MUTANTS, Ending, explained, mutated, run_stories, told
from tests.exactly_once.story import Layout, Move, Setting, new_setting

FEW, MANY = 12, 1_000
MOST_STORIES_OF_A_MUTANT = 500


def _explain(endings: Sequence[Ending]) -> str:
    return "\n\n".join(map(explained, endings))


def test_random_stories_end_well() -> None:
    assert not (failures := run_stories(FEW, seed=1).failures), _explain(failures)


@pytest.mark.soak
def test_many_random_stories_end_well() -> None:
    summary = run_stories(MANY, seed=100_000)
    print(summary.text())
    assert not summary.failures, _explain(summary.failures)


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_stories_find_what_is_left_out(name: str) -> None:
    with mutated(name):
        assert run_stories(MOST_STORIES_OF_A_MUTANT, seed=1).failures


def test_a_story_repeats() -> None:
    first_words: list[str] = []
    again_words: list[str] = []
    first = told(new_setting(3), tell=first_words.append)
    told(first.story.setting, first.story.moves, again_words.append)
    assert len(first_words) > 20
    assert again_words == first_words


# STORIES THAT DID NOT END WELL


ONE_PARTITION = ((("a", "b"),),)
THE_LAST = ((("last-0", "last-1"),),)


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_a_version_is_completed_whose_control_record_was_skipped_as_often_as_its_commit_was_repeated(
    transaction_version: int,
) -> None:
    """Nobody could commit the version then, nor a later one: each repetition was bounded by the epoch."""
    moves: list[Move] = [
        ("begin", 0, True),
        ("skip", "t", 1),
        ("task", 0, 0),
        ("step", "task 0/0/0/0", 40),
        ("commit", 0),
        ("step", "driver 0/0", 200),
    ]
    ending = _told(transaction_version, (ONE_PARTITION, THE_LAST), moves)
    assert ending.story.cluster.skipped.count > 2


def test_the_marker_of_an_aborted_attempt_does_not_hang_when_the_repetitions_of_its_abort_were_skipped() -> None:
    """Two attempts of a partition were aborted, and nobody can see whose marker is pending. After two repetitions both ids were
    put to rest with the marker pending: a later commit under that id would have made it visible."""
    moves: list[Move] = [
        ("begin", 0, False),
        ("task", 0, 1),
        ("begin", 0, False),
        ("task", 0, 0),
        ("step", "task 0/0/0/0", 15),
        ("step", "task 0/0/1/0", 14),
        ("task", 1, 1),
        ("step", "task 1/0/1/0", 15),
        ("step", "task 0/0/0/0", 15),
        ("task", 0, 2),
        ("skip", "__consumer_offsets", 12),
        ("step", "task 0/0/2/0", 40),
        ("task", 1, 0),
        ("step", "task 1/0/0/0", 19),
        ("commit", 0),
        ("step", "driver 0/0", 200),
    ]
    three_partitions = (("v0-3",), (), ("v0-0", "v0-1x", "v0-2"))
    ending = _told(1, ((three_partitions,), THE_LAST), moves)
    assert ending.story.cluster.skipped.count > 2


def test_what_was_fenced_is_looked_for_in_all_partitions_of_the_topic() -> None:
    """An attempt was fenced, and its control record skipped in one partition. When its id was listed once more, it named no
    partition any more, and another id that was fenced beside it named one: the others were not looked at."""
    moves: list[Move] = [
        ("begin", 1, True),
        ("begin", 0, False),
        ("task", 1, 0),
        ("step", "task 1/0/0/0", 40),
        ("task", 0, 0),
        ("skip", "t", 1),
        ("step", "task 0/0/0/0", 18),
        ("task", 1, 1),
        ("step", "task 1/0/1/0", 40),
        ("task", 0, 1),
        ("commit", 1),
        ("step", "driver 1/0", 9),
    ]
    layouts = ((("v0-1xx", "v0-3x"), ("v0-0xx", "v0-2xx")), (("v0-0xx", "v0-1xx"), ("v0-2xx",), ("v0-3x",)))
    ending = _told(1, (layouts, THE_LAST), moves)
    assert ending.story.cluster.skipped.count > 0


def _told(transaction_version: int, layouts: tuple[tuple[Layout, ...], ...], moves: Sequence[Move]) -> Ending:
    setting = Setting(
        seed=0,
        transaction_version=transaction_version,
        may_skip=True,
        has_ends=False,
        asks_brokers_first=True,
        layouts=layouts,
    )
    ending = told(setting, moves)
    assert not ending.problem
    assert not ending.story.limits
    return ending
