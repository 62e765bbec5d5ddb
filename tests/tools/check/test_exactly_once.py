"""Judges of what exactly-once needs, on answers that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_operations import ListedTransaction
from spark_kafka_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check.exactly_once import (
    CheckedPrefix,
    judge_control_records,
    judge_groups,
    judge_ids,
    judge_leftovers,
    judge_timeout,
)
from spark_kafka_sink.tools.check.results import Light

NAMES = PrefixNames("orders")
DENIED = AuthorizationError("Grant the user WRITE on the transactional id 'orders-check'.", error_code=53)
LATE = KafkaTimeoutError("no answer")
OLD = UnsupportedVersionError("the broker does not support it")
READ = frozenset({AclOperation.READ, AclOperation.DESCRIBE})


def prefix(**answers: Any) -> CheckedPrefix:
    return CheckedPrefix(**({"names": NAMES, "describe_error": None, "write_error": None, "group_permissions": READ} | answers))


def test_no_task_of_any_prefix_has_the_id_of_the_check() -> None:
    for name in ("orders", "orders-q", "orders-q-1", "a-0-0"):
        check_id = PrefixNames(name).check_id
        begins = [check_id[:end] for end in range(1, len(check_id))]
        assert not any(PrefixNames(each).parse(check_id) for each in begins)


@pytest.mark.parametrize(
    ("answers", "light", "says"),
    [
        ({}, Light.GREEN, "WRITE is granted"),
        ({"describe_error": DENIED}, Light.RED, "neither DESCRIBE nor WRITE"),
        ({"write_error": DENIED}, Light.RED, "no WRITE"),
        ({"describe_error": LATE, "write_error": LATE}, Light.RED, "the coordinator of orders-check does not answer"),
        ({"write_error": LATE}, Light.YELLOW, "not known; `--write` finds out"),
        ({"write_error": LATE, "has_written": True}, Light.GREEN, "WRITE is granted"),
        ({"describe_error": OLD}, Light.GREEN, "WRITE is granted"),
    ],
)
def test_permission_for_transactional_ids_is_judged(answers: dict[str, Any], light: Light, says: str) -> None:
    result = judge_ids(prefix(**answers))
    assert (result.light, says in result.finding) == (light, True)


@pytest.mark.parametrize(
    ("permissions", "light", "says"),
    [
        (READ, Light.GREEN, "READ is granted"),
        (frozenset({AclOperation.DESCRIBE}), Light.RED, "no READ"),
        (None, Light.YELLOW, "not known"),
        (OLD, Light.YELLOW, "not known"),
        (AuthorizationError("Grant the user READ on the group", error_code=30), Light.RED, "neither DESCRIBE nor READ"),
        (LATE, Light.RED, "the coordinator of group orders-aborted does not answer"),
    ],
)
def test_permission_for_groups_is_judged(permissions: Any, light: Light, says: str) -> None:
    result = judge_groups(prefix(group_permissions=permissions))
    assert (result.light, says in result.finding) == (light, True)


def test_the_permissions_to_grant_name_the_prefix() -> None:
    ids, groups = judge_ids(prefix(write_error=DENIED)), judge_groups(prefix(group_permissions=frozenset()))
    assert ids.remedy == "grant the user WRITE on the transactional ids that begin with 'orders-'"
    assert groups.remedy == "grant the user READ on the groups that begin with 'orders-'"


@pytest.mark.parametrize(
    ("given_ms", "answer", "has_written", "light", "says"),
    [
        (None, "900000", False, Light.GREEN, "transaction.max.timeout.ms=900000"),
        (900_000, "900000", False, Light.GREEN, "our 900000 ms"),
        (900_001, "900000", False, Light.RED, "is above the brokers'"),
        (None, None, False, Light.YELLOW, "not known; `--write` finds out"),
        (5_000, DENIED, False, Light.YELLOW, "kafka.transaction.timeout.ms=5000"),
        (5_000, DENIED, True, Light.GREEN, "brokers accept it"),
        (None, "a lot", False, Light.YELLOW, "900000 ms, Kafka's default, are assumed"),
    ],
)
def test_the_time_of_transactions_is_held_against_what_brokers_allow(
    given_ms: int | None, answer: Any, has_written: bool, light: Light, says: str
) -> None:
    result = judge_timeout(given_ms, answer, 900_000, 3, has_written=has_written)
    assert (result.light, says in result.finding) == (light, True)


def transaction(task: int, state: str, names: PrefixNames = NAMES) -> ListedTransaction:
    return ListedTransaction(names.transactional_id(AttemptId("q", task, 0)), 7, state)


@pytest.mark.parametrize(
    ("transactions", "may_describe", "light", "says"),
    [
        ([], True, Light.GREEN, "no open transaction"),
        (
            [transaction(0, "Empty")],
            True,
            Light.GREEN,
            "no open transaction; 1 transactional id of tasks without one",
        ),
        ([transaction(0, "CompleteAbort")], True, Light.GREEN, "no open transaction; 1 aborted one that the next write settles"),
        ([transaction(0, "Ongoing"), transaction(1, "PrepareAbort")], True, Light.YELLOW, "2 open transactions"),
        ([transaction(0, "Ongoing", PrefixNames("orders-2"))], True, Light.GREEN, "no open transaction"),
        ([], False, Light.YELLOW, "not known"),
        (OLD, True, Light.YELLOW, "before Kafka 3.0"),
        (LATE, True, Light.YELLOW, "not known"),
    ],
)
def test_what_earlier_writes_have_left_decides_the_light(
    transactions: list[ListedTransaction] | KafkaError, may_describe: bool, light: Light, says: str
) -> None:
    result = judge_leftovers(NAMES, transactions, 3, may_describe=may_describe)
    assert (result.light, says in result.finding) == (light, True)


@pytest.mark.parametrize(
    ("node_ids", "topic", "permissions", "light", "says"),
    [
        ([], "t", None, Light.GREEN, "no broker skips them"),
        ([1], "t", READ, Light.GREEN, "broker 1 may skip them"),
        ([1, 2], "t", frozenset(), Light.YELLOW, "brokers 1, 2 may skip them"),
        ([1], "t", None, Light.YELLOW, "not known"),
        ([1], None, None, Light.GREEN, "with READ on the topics"),
    ],
)
def test_brokers_that_may_skip_control_records_are_judged_by_a_permission(
    node_ids: list[int], topic: str | None, permissions: Any, light: Light, says: str
) -> None:
    result = judge_control_records(node_ids, topic, permissions, 3)
    assert (result.light, says in result.finding) == (light, True)


def test_a_prefix_of_others_is_printed_on_one_line() -> None:
    assert judge_leftovers(PrefixNames("a\x1b[31m"), [transaction(0, "Ongoing")], 3, may_describe=True).subject.isprintable()
