"""Random stories of exactly-once writes: versions, attempts, zombies, deaths, time-outs and faults, by a seed; the built code.

    python -m tests.exactly_once.stories --stories 5000 --seed 1     runs them, and prints counts; a failure is shrunk and told
    python -m tests.exactly_once.stories --seed 77 --tell            one story, move by move
    python -m tests.exactly_once.stories --mutant fencing            stories until one finds that fencing is left out

story.py says what a story is and what must hold. Here stories are invented, shrunk and told.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

from spark_kafka_sink.exactly_once import decisions, settling, version_commit
from spark_kafka_sink.exactly_once.version_commit import Committed
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.exactly_once.runs import TOPIC
from tests.exactly_once.story import TO_THE_END, Life, Move, Setting, Story, StoryFailure, new_setting
from tests.exactly_once.story_actors import NODES, PARTITIONS, simulated
from tests.fakes.transaction_coordinator import OFFSETS_TOPIC, offsets_partition

MOVES = (15, 70)  # how many there are, at least and at most
LOST_APIS = (
    *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE),
    *(ApiKey.END_TXN, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS),
    *(ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_OFFSETS),
)

# INVENTING


def invent(story: Story) -> None:
    """Make random moves, by the seed."""
    random = Random(f"moves {story.setting.seed}")
    weights = {
        "fault": random.choice((0, 0.05, 0.15, 0.3)),
        "death": random.choice((0.01, 0.05, 0.15)),
        "zombie": random.choice((0, 0.02, 0.1)),
        "speculation": random.choice((0, 0.05, 0.2)),
        "time": random.choice((0, 0.03, 0.1)),
        "layout": random.choice((0, 0.5)),
        "outage": random.choice((0, 0.2, 0.5)),  # between a driver's death and the next one
        "plot": random.choice((0, 0.1, 0.3)),  # where it matters
    }
    for _ in range(random.randint(*MOVES)):
        for move in _invented(story, random, weights):
            story.make(move)


def _invented(story: Story, random: Random, weights: Mapping[str, float]) -> Sequence[Move]:
    """What happens next: one move, none, or several that belong together."""

    def happens(what: str) -> bool:
        return random.random() < weights[what]

    lives = [each for each in story.lives if each.is_alive]
    if lives and happens("plot") and (plot := _plot(story, random)):
        return plot
    move = _one_move(story, lives, random, happens)
    return [] if move is None else [move]


def _one_move(story: Story, lives: Sequence[Life], random: Random, happens: Callable[[str], bool]) -> Move | None:
    moving = [name for name, actor in story.actors.items() if not actor.is_over]
    if not lives and story.lives and happens("outage"):
        return ("time", 61_000)
    if not lives or (len(lives) < 3 and happens("zombie")):
        if story.version in story.failed and random.random() < 0.2:
            return ("give_up",)
        is_last = story.version == story.last_version
        return None if is_last else ("begin", int(happens("layout")), random.random() < 0.5)
    if happens("fault"):
        return _fault(story, random)
    if happens("time"):
        return ("time", random.choice((1_000, 31_000, 61_000)))
    if moving and happens("death"):
        return ("die", random.choice(moving))
    if happens("death"):
        return ("kill", random.choice(lives).number)
    if moving and random.random() < 0.5:
        count = TO_THE_END // 2 if random.random() < 0.2 else random.randint(1, random.choice((2, 6, 20)))
        return ("step", random.choice(moving), count)
    return _spark_move(random.choice(lives), story, random, happens)


def _plot(story: Story, random: Random) -> Sequence[Move]:
    """Something goes wrong where a driver is about to decide, to commit or to settle."""
    drivers = [each for each in story.lives if each.is_alive and each.driver is not None and not each.driver.is_over]
    plots: list[Sequence[Move]] = []
    for life in drivers:
        assert life.driver is not None
        step = life.driver.at.split()[0]
        if step in ("EndTxn", "OffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn", "InitProducerId"):
            plots += [[("kill", life.number)], [("time", 61_000)], [("time", 31_000)]]
            if len(story.lives) < 3:
                plots.append([("begin", random.randrange(2), random.random() < 0.5)])
        if step == "EndTxn":
            a_step = ("step", life.driver.name, 1)
            loss = ("lose", ApiKey.END_TXN, False)
            plots += [[loss], [a_step], [("stop", random.randrange(NODES))]]
            a_part_is_lost = [loss, a_step, a_step, ("kill", life.number), ("time", 61_000)]
            plots += 4 * [[*a_part_is_lost, ("begin", random.randrange(2), random.random() < 0.5)]]
    return random.choice(plots) if plots else []


def _spark_move(life: Life, story: Story, random: Random, happens: Callable[[str], bool]) -> Move | None:
    """What Spark does next in this life of the driver."""
    if life.driver is not None:
        if isinstance(life.driver.outcome, Committed):
            return ("next", life.number)
        return ("step", life.driver.name, random.randint(1, random.choice((3, 20))))
    missing = [partition for partition in range(len(story.rows_of(life))) if partition not in life.reports]
    if not missing:
        return ("commit", life.number)
    partition = random.choice(missing)
    attempts = life.attempts.get(partition, [])
    running = [each for each in attempts if not each.is_over]
    if len(attempts) >= 4 and not running:
        return ("abort", life.number)
    if not running or happens("speculation"):
        return ("task", life.number, partition)
    if random.random() < 0.02:
        return ("abort", life.number)
    return ("step", random.choice(running).name, random.choice((3, 8, 40)))


def _fault(story: Story, random: Random) -> Move:
    skips = 4 if story.setting.may_skip else 0
    kind = random.choices(
        ("lose", "busy", "stop", "start", "lead", "coordinate", "skip", "write", "hold", "release"),
        (5, 2, 1, 3, 1, 1, skips, skips, 1, 3),
    )[0]
    ids = list(story.broker.transactions.transactions) or ["P-q-0-1000"]
    groups = ["P-q-decision", *(f"P-q-{partition}-marker" for partition in range(3))]
    match kind:
        case "lose":
            return (kind, random.choice(LOST_APIS), random.random() < 0.6)
        case "busy":
            return (kind, random.choice(LOST_APIS[:4] + LOST_APIS[5:6]), random.random() < 0.3)
        case "stop" | "start":
            return (kind, random.randrange(NODES))
        case "lead":
            return (kind, random.randrange(PARTITIONS), random.randrange(NODES))
        case "coordinate":
            is_group = random.random() < 0.4
            return (kind, random.choice(groups if is_group else ids), is_group, random.randrange(NODES))
        case "skip":
            if random.random() < 0.6:
                return (kind, TOPIC, random.randrange(PARTITIONS))
            return (kind, OFFSETS_TOPIC, offsets_partition(random.choice(groups[1:])).partition)
        case "release":
            return (kind, random.choice((None, 1, 2)))
    return (kind,)


# TELLING, SHRINKING


@dataclass
class Ending:
    story: Story
    problem: str  # "": it ended well


def told(setting: Setting, moves: Sequence[Move] | None = None, tell: Callable[[str], object] = lambda _: None) -> Ending:
    """Tell a story: these moves, or by its seed. An exception of the code that is no KafkaError is a problem too."""
    story = Story(setting, tell)
    problem = ""
    with simulated(story.cluster), mock.patch.object(settling, "_log_repetitions", _counting(story)):
        try:
            if moves is None:
                invent(story)
            else:
                for move in moves:
                    story.make(move)
            story.end()
        except Exception as error:  # noqa: BLE001 - whatever it is, the story is told with it
            problem = f"{type(error).__name__}: {error}"
            if not isinstance(error, StoryFailure):
                tell(traceback.format_exc())
        finally:
            story.bury()
    story.counts["skips"] = story.cluster.skipped.count
    return Ending(story, "" if story.limits else problem)


def _counting(story: Story) -> Callable[..., None]:
    def log(verb: str, repetitions: Sequence[object]) -> None:
        story.counts["repeated ends"] += len(repetitions)
        story.tell(f"    {verb} is repeated: {repetitions}")

    return log


def shrink(setting: Setting, moves: Sequence[Move], limit_s: float = 60) -> tuple[Setting, list[Move]]:
    """A shorter story that fails too: with fewer moves, fewer steps at once, a simpler setting."""
    deadline = time.monotonic() + limit_s
    moves = list(moves)

    def fails(setting: Setting, moves: Sequence[Move]) -> bool:
        return time.monotonic() < deadline and bool(told(setting, moves).problem)

    for simpler in (
        {"has_ends": False},
        {"asks_brokers_first": True},
        {"may_skip": False},
        {"layouts": (*(each[:1] for each in setting.layouts),)},
    ):
        if fails(replace(setting, **simpler), moves):
            setting = replace(setting, **simpler)
    size = max(len(moves) // 2, 1)
    while size:
        start = 0
        has_changed = False
        while start < len(moves):
            fewer = moves[:start] + moves[start + size :]
            if fails(setting, fewer):
                moves, has_changed = fewer, True
            else:
                start += size
        size = size // 2 if size > 1 or not has_changed else 1
    for index, move in enumerate(moves):
        if move[0] == "step" and move[2] > 40:
            fewer = [*moves[:index], (*move[:2], 40), *moves[index + 1 :]]
            if fails(setting, fewer):
                moves = fewer
    return setting, moves


# MUTANTS: what stories have to find when it is left out


def _no_wait(self: settling.CommitSettling, beside: settling.Beside[Any] | None = None) -> None:
    if beside is not None:
        (reply,) = self.client.ask_together(beside.question)
        beside.read(reply)


MUTANTS: Mapping[str, Sequence[tuple[object, str, object]]] = {
    "fencing": [(version_commit, "fence_unprotected", lambda *_: {})],
    "markers": [(version_commit, "check_markers", lambda *_, **__: None)],
    "untouched": [(version_commit, "check_untouched", lambda *_: None)],
    "settling": [
        (settling.CommitSettling, "settle", _no_wait),
        (version_commit, "settle_left", lambda *_, **__: []),
        (decisions, "settle_left", lambda *_, **__: []),
    ],
}


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, attribute, instead in MUTANTS[name] if name else ():
            stack.enter_context(mock.patch.object(owner, attribute, instead))
        yield


# THE COMMAND


@dataclass
class Summary:
    counts: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    failures: list[Ending] = field(default_factory=list)

    def add(self, ending: Ending) -> None:
        self.counts["stories"] += 1
        self.counts.update(ending.story.counts)
        self.limits.update(ending.story.limits)
        if ending.problem:
            self.failures.append(ending)

    def text(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        limits = "".join(f"\nknown limit, not judged: {count:,} stories: {name}" for name, count in self.limits.items())
        return f"{counts}{limits}\n{len(self.failures):,} failures"


def run_stories(count: int, seed: int, *, most_failures: int = 1, note: Callable[[Ending], object] = lambda _: None) -> Summary:
    summary = Summary()
    for number in range(seed, seed + count):
        ending = told(new_setting(number))
        summary.add(ending)
        if ending.problem:
            note(ending)
            if len(summary.failures) >= most_failures:
                break
    return summary


def explained(ending: Ending) -> str:
    """The story in words, as short as it gets."""
    story = ending.story
    setting, moves = shrink(story.setting, story.moves)
    lines: list[str] = []
    again = told(setting, moves, lines.append)
    moves_text = "".join(f"\n    {each!r}," for each in moves)
    return "\n".join(
        (
            f"seed {setting.seed}: {ending.problem}",
            f"shrunk to {len(moves)} of {len(story.moves)} moves: {again.problem}",
            f"{setting}{moves_text}",
            *lines,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exactly_once.stories", description="Random stories of exactly-once writes."
    )
    parser.add_argument("--stories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first story; each story has the next one")
    parser.add_argument("--mutant", choices=MUTANTS, help="leave this out of the code: a story has to find it")
    parser.add_argument("--tell", action="store_true", help="tell the story of this seed, and nothing else")
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    with mutated(chosen.mutant):
        if chosen.tell:
            ending = told(new_setting(chosen.seed), tell=print)
            print(ending.problem or "it ends well", *ending.story.limits)
            return bool(ending.problem)

        def note(ending: Ending) -> None:
            print(f"seed {ending.story.setting.seed}: {ending.problem}", flush=True)
            if chosen.shrink:
                print(explained(ending), flush=True)

        began = time.monotonic()
        summary = run_stories(chosen.stories, chosen.seed, most_failures=chosen.failures, note=note)
    print(summary.text(), f"in {time.monotonic() - began:.0f} s")
    return bool(summary.failures) != bool(chosen.mutant)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.exactly_once.stories", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
