"""An append that ends amid its work: by an interrupt, after which the producer ends, or as memory ends, after which it may go on.

The Sender may look at the queues at any time, also before it hears that the producer ends. What it finds is whole: each batch has
the rows that were reserved in it, of all callers, and nobody writes into it any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.accumulator.slice_layout import Reservation, SliceLayout
from spark_kafka_sink.producer.accumulator.slice_writer import SliceWriter
from spark_kafka_sink.producer.topic_rows import TopicRows
from tests.interrupts import Interrupts, MemoryErrors, places_of
from tests.producer.harness import TOPIC, Accumulation, cluster, columns, payload

ONE_NODE = cluster({TOPIC: (0, 0, 0)})
OTHER = b"of another caller"


class AppendCase(NamedTuple):
    values: Sequence[bytes]
    options: dict[str, object]

    def rows(self) -> TopicRows:
        """In partitions 0 and 1 by turns."""
        numbers = np.arange(len(self.values), dtype=np.int32)
        return TopicRows(TOPIC, columns(self.values), numbers % 2, numbers)


CASES = {
    "copied rows": AppendCase([b"one", b"two", b"three"], {"batch_size": 4096}),
    "full batches": AppendCase([bytes([number]) * 150 for number in range(14)], {"batch_size": 1024, "compression_type": "zstd"}),
    "segments": AppendCase([b"x" * 20_000] * 6, {"batch_size": 200_000, "compression_type": "lz4"}),
    "waits for memory": AppendCase([b"y" * 300] * 12, {"batch_size": 1024, "buffer_memory": 3 * 1024}),
}


class Look:
    """One append, with a batch of another caller that it adds to, and a Sender that works whenever it is woken."""

    def __init__(self, case: AppendCase, interrupts: Interrupts) -> None:
        self.stage = Accumulation(max_block_ms=5, **case.options)
        self.other = self.stage.append(OTHER, partition=0)
        self.sent_values: list[bytes | None] = []
        self.stage.on_wake = self._undisturbed
        self.callback = Delivery(len(case.values), self.stage.clock)
        rows = case.rows()
        self.interrupts = interrupts
        self.raised: BaseException | None = None
        try:
            with interrupts:
                self.stage.append_rows(rows, self.callback)
        except (KeyboardInterrupt, MemoryError, KafkaError, RuntimeError) as error:
            self.raised = error
        self.stage.accumulator.close()
        self.work()

    def _undisturbed(self) -> None:
        profile, trace = sys.getprofile(), sys.gettrace()
        sys.setprofile(None)
        sys.settrace(None)
        try:
            self.work()
        finally:
            sys.setprofile(profile)
            sys.settrace(trace)

    def work(self) -> None:
        """What the Sender does in some rounds."""
        while True:
            for batch in self.stage.accumulator.take_expired(self.stage.now_ms):
                assert batch.poison is not None
                batch.fail(batch.poison)
                self.stage.accumulator.deallocate(batch)
            batches = self.stage.drain(ONE_NODE, 0)[0]
            if not batches:
                return
            for batch in batches:
                values = payload(batch)
                assert len(values) == batch.record_count == sum(batch_rows.row_count for batch_rows in batch.rows_by_call)
                self.sent_values += values
                self.stage.give_back(batch)


def looks(case: AppendCase, kind: Callable[..., Interrupts], times: int = 1) -> Iterable[Look]:
    """One for each place: there, and at the next `times` - 1 points."""
    Look(case, kind())  # imports what it needs
    whole = Look(case, kind())
    assert whole.raised is None
    assert sorted(whole.sent_values) == sorted([OTHER, *case.values])
    for point in places_of(whole.interrupts):
        yield Look(case, kind(*range(point, point + times)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wherever_an_interrupt_comes_every_batch_is_whole(case: AppendCase) -> None:
    """Rows of the call counted in a batch that was not reserved yet: it was sent half written, with rows of another caller."""
    for look in looks(case, Interrupts):
        assert isinstance(look.raised, KeyboardInterrupt), look.interrupts.where
        assert look.sent_values.count(OTHER) <= 1


def has_begun(look: Look) -> bool:
    """Whether memory ended within the append."""
    append = f"producer/accumulator/record_accumulator.py:{RecordAccumulator.append.__code__.co_firstlineno} call"
    return look.interrupts.where[0] != append and not look.interrupts.where[0].startswith("producer/hand_overs.py")


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wherever_memory_ends_each_row_is_settled_or_the_producer_ends(
    case: AppendCase, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch stayed reserved by nobody: the rows of another caller in it were never sent, and never expired."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # in generators that are being closed
    survived = 0
    for look in looks(case, MemoryErrors, times):
        if look.stage.hand_overs.failure() is not None:
            continue
        survived += 1
        assert look.other.done(), look.interrupts.where
        settled = look.callback.acknowledged + look.callback.failed
        assert settled == look.callback.rows or (settled == 0 and not has_begun(look)), look.interrupts.where
        assert not look.stage.accumulator.incomplete, look.interrupts.where
        assert look.stage.is_whole, look.interrupts.where
    assert survived > 3


def test_an_interrupt_is_not_replaced_by_an_error_of_the_work_that_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that had room were encoded nevertheless. When that raised, Ctrl-C was not heard, and the producer went on half."""
    reserve = SliceLayout.reserve

    def interrupted(layout: SliceLayout, into: list[Reservation]) -> None:
        reserve(layout, into)
        raise KeyboardInterrupt

    monkeypatch.setattr(SliceLayout, "reserve", interrupted)
    monkeypatch.setattr(SliceWriter, "write", Mock(side_effect=MemoryError))
    stage = Accumulation()
    with pytest.raises(KeyboardInterrupt):
        stage.append(b"value")
    assert stage.hand_overs.failure() is not None


def test_cleaning_up_that_fails_is_not_said_to_lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error there was called the end of memory, which is what users then looked for."""
    monkeypatch.setattr(SliceWriter, "write", Mock(side_effect=KafkaError("first")))
    monkeypatch.setattr(SliceWriter, "poison_batches", Mock(side_effect=KafkaError("second")))
    stage = Accumulation()
    with pytest.raises(RuntimeError, match="an error came while rows were handed over"):
        stage.append(b"value")
    assert "memory" not in str(stage.hand_overs.failure())
