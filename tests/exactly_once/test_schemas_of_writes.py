"""A version keeps the schemas that its first run has encoded it with, whatever later plans find, against the fake broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, CommitFailedError, ReplayError, SchemaIds
from tests.exactly_once.runs import Runs, open_transactions, partly_committed, visible_rows
from tests.fakes.fake_broker import FakeBroker

FIRST, NEWER = SchemaIds(value=1), SchemaIds(value=2)


def test_rows_are_encoded_with_the_schemas_of_the_plan_where_nothing_is_known(run: Runs) -> None:
    task = run("r1", schemas=NEWER).task(0, 0, "a").begin()
    assert task.attempt.schemas == NEWER
    assert task.send().finish().content.schemas == NEWER


@pytest.mark.parametrize("newer", [NEWER, SchemaIds(7, 1), SchemaIds()], ids=["id", "key", "none"])
def test_a_committed_version_is_compared_as_it_was_encoded(broker: FakeBroker, run: Runs, newer: SchemaIds) -> None:
    """The tasks' plans have a newer schema. Encoded with it, the same rows would be other rows."""
    run("r1", schemas=FIRST).write_version(0, ["a"], ["b"], [])
    second = run("r2", schemas=newer)
    reports = second.reports(0, ["a"], ["b"], [])
    assert {each.content.schemas for each in reports} == {FIRST}
    assert second.commit(reports).how is HowCommitted.FOUND
    assert second.write_version(1, ["c"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c"]


def test_the_schemas_of_earlier_versions_are_known_too(run: Runs) -> None:
    for version, schemas in enumerate([FIRST, NEWER, SchemaIds(), SchemaIds(3, 4)]):
        run(f"r{version}", schemas=schemas).write_version(version, [f"{version}"])
    restored = run("restored", schemas=SchemaIds(9, 9))
    for version, schemas in enumerate([FIRST, NEWER, SchemaIds(), SchemaIds(3, 4)]):
        reports = restored.reports(version, [f"{version}"])
        assert [each.content.schemas for each in reports] == [schemas]
        assert restored.commit(reports).how in (HowCommitted.SUPERSEDED, HowCommitted.FOUND)


def test_the_error_of_other_rows_names_the_schemas_of_both(run: Runs) -> None:
    run("r1", schemas=FIRST).write_version(0, ["a"])
    both = r"1 rows with fingerprint \w+, encoded with value schema 1, and this write of version 0 has 1 rows .* value schema 1\."
    with pytest.raises(ReplayError, match=both):
        run("r2", schemas=NEWER).write_version(0, ["b"])


def test_the_missing_part_of_a_version_is_encoded_as_the_part_that_is_there(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1", schemas=FIRST))
    second = run("r2", schemas=NEWER)
    reports = second.reports(0, ["a"], ["b"])
    assert [(each.result, each.content.schemas) for each in reports] == [
        (AttemptResult.OPEN, FIRST),
        (AttemptResult.SKIPPED, FIRST),
    ]
    assert second.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert run("r3", schemas=SchemaIds(value=3)).write_version(0, ["a"], ["b"]).how is HowCommitted.FOUND


def test_what_is_decided_and_lost_is_written_again_as_it_was_encoded(broker: FakeBroker, run: Runs) -> None:
    first = run("r1", schemas=FIRST)
    lost_entry, _ = first.decide(first.reports(0, ["a"], ["b"])).entries
    first.client.fence([lost_entry.prepared_transaction(first.names, "q").transactional_id])
    reports = run("r2", schemas=NEWER).reports(0, ["a"], ["b"])
    assert [(each.result, each.content.schemas) for each in reports] == [
        (AttemptResult.OPEN, FIRST),
        (AttemptResult.DECIDED, FIRST),
    ]
    run("r3", schemas=NEWER).commit(reports)
    assert visible_rows(broker) == ["a", "b"]


def test_tasks_that_encode_differently_fail_the_version_and_the_next_run_ends_well(broker: FakeBroker, run: Runs) -> None:
    """Another run had recorded the version as incomplete after the first task of this one had begun."""
    late = run("r2", schemas=NEWER)
    reports = [late.task(0, 0, "a", attempt=1).run()]
    partly_committed(run("r1", schemas=FIRST))
    reports.append(late.task(0, 1, "b").run())
    assert [each.content.schemas for each in reports] == [NEWER, FIRST]
    with pytest.raises(CommitFailedError, match=r"different schemas \(value schema 1; value schema 2\)\. .* run the write again"):
        late.commit(reports)
    late.abort()
    assert visible_rows(broker) == ["b"]
    assert run("r3", schemas=NEWER).write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_where_the_decision_is_gone_the_next_run_learns_the_schema_of_the_markers(broker: FakeBroker, run: Runs) -> None:
    """Somebody has reset the group. Without this, no repetition would ever end well."""
    partly_committed(run("r1", schemas=FIRST))
    second = run("r2", schemas=NEWER)
    del broker.offsets.groups[second.names.decision_group("q")]
    with pytest.raises(CommitFailedError, match="different schemas"):
        second.write_version(0, ["a"], ["b"])
    second.abort()
    assert visible_rows(broker) == ["b"]
    assert run("r3", schemas=NEWER).write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


def test_a_run_that_was_overtaken_by_one_with_another_schema_can_be_repeated(broker: FakeBroker, run: Runs) -> None:
    """The overtaken run has the same rows, so that this is no replay with other rows."""
    zombie = run("r1", schemas=FIRST)
    reports = zombie.reports(0, ["a"], ["b"])
    run("r2", schemas=NEWER).write_version(0, ["a"], ["b"])
    with pytest.raises(CommitFailedError, match=r"value schema 2, and tasks that had not seen that .* run the write again"):
        zombie.commit(reports)
    zombie.abort()
    assert run("r3", schemas=FIRST).write_version(0, ["a"], ["b"]).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a", "b"]
