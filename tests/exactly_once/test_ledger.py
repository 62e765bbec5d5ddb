"""exactly_once/ledger.py over offsets in a dictionary: what stands in which group, what is read back, and where limits lie."""

from __future__ import annotations

import logging
import re
import struct
import zlib
from base64 import b85encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.question import Question
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once import ledger_records as module
from spark_kafka_sink.exactly_once.ledger import Ledger, LedgerView
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_EARLIER_VERSIONS,
    MAX_METADATA_BYTES,
    MAX_NUMBER,
    MAX_OVERFLOW_GROUPS,
    MAX_SCHEMA_ID,
    MAX_TASKS,
    Decision,
    DecisionState,
    EarlierVersion,
    LedgerError,
    Marker,
    is_in_kafka,
    marker_text,
)
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.writes import CommitFailedError, Content, DriverTime, SchemaIds, TaskTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

PLACE = TopicPartition("t", 0)
LARGEST = 2**64 - 1  # of a fingerprint


T = TypeVar("T")


class Groups:
    """Takes the place of a TransactionClient: the offsets of partition 0 of t, by group. Remembers what was asked together."""

    def __init__(self) -> None:
        self.offsets: dict[str, CommittedOffset] = {}
        self.fetches: list[set[str]] = []

    def ask(self, question: Question[T]) -> T:
        return question.read([])

    def fetch_offsets_question(
        self, places_by_group: Mapping[str, Iterable[TopicPartition]], *, require_stable: bool
    ) -> Question[dict[str, dict[TopicPartition, CommittedOffset]]]:
        assert not require_stable
        assert all(list(places) == [PLACE] for places in places_by_group.values())
        return Question((), lambda _: self._fetch(places_by_group))

    def _fetch(self, group_names: Iterable[str]) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        self.fetches.append(set(group_names))
        return {group: {PLACE: self.offsets[group]} if group in self.offsets else {} for group in group_names}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        assert list(offsets) == [PLACE]
        self.offsets[group] = CommittedOffset(*offsets[PLACE])

    def commit_offsets_question(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> Question[None]:
        return Question((), lambda _: self.commit_offsets(group, offsets))

    def put(self, group: str, offset: int, metadata: str) -> None:
        self.offsets[group] = CommittedOffset(offset, metadata)


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.fixture
def ledger(groups: Groups) -> Ledger:
    return ledger_over(groups)


def ledger_over(groups: Groups) -> Ledger:
    return Ledger(cast("TransactionClient", groups), PrefixNames("P"), "q", "t")


def entry(partition: int, **fields: int) -> TaskTransaction:
    return TaskTransaction(partition, 0, 1, 0, 2, Content(1, 0))._replace(**fields)


def many(entries: int) -> tuple[TaskTransaction, ...]:
    """More than one record can hold, from some hundreds on."""
    return tuple(
        TaskTransaction(each, each % 3, each * 7919, each % 100, 2, Content(each, each * 2**43 + 7919**4))
        for each in range(entries)
    )


DECIDED = Decision(
    7, DecisionState.DECIDED, 2, 4, Content(3, 0xC0FFEE), (entry(0), entry(1)), (EarlierVersion(5, Content(2, 1)),)
)
CARRIED_OUT = "carried-out tasks=1 partitions=1 rows=1 fingerprint=00"


# DECISIONS


def test_a_decision_is_one_record_which_brokers_keep_under_these_names(ledger: Ledger, groups: Groups) -> None:
    """Another release reads it. How entries are compressed is zlib's."""
    text = "tasks=2 partitions=4 rows=3 fingerprint=0000000000c0ffee earlier=1poj5000000ssI2000000RR9100000"
    ledger.write_decision(DECIDED.with_state(DecisionState.CARRIED_OUT))
    assert list(groups.offsets) == ["P-q-decision"]
    offset, metadata = groups.offsets["P-q-decision"]
    assert (offset, metadata.partition(" entries=")[0]) == (7, f"carried-out {text}")
    ledger.write_decision(DECIDED)
    assert list(groups.offsets) == ["P-q-decision"]
    assert groups.offsets["P-q-decision"].metadata.startswith(f"decided {text} entries=")
    assert ledger.fetch_decision() == DECIDED
    ledger.write_decision(replace(DECIDED, earlier=()))
    assert "earlier" not in groups.offsets["P-q-decision"].metadata


def test_a_decision_names_the_schemas_that_its_rows_are_encoded_with(ledger: Ledger, groups: Groups) -> None:
    """Another release reads it; one that knows no schemas calls it unreadable, and writes nothing."""
    content = Content(3, 0xC0FFEE, SchemaIds(value=12))
    earlier = (EarlierVersion(5, Content(2, 1, SchemaIds(1, MAX_SCHEMA_ID))), EarlierVersion(6, Content(2, 1)))
    ledger.write_decision(replace(DECIDED.with_state(DecisionState.CARRIED_OUT), content=content, earlier=earlier))
    packed = b85encode(struct.pack("<iiii", 1, MAX_SCHEMA_ID, -1, -1)).decode()
    metadata = groups.offsets["P-q-decision"].metadata
    assert " rows=3 fingerprint=0000000000c0ffee value_schema=12 earlier=" in metadata
    assert metadata.partition(" entries=")[0].endswith(f" earlier_schemas={packed}")
    decision = ledger.fetch_decision()
    assert decision is not None
    assert (decision.content, decision.earlier) == (content, earlier)
    assert (decision.content_of(5), decision.content_of(6)) == (earlier[0].content, earlier[1].content)


def test_the_schemas_of_ten_versions_fit_beside_their_contents(ledger: Ledger, groups: Groups) -> None:
    most = Content(MAX_NUMBER, LARGEST, SchemaIds(MAX_SCHEMA_ID, MAX_SCHEMA_ID))
    earlier = tuple(EarlierVersion(MAX_NUMBER - 1 - number, most) for number in range(MAX_EARLIER_VERSIONS))
    ledger.write_decision(Decision(MAX_NUMBER, DecisionState.DECIDED, MAX_TASKS, 2**20, most, many(100), earlier))
    assert list(groups.offsets) == ["P-q-decision"]
    assert len(groups.offsets["P-q-decision"].metadata) <= MAX_METADATA_BYTES


@pytest.mark.parametrize(
    "words",
    [
        f"value_schema={MAX_SCHEMA_ID + 1}",
        "value_schema=-1",
        "key_schema=",
        "schema=7",
        f"earlier={b85encode(bytes(24)).decode()} earlier_schemas={b85encode(bytes(16)).decode()}",
        f"earlier={b85encode(bytes(24)).decode()} earlier_schemas={b85encode(bytes(7)).decode()}",
        f"earlier={b85encode(bytes(24)).decode()} earlier_schemas={b85encode(struct.pack('<ii', 1, -2)).decode()}",
        f"earlier_schemas={b85encode(bytes(8)).decode()}",
    ],
    ids=["large", "negative", "empty", "unknown", "too many", "cut", "no id", "of no version"],
)
def test_schemas_that_cannot_be_read_are_an_error(ledger: Ledger, groups: Groups, words: str) -> None:
    groups.put("P-q-decision", 7, f"{CARRIED_OUT} {words}")
    with pytest.raises(LedgerError, match="group P-q-decision has metadata that cannot be read: 'carried-out "):
        ledger.fetch_decision()


def test_where_nothing_is_decided_there_is_no_decision(ledger: Ledger) -> None:
    assert ledger.fetch_decision() is None


schema_ids = st.builds(SchemaIds, *[st.none() | st.integers(0, MAX_SCHEMA_ID)] * 2)
contents = st.builds(Content, st.integers(0, MAX_NUMBER), st.integers(0, LARGEST), schema_ids)
versions = st.integers(0, MAX_NUMBER)
entries = st.builds(
    TaskTransaction,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, MAX_NUMBER),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2),
    contents,
)


@given(
    st.builds(
        Decision,
        versions,
        st.just(DecisionState.DECIDED),
        st.integers(20, MAX_TASKS),
        st.integers(1, 2**20),
        contents,
        st.lists(entries, max_size=20, unique_by=lambda each: each.partition).map(tuple),
        st.lists(st.builds(EarlierVersion, versions, contents), max_size=MAX_EARLIER_VERSIONS).map(tuple),
    )
)
def test_a_decision_is_read_back_as_it_was_written(decision: Decision) -> None:
    schemas = decision.content.schemas  # all entries of a decision have them
    entries = tuple(each._replace(content=each.content._replace(schemas=schemas)) for each in decision.entries)
    decision = replace(decision, entries=entries)
    ledger = ledger_over(Groups())
    ledger.write_decision(decision)
    assert ledger.fetch_decision() == decision
    for state in (DecisionState.CARRIED_OUT, DecisionState.INCOMPLETE):
        ledger.write_decision(decision.with_state(state))
        assert ledger.fetch_decision() == replace(decision, state=state, entries=())


def test_what_is_too_long_for_a_record_stands_in_groups_by_turns(ledger: Ledger, groups: Groups) -> None:
    """A driver that dies before its decision has harmed no overflow group of the decision before."""
    for version in (4, 5, 6):
        decision = Decision(version, DecisionState.DECIDED, 1000, 1024, Content(5, 6), many(1000 - version))
        ledger.write_decision(decision)
        assert ledger.fetch_decision() == decision
        chunks = {group: each for group, each in groups.offsets.items() if group.endswith("-overflow") and each.offset == version}
        assert len(chunks) > 2
        assert list(chunks) == [f"P-q-{number}-overflow" for number in range(version % 2, 2 * len(chunks), 2)]
        *full, last = (len(each.metadata) for each in chunks.values())
        assert set(full) == {MAX_METADATA_BYTES}
        assert 0 < last <= MAX_METADATA_BYTES
        assert re.search(rf" overflow={len(chunks)} digest=[0-9a-f]{{16}}$", groups.offsets["P-q-decision"].metadata)
    assert {each.offset for each in groups.offsets.values()} == {5, 6}


def test_no_record_is_longer_than_brokers_take_and_chunks_come_as_late_as_they_can(ledger: Ledger, groups: Groups) -> None:
    most = 0
    for number in range(100, 400, 4):
        groups.offsets.clear()
        decision = Decision(MAX_NUMBER, DecisionState.DECIDED, number, number, Content(5, 6), many(number))
        ledger.write_decision(decision)
        assert all(len(each.metadata) <= MAX_METADATA_BYTES for each in groups.offsets.values())
        if len(groups.offsets) == 1:
            most = max(most, len(groups.offsets["P-q-decision"].metadata))
        assert ledger.fetch_decision() == decision
    assert len(groups.offsets) > 1
    assert MAX_METADATA_BYTES - 100 < most <= MAX_METADATA_BYTES


def test_a_decision_without_its_overflow_groups_is_incomplete_and_warned_of(
    ledger: Ledger, groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    decision = Decision(4, DecisionState.DECIDED, 1000, 1024, Content(5, 6), many(1000), DECIDED.earlier)
    ledger.write_decision(decision)
    del groups.offsets["P-q-2-overflow"]
    with caplog.at_level(logging.WARNING):
        assert ledger.fetch_decision() == decision.with_state(DecisionState.INCOMPLETE)
    assert "the transactions that version 4 decided to commit are not listed any more" in caplog.text


def test_the_overflow_is_that_of_the_decision_or_none(ledger: Ledger, groups: Groups) -> None:
    ledger.write_decision(Decision(4, DecisionState.DECIDED, 1000, 1024, Content(5, 6), many(1000)))
    first = groups.offsets["P-q-0-overflow"]
    groups.put("P-q-0-overflow", 4, ("a" if first.metadata[0] != "a" else "b") + first.metadata[1:])
    decision = ledger.fetch_decision()
    assert decision is not None
    assert decision.state is DecisionState.INCOMPLETE


@pytest.mark.parametrize("count", [0, MAX_OVERFLOW_GROUPS])
def test_so_many_overflow_groups_are_read_and_one_more_is_an_error(ledger: Ledger, groups: Groups, count: int) -> None:
    text = "decided tasks=1 partitions=1 rows=1 fingerprint=00"
    groups.put("P-q-decision", 0, f"{text} overflow={count} digest=0")
    decision = ledger.fetch_decision()
    assert decision is not None
    assert decision.state is DecisionState.INCOMPLETE
    groups.put("P-q-decision", 0, f"{text} overflow={MAX_OVERFLOW_GROUPS + 1} digest=0")
    with pytest.raises(
        LedgerError, match=f"group P-q-decision has metadata that cannot be read: 'overflow={MAX_OVERFLOW_GROUPS + 1}'"
    ):
        ledger.fetch_decision()


NUMBERS: dict[str, tuple[int, Callable[[Decision], int]]] = {  # the word in the metadata: the largest, and where it is read to
    "tasks": (MAX_TASKS, lambda decision: decision.task_count),
    "partitions": (2**20, lambda decision: decision.max_partition_count),
    "rows": (MAX_NUMBER, lambda decision: decision.content.rows),
    "fingerprint": (LARGEST, lambda decision: decision.content.fingerprint),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_largest_number_of_a_decision_is_read_and_the_next_is_an_error(ledger: Ledger, groups: Groups, name: str) -> None:
    most, number_of = NUMBERS[name]

    def text(number: int) -> str:
        shown = f"{number:x}" if name == "fingerprint" else str(number)
        return " ".join(f"{name}={shown}" if word.startswith(name) else word for word in CARRIED_OUT.split())

    groups.put("P-q-decision", MAX_NUMBER, text(most))
    decision = ledger.fetch_decision()
    assert decision is not None
    assert (decision.version, number_of(decision)) == (MAX_NUMBER, most)
    groups.put("P-q-decision", 0, text(most + 1))
    with pytest.raises(LedgerError, match="group P-q-decision has metadata that cannot be read: 'carried-out "):
        ledger.fetch_decision()


def test_a_write_may_have_as_many_tasks_and_no_more(ledger: Ledger, groups: Groups) -> None:
    most = replace(DECIDED, task_count=MAX_TASKS)
    ledger.write_decision(most)
    assert ledger.fetch_decision() == most
    groups.offsets.clear()
    with pytest.raises(CommitFailedError, match=r"at most 1,000,000 Spark partitions, and this one has 1,000,001\. Nothing was"):
        ledger.write_decision(replace(DECIDED, task_count=MAX_TASKS + 1))
    assert groups.offsets == {}


def test_a_decision_lists_as_many_transactions_as_it_has_tasks_and_no_more(ledger: Ledger) -> None:
    ledger.write_decision(replace(DECIDED, task_count=2))
    ledger.fetch_decision()
    ledger.write_decision(replace(DECIDED, task_count=1))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


def test_as_many_earlier_versions_are_read_and_one_more_is_an_error(ledger: Ledger) -> None:
    earlier = tuple(EarlierVersion(version, Content(1, version)) for version in range(MAX_EARLIER_VERSIONS + 1))
    most = replace(DECIDED, earlier=earlier[1:])
    ledger.write_decision(most)
    assert ledger.fetch_decision() == most
    ledger.write_decision(replace(DECIDED, earlier=earlier))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


def packed_bytes(entries: int) -> bytes:
    """The fields of so many transactions, as a decision holds them: one array after the other."""
    rows = [(each, 0, 1, 0, 2, 1, 0) for each in range(entries)]
    columns = zip("IIqhBQQ", zip(*rows, strict=True), strict=True)
    return b"".join(struct.pack(f"<{entries}{code}", *column) for code, column in columns)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda packed: zlib.compress(packed[:-1]),
        lambda packed: zlib.compress(packed + b"0"),
        lambda packed: zlib.compress(packed)[:-1],  # all bytes are there, their checksum is not
        lambda packed: zlib.compress(packed) + b"0",
        lambda packed: packed,
        lambda packed: zlib.compress(bytes(len(packed))),  # partition 0 twice
    ],
    ids=["shorter", "longer", "cut", "and more", "not compressed", "twice"],
)
def test_entries_that_are_not_what_was_written_are_an_error(
    ledger: Ledger, groups: Groups, damaged: Callable[[bytes], bytes]
) -> None:
    def put(compressed: bytes) -> None:
        entries = b85encode(struct.pack("<I", 2) + compressed).decode()
        groups.put("P-q-decision", 7, f"decided tasks=2 partitions=2 rows=1 fingerprint=00 entries={entries}")

    put(zlib.compress(packed_bytes(2)))
    decision = ledger.fetch_decision()
    assert decision is not None
    assert decision.entries == (entry(0), entry(1))
    put(damaged(packed_bytes(2)))
    with pytest.raises(LedgerError, match="group P-q-decision has metadata that cannot be read: '"):
        ledger.fetch_decision()


def test_more_than_all_chunks_hold_is_not_even_unpacked(ledger: Ledger, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OVERFLOW_GROUPS", 2)
    ledger.write_decision(DECIDED)
    text, _, packed = groups.offsets["P-q-decision"].metadata.partition(" entries=")
    groups.put("P-q-decision", 7, f"{text} entries={packed.ljust(2 * MAX_METADATA_BYTES + 1, ' ')}")
    assert ledger.fetch_decision() == DECIDED  # what stands behind a blank is another word
    groups.put("P-q-decision", 7, f"{text} entries={packed.ljust(2 * MAX_METADATA_BYTES + 1, '0')}")
    with monkeypatch.context() as within:
        within.setattr(module, "b85decode", lambda _: pytest.fail("it was decoded"))
        within.setattr(module, "_unpack_earlier", lambda *_: ())
        with pytest.raises(LedgerError, match="metadata that cannot be read"):
            ledger.fetch_decision()


# WHAT A DECISION SAYS


@pytest.mark.parametrize(
    ("state", "reached"),
    [
        (DecisionState.DECIDED, [True, True, False]),
        (DecisionState.CARRIED_OUT, [True, True, False]),
        (DecisionState.INCOMPLETE, [True, False, False]),
    ],
)
def test_a_version_is_reached_when_it_or_a_later_one_is_decided(state: DecisionState, reached: list[bool]) -> None:
    decision = replace(DECIDED, state=state)
    assert [decision.reaches(version) for version in (6, 7, 8)] == reached


def test_the_content_of_this_version_and_of_the_last_ones_is_known() -> None:
    assert [DECIDED.content_of(version) for version in (7, 5, 6, 8)] == [DECIDED.content, Content(2, 1), None, None]


def test_a_decision_remembers_the_versions_before_it() -> None:
    earlier = (*DECIDED.earlier, EarlierVersion(7, DECIDED.content))
    assert DECIDED.earlier_for(7) == DECIDED.earlier
    assert DECIDED.earlier_for(8) == earlier
    assert DECIDED.with_state(DecisionState.INCOMPLETE).earlier_for(8) == DECIDED.earlier  # it is not in Kafka as a whole
    full = replace(DECIDED, earlier=tuple(EarlierVersion(version, Content()) for version in range(MAX_EARLIER_VERSIONS)))
    assert full.earlier_for(8) == (*full.earlier[1:], earlier[-1])


# MARKERS


def test_a_marker_has_this_text() -> None:
    assert marker_text(Content(3, 0xC0FFEE)) == "rows=3 fingerprint=0000000000c0ffee"
    with_schemas = Content(3, 0xC0FFEE, SchemaIds(7, 12))
    assert marker_text(with_schemas) == "rows=3 fingerprint=0000000000c0ffee key_schema=7 value_schema=12"


def test_markers_are_read_together_by_partition(ledger: Ledger, groups: Groups) -> None:
    groups.put("P-q-1-marker", 7, marker_text(Content(3, LARGEST)))
    groups.put("P-q-2-marker", MAX_NUMBER, marker_text(Content(MAX_NUMBER, 0, SchemaIds(key=0))))
    markers = {1: Marker(7, Content(3, LARGEST)), 2: Marker(MAX_NUMBER, Content(MAX_NUMBER, 0, SchemaIds(key=0)))}
    assert ledger.fetch_markers(range(3)) == markers
    assert groups.fetches == [{"P-q-0-marker", "P-q-1-marker", "P-q-2-marker"}]
    assert (ledger.fetch_marker(1), ledger.fetch_marker(0)) == (markers[1], None)
    assert ledger.fetch_markers([]) == {}
    assert len(groups.fetches) == 3  # nobody is asked about nothing


def test_a_marker_that_cannot_be_read_is_an_error_that_names_its_group(ledger: Ledger, groups: Groups) -> None:
    for metadata in ("", "rows=1", "fingerprint=00", "rows=1 fingerprint=0G", "rows= fingerprint=0"):
        groups.put("P-q-1-marker", 7, metadata)
        with pytest.raises(LedgerError, match="group P-q-1-marker has metadata that cannot be read") as raised:
            ledger.fetch_markers([1])
        assert repr(metadata) in str(raised.value)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (None, False),
        (Marker(6, Content(1, 0)), False),
        (Marker(7, Content(1, 0)), True),
        (Marker(7, Content(1, 1)), False),
        (Marker(8, Content(9, 9)), True),
    ],
)
def test_rows_are_in_kafka_by_the_marker_of_their_version_or_of_a_later_one(marker: Marker | None, expected: bool) -> None:
    assert is_in_kafka(marker, 7, entry(0)) is expected


def test_the_markers_of_all_partitions_on_record_are_read_in_two_steps(ledger: Ledger, groups: Groups) -> None:
    for partition in range(5):
        groups.put(f"P-q-{partition}-marker", 7, marker_text(Content(partition, 0)))
    assert ledger.client.ask(ledger.all_markers_question(2))[1] == 0
    ledger.record_partition_count(5)
    assert groups.offsets["P-q-3-width"] == (8, "")
    groups.fetches.clear()
    markers, recorded = ledger.client.ask(ledger.all_markers_question(2))
    assert ({partition: each.content.rows for partition, each in markers.items()}, recorded) == (
        {each: each for each in range(5)},
        8,
    )
    first, second = groups.fetches
    assert first == {f"P-q-{number}-width" for number in range(21)} | {"P-q-0-marker", "P-q-1-marker"}
    assert second == {f"P-q-{number}-marker" for number in range(2, 8)}


@pytest.mark.parametrize(("partitions", "width"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (MAX_TASKS, 2**20)])
def test_widths_are_powers_of_two_each_in_a_group_of_its_own(ledger: Ledger, groups: Groups, partitions: int, width: int) -> None:
    ledger.record_partition_count(partitions)
    ledger.record_partition_count(1)
    assert {offset for offset, _ in groups.offsets.values()} == {1, width}
    assert set(groups.offsets) == {"P-q-0-width", f"P-q-{width.bit_length() - 1}-width"}


# WHAT A TASK SEES


def test_a_task_asks_once_for_all_that_it_has_to_know(ledger: Ledger, groups: Groups) -> None:
    assert ledger.fetch_view(DriverTime("host", 100), 1) == LedgerView(None, False, None)
    assert groups.fetches == [{"P-q-decision", "P-aborted", "P-q-1-marker"}]
    ledger.write_decision(DECIDED)
    groups.put("P-q-1-marker", 7, marker_text(Content(3, 4)))
    groups.put("P-q-0-marker", 9, marker_text(Content(9, 9)))
    ledger.record_abort(DriverTime("host", 101))
    assert groups.offsets["P-aborted"] == (101, "host")
    assert ledger.fetch_view(DriverTime("host", 100), 1) == LedgerView(DECIDED, True, Marker(7, Content(3, 4)))


def test_what_a_task_cannot_read_is_an_error_that_names_the_group(ledger: Ledger, groups: Groups) -> None:
    groups.put("P-q-1-marker", 7, "")
    with pytest.raises(LedgerError, match="group P-q-1-marker has metadata that cannot be read"):
        ledger.fetch_view(DriverTime("host", 100), 1)
    with pytest.raises(LedgerError, match="group P-q-1-marker has metadata that cannot be read"):
        ledger.client.ask(ledger.all_markers_question(2))


@pytest.mark.parametrize(
    ("planned_at", "is_aborted"),
    [(DriverTime("host", 100), True), (DriverTime("host", 101), False), (DriverTime("other", 100), False)],
)
def test_what_was_planned_before_on_this_machine_is_aborted(ledger: Ledger, planned_at: DriverTime, is_aborted: bool) -> None:
    ledger.record_abort(DriverTime("host", 101))
    assert ledger.fetch_view(planned_at, 0).is_aborted is is_aborted
