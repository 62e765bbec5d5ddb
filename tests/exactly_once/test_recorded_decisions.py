"""Decisions and markers in the groups of the fake broker: they are read back whole, or not at all."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
import zlib
from base64 import b85encode

import pytest

from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_EARLIER_VERSIONS,
    Decision,
    DecisionState,
    EarlierVersion,
    LedgerError,
)
from spark_kafka_sink.exactly_once.writes import CommitFailedError, Content, DriverTime, TaskTransaction
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.exactly_once.runs import TOPIC, Runs
from tests.fakes.fake_broker import FakeBroker

# WHAT IS READ BACK


def test_a_decision_too_long_for_one_record_is_read_back_whole(run: Runs) -> None:
    first = run("r1")
    entries = tuple(TaskTransaction(each, 0, each * 7, 3, 2, Content(each, 2**64 - 1 - each)) for each in range(1000))
    earlier = tuple(EarlierVersion(each, Content(each, 2**64 - 1)) for each in range(MAX_EARLIER_VERSIONS))
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    for version in range(3):
        decision = Decision(version, DecisionState.DECIDED, 1000, 1024, Content(5, 6), entries[version:], earlier)
        ledger.write_decision(decision)
        assert ledger.fetch_decision() == decision


def test_a_decision_whose_overflow_was_overwritten_counts_as_not_carried_out(run: Runs) -> None:
    """A later version overwrote it: its driver died before its own decision. To fail here was to fail for ever."""
    first = run("r1")
    entries = tuple(TaskTransaction(each, 0, each * 7, 3, 2, Content(each, 2**64 - 1 - each)) for each in range(1000))
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    ledger.write_decision(Decision(2, DecisionState.DECIDED, 1000, 1000, Content(5, 6), entries))
    first.client.commit_offsets(first.names.overflow_group("q", 0), {ledger.marker_partition: (4, "of version 4")})
    decision = ledger.fetch_decision()
    assert decision is not None
    assert (decision.version, decision.state, decision.entries) == (2, DecisionState.INCOMPLETE, ())
    assert ledger.fetch_view(DriverTime("host", 0), 0) == (decision, False, None)


def test_a_decision_that_nobody_could_read_is_not_written(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    with pytest.raises(CommitFailedError, match=r"at most 1,000,000 Spark partitions, and this one has 1,000,001"):
        ledger.write_decision(Decision(0, DecisionState.DECIDED, 1_000_001, 1, Content(1, 0)))
    assert not broker.requests_of(ApiKey.OFFSET_COMMIT)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 64, 65])
def test_as_many_partitions_are_on_record_as_there_were_and_never_fewer(run: Runs, partitions: int) -> None:
    ledger = Ledger(run("r1").client, run("r1").names, "q", TOPIC)
    ledger.record_partition_count(partitions)
    ledger.record_partition_count(1)
    _, recorded = ledger.client.ask(ledger.all_markers_question(1))
    assert partitions <= recorded < 2 * partitions or partitions == recorded == 1


# WHAT CANNOT BE READ


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "decided",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 overflow=x digest=0",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 overflow=99999999999 digest=0",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 entries=abc",
        "postponed tasks=1 partitions=1 rows=1 fingerprint=00 entries=0",
        "decided tasks=1 partitions=1 rows=many fingerprint=00 entries=0",
    ],
)
def test_a_decision_that_cannot_be_read_is_an_error_and_never_none(run: Runs, metadata: str) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


def test_a_decision_that_lists_a_partition_twice_cannot_be_read(run: Runs) -> None:
    """Such a decision ended in a ValueError, which no abort() and no tool expected."""
    ledger = Ledger(run("r1").client, run("r1").names, "q", TOPIC)
    entry = TaskTransaction(0, 0, 1, 0, 2, Content(1, 0))
    ledger.write_decision(Decision(0, DecisionState.DECIDED, 2, 2, Content(2, 0), (entry, entry)))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


DECIDED = "decided tasks=1 partitions=1 rows=1 fingerprint=00"
CARRIED_OUT = DECIDED.replace("decided", "carried-out")


@pytest.mark.parametrize("number", ["-7", "9" * 19, "9" * 4000, "1_0", "+1", "\u0661"])
@pytest.mark.parametrize("word", ["tasks={}", "partitions={}", "rows={}"])
def test_a_number_of_a_decision_beyond_its_limit_is_an_error(run: Runs, word: str, number: str) -> None:
    """`partitions=1000000000000` was accepted, and commit() made a set of as many numbers; so were -7 and 4,000 digits."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    metadata = f"{CARRIED_OUT} {word.format(number)}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


@pytest.mark.parametrize("metadata", ["rows=-7 fingerprint=00", "rows=1 fingerprint=-1", "rows=1 fingerprint=" + "f" * 17])
def test_a_number_of_a_marker_beyond_its_limit_is_an_error(run: Runs, metadata: str) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    first.client.commit_offsets(first.names.marker_group("q", 0), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_markers([0])


def test_a_negative_version_is_an_error(run: Runs) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    for group, metadata in [
        (first.names.decision_group("q"), CARRIED_OUT),
        (first.names.marker_group("q", 0), "rows=1 fingerprint=00"),
    ]:
        first.client.commit_offsets(group, {ledger.marker_partition: (-7, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_markers([0])


@pytest.mark.parametrize(
    "entry", [TaskTransaction(0, 0, -1, 0, 2, Content(1, 0)), TaskTransaction(0, 0, 1, -1, 2, Content(1, 0))]
)
def test_a_negative_number_of_an_entry_is_an_error(run: Runs, entry: TaskTransaction) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    ledger.write_decision(Decision(0, DecisionState.DECIDED, 1, 1, Content(1, 0), (entry,)))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


@pytest.mark.parametrize(("rows", "follows"), [(1, 1), (0, 1), (1, 50_000_000), (2, 0), (2**32 - 1, 0)])
def test_entries_inflate_to_their_size_and_to_no_more_than_the_tasks_of_the_write(run: Runs, rows: int, follows: int) -> None:
    """5 MB in a decision's overflow groups inflated to 4 GB: the driver used 8 GB of memory for a minute, and accepted them."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    size = 35 * min(rows, 2) + follows
    packed = b85encode(struct.pack("<I", rows) + zlib.compress(bytes(size), 9)).decode()
    digest = hashlib.sha256(packed.encode()).hexdigest()[:16]
    chunks = [packed[start : start + 4000] for start in range(0, len(packed), 4000)]
    for number, chunk in enumerate(chunks):
        first.client.commit_offsets(first.names.overflow_group("q", 2 * number), {ledger.marker_partition: (0, chunk)})
    metadata = f"{DECIDED} overflow={len(chunks)} digest={digest}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    tracemalloc.start()
    try:
        with pytest.raises(LedgerError, match="metadata that cannot be read"):
            ledger.fetch_decision()
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("word", ["run=1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed", "run=", "unknown"])
def test_a_decision_with_a_word_that_this_package_does_not_know_is_an_error(run: Runs, word: str) -> None:
    """The word may say which transactions are meant."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    metadata = f"{CARRIED_OUT} {word}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()
