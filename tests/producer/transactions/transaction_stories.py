"""Random stories for transactional_application.py, and the search for the simplest story that fails as a found one does.

A story is made of a seed alone. Hypothesis does not write these: five of six of its examples are small changes of the one
before, too few are new where a story has so many parts.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pprint import pformat
from random import Random
from typing import Any

from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.producer.simulated_cluster import PASSING_FATES, ClusterFate
from tests.producer.transactions.transaction_steps import (
    OWN_ENDS,
    PLACES,
    Answer,
    Arrive,
    Begin,
    Behave,
    End,
    Event,
    Flush,
    Idle,
    Markers,
    MoveCoordinator,
    MoveLeader,
    Pass,
    Prepare,
    SendOffsets,
    Stall,
    Step,
    StopNode,
    Sweep,
    TakeOver,
    Upgrade,
    Write,
)
from tests.producer.transactions.transactional_application import TransactionalApplication
from tests.producer.transactions.transactional_brokers import COORDINATOR_APIS

MOST_SIMPLIFICATIONS = 3000
NODES = 3
DURATIONS = (1, 20, 100, 400, 1100)
APIS = (
    *COORDINATOR_APIS,
    ApiKey.END_TXN,
    ApiKey.PRODUCE,
    ApiKey.PRODUCE,
)
WRECKING_FATES = (ClusterFate.ABORTABLE_ERROR, ClusterFate.ABORTABLE_ERROR, ClusterFate.BREAK_AFTER, ClusterFate.FATAL_ERROR)

SIMPLEST_OPTIONS: Mapping[str, Any] = {
    "batch_size": 0,
    "linger_ms": 0,
    "compression_type": "none",
    "buffer_memory": 1_000_000,
    "max_in_flight_requests_per_connection": 5,
    "max_request_size": 1_048_576,
    "max_block_ms": 60_000,
    "request_timeout_ms": 1000,
    "retries": 2**31 - 1,
    "delivery_timeout_ms": 2**31 - 1,
    "transaction_timeout_ms": 900_000,
}


@dataclass(frozen=True)
class Story:
    """Args:
    level: transaction.version of the brokers.
    options: of the producers, besides SIMPLEST_OPTIONS.
    first_epoch: of the transactional id; None when it is new.
    """

    level: int
    steps: tuple[Step, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    max_message_bytes: int = 1_048_588
    fences_twice: bool = False
    markers_every: int = 1
    first_epoch: int | None = None

    def application(self) -> TransactionalApplication:
        return TransactionalApplication(
            options={**SIMPLEST_OPTIONS, **self.options},
            cluster={
                "transaction_version": self.level,
                "max_message_bytes": self.max_message_bytes,
                "fences_twice": self.fences_twice,
            },
            markers_every=self.markers_every,
            first_epoch=self.first_epoch,
        )

    def play(self) -> TransactionalApplication:
        application = self.application()
        application.play(self.steps)
        application.check()
        return application


class StoryWriter:
    """Args:
    passes: whether nothing goes wrong but what passes: no call may fail then.
    upgrades: whether the brokers are upgraded to transaction.version 2 at some time.
    """

    def __init__(self, seed: int, level: int, *, passes: bool, upgrades: bool) -> None:
        self._random = Random(seed)
        self._level = level
        self._passes = passes
        self._upgrades = upgrades

    def write(self) -> Story:
        draw = self._random
        return Story(
            level=self._level,
            steps=tuple(self._steps()),
            options=self._options(),
            max_message_bytes=draw.choice((1700, 1_048_588)),
            fences_twice=draw.random() < 0.3,
            markers_every=draw.choice((1, 1, 3)),
            first_epoch=draw.choice((None, None, None, 32763, 32764, 32765, 32766)),
        )

    def _options(self) -> dict[str, Any]:
        draw = self._random
        options = {
            "batch_size": draw.choice((0, 200, 1024, 5000)),
            "linger_ms": draw.choice((0, 0, 5, 100)),
            "compression_type": draw.choice(("none", "lz4")),
            "max_in_flight_requests_per_connection": draw.choice((1, 2, 5)),
            "max_request_size": draw.choice((2000, 1_048_576)),
            "max_block_ms": draw.choice((150, 2000, 60_000)),
            "request_timeout_ms": draw.choice((300, 1000)),
        }
        if not self._passes:
            options |= {
                "buffer_memory": draw.choice((8192, 1_000_000)),
                "retries": draw.choice((2, 2**31 - 1)),
                "delivery_timeout_ms": options["linger_ms"] + options["request_timeout_ms"] + draw.choice((0, 500, 60_000)),
                "transaction_timeout_ms": draw.choice((1000, 10_000, 900_000)),
            }
        return options

    def _steps(self) -> Iterator[Step]:
        draw = self._random
        ends = OWN_ENDS if self._passes else list(End)
        idles = (10, 1_000_000) if self._passes else (10, 20_000)
        for _ in range(draw.randint(1, 4)):
            yield from self._events(3)
            yield Begin()
            for _ in range(draw.randint(0, 8)):
                yield self._event() if draw.random() < 0.35 else self._action()
            yield draw.choice((End.COMMIT, *ends))
            yield from self._events(8)
            if draw.random() < 0.3:
                yield Idle(draw.choice(idles))

    def _events(self, most: int) -> Iterator[Event]:
        for _ in range(self._random.randint(0, most)):
            yield self._event()

    def _action(self) -> Step:
        draw = self._random
        roll = draw.random()
        if roll < 0.1:
            return Flush()
        if roll < 0.35:
            return SendOffsets(tuple(draw.sample(range(3), draw.randint(0, 2))))
        sizes = draw.choice(((0, 40), (0, 400), (900, 1500)))
        rows = tuple((draw.randrange(len(PLACES)), draw.randint(*sizes)) for _ in range(draw.randint(1, 6)))
        if not self._passes and draw.random() < 0.05:
            rows += ((draw.randrange(len(PLACES)), 5000),)  # too large with max.request.size=2000
        return Write(rows, singly=draw.random() < 0.5)

    def _event(self) -> Event:
        draw = self._random
        if self._upgrades and draw.random() < 0.05:
            return Upgrade()
        if not self._passes and draw.random() < 0.35:
            return self._wrecking_event()
        duration_ms = draw.choice(DURATIONS)
        node = draw.randrange(NODES)
        roll = draw.random()
        if roll < 0.45:
            return self._trouble(PASSING_FATES)
        if roll < 0.65:
            return Behave(draw.randint(1, 4))
        return draw.choice(
            (
                Pass(duration_ms),
                Stall(duration_ms),
                MoveLeader(draw.randrange(len(PLACES)), node),
                MoveCoordinator(draw.random() < 0.3, node),
                StopNode(node, duration_ms),
                Markers(draw.randint(1, 3)),
                Arrive(),
            )
        )

    def _wrecking_event(self) -> Event:
        draw = self._random
        roll = draw.random()
        if roll < 0.7:
            return self._trouble(WRECKING_FATES)
        return Sweep(draw.choice((0, 1001, 10_001))) if roll < 0.85 else TakeOver()

    def _trouble(self, fates: Sequence[ClusterFate]) -> Event:
        """Mostly of what comes next: few requests are in flight at any time."""
        draw = self._random
        fate, which = draw.choice(fates), draw.randrange(12)
        if draw.random() < 0.25:
            return Answer(draw.randrange(4), fate, which)
        return Prepare(draw.choice(APIS), fate, which)


# THE SIMPLEST STORY THAT FAILS

Play = Callable[[Story], object]


def play_or_simplify(story: Story, play: Play) -> None:
    """Play a story. If that fails, raise what the simplest story that fails in the same way raises, and tell that story."""
    try:
        play(story)
    except Exception as error:  # noqa: BLE001 - raised again
        simplest, its_error = simplify(story, error, play)
        its_error.add_note(f"The simplest story that fails like this:\n{pformat(simplest, width=120)}")
        raise its_error from None


def simplify(story: Story, error: Exception, play: Play) -> tuple[Story, Exception]:
    left = MOST_SIMPLIFICATIONS
    simpler = True
    while simpler:
        simpler = False
        for candidate in _simpler(story):
            left -= 1
            if left < 0:
                return story, error
            try:
                play(candidate)
            except Exception as candidate_error:  # noqa: BLE001 - compared
                if _kind(candidate_error) == _kind(error):
                    story, error, simpler = candidate, candidate_error, True
                    break
    return story, error


def _kind(error: Exception) -> tuple[str, str, int | None]:
    """What an error has to have in common with another one, to come from the same fault: its type and its place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.filename, last.lineno


def _simpler(story: Story) -> Iterator[Story]:
    """Without some of the steps; then with simpler steps; then with simpler options."""
    steps = story.steps
    size = len(steps)
    while size:
        for start in range(0, len(steps), size):
            yield replace(story, steps=steps[:start] + steps[start + size :])
        size //= 2
    for index, step in enumerate(steps):
        for simpler in _simpler_step(step):
            yield replace(story, steps=(*steps[:index], simpler, *steps[index + 1 :]))
    for name in story.options:
        yield replace(story, options={key: value for key, value in story.options.items() if key != name})
    plain = Story(story.level, story.steps, story.options)
    for name in ("max_message_bytes", "fences_twice", "markers_every", "first_epoch"):
        if getattr(story, name) != getattr(plain, name):
            yield replace(story, **{name: getattr(plain, name)})


def _simpler_step(step: Step) -> Iterator[Step]:
    match step:
        case Write(rows, singly):
            for index in range(len(rows)) if len(rows) > 1 else ():
                yield Write((*rows[:index], *rows[index + 1 :]), singly)
            for index, (place, size) in enumerate(rows):
                if size:
                    yield Write((*rows[:index], (place, 0), *rows[index + 1 :]), singly)
            if singly:
                yield Write(rows)
        case SendOffsets(partitions) if partitions:
            yield SendOffsets(partitions[1:])
        case Answer(place, fate, which) if place or which:
            yield Answer(0, fate, 0)
        case Prepare(api, fate, which) if which:
            yield Prepare(api, fate, 0)
        case Behave(steps) if steps > 1:
            yield Behave(steps - 1)
        case End() if step is not End.COMMIT:
            yield End.COMMIT
