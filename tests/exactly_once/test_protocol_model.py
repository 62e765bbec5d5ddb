"""The plan of exactly-once writes holds in every order of steps, and each step of it is needed.

`python -m tests.exactly_once.protocol_model` shows the same as a table, with traces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from tests.exactly_once import protocol_model
from tests.exactly_once.model import cases, driver, task, traces
from tests.exactly_once.model.exploration import UNSAFE, Violation, explore
from tests.exactly_once.model.plans import KNOWN_LIMITS, LEFT_OUT, UNNEEDED, LeftOut, Limit, turned
from tests.exactly_once.model.world import FULL_PLAN, ModelCase, ModelEvent, Plan, Setting

RECORDED_TRACES = json.loads(protocol_model.TRACES_FILE.read_text(encoding="utf-8"))
BY_NAME = {left_out.name: left_out for left_out in LEFT_OUT}
SOAK_LIMIT_S = 1_200


def described(events_by_violation: dict[Violation, list[ModelEvent]]) -> str:
    """Each violation, and what happened before."""
    lines = []
    for violation, events in events_by_violation.items():
        lines += [f"{violation.value}, after {len(events)} steps:", *(f"  {event}" for event in events)]
    return "\n".join(lines)


# THE FULL PLAN


@pytest.mark.parametrize("case", cases.QUICK, ids=lambda case: case.name)
def test_the_full_plan_holds_in_every_order_of_steps(case: ModelCase) -> None:
    result = explore(Setting(FULL_PLAN, case))
    assert not result.traces, described(result.traces)
    assert result.is_complete, "a quick case is one that is explored to the end"


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("case", cases.SOAK, ids=lambda case: case.name)
def test_the_full_plan_holds_in_every_order_of_steps_of_the_large_cases(case: ModelCase) -> None:
    result = explore(Setting(FULL_PLAN, case))
    assert not result.traces, described(result.traces)
    assert result.is_complete, "what is not explored to the end is no evidence: see SAMPLED"


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("case", cases.SAMPLED, ids=lambda case: case.name)
def test_nothing_is_found_in_a_part_of_the_cases_that_are_too_large(case: ModelCase) -> None:
    """That proves nothing: they are explored in part."""
    result = explore(Setting(FULL_PLAN, case))
    assert not result.traces, described(result.traces)
    assert not result.is_complete, "it can be evidence: move it to SOAK"


def test_no_case_is_both_evidence_and_a_known_limit() -> None:
    names = [case.name for case in (*cases.QUICK, *cases.SOAK, *cases.SAMPLED, *(limit.case for limit in KNOWN_LIMITS))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(each, id=each.case.name, marks=[pytest.mark.slow] if each.case is cases.SKIPPED_AND_ZOMBIE else [])
        for each in KNOWN_LIMITS
    ],
)
def test_what_the_full_plan_does_not_promise_is_known(limit: Limit) -> None:
    assert limit.violation in explore(Setting(FULL_PLAN, limit.case), limit.violation).traces


def test_with_the_stage_attempt_in_the_id_no_attempt_fences_another_one() -> None:
    result = explore(Setting(turned("id_has_stage_attempt"), cases.STAGE_AGAIN_AND_HEALTHY))
    assert not result.traces, described(result.traces)


def test_a_failed_batch_write_shows_nothing_or_what_was_decided() -> None:
    result = explore(Setting(FULL_PLAN, cases.BY_NAME["batch, time-out"]))
    assert result.shown == {((), "no decision"), (("1a",), "incomplete"), (("1b",), "incomplete")}


# ONE STEP LEFT OUT


@pytest.mark.parametrize("left_out", LEFT_OUT, ids=lambda each: each.name)
def test_a_step_is_left_out_where_the_full_plan_is_known_to_hold(left_out: LeftOut) -> None:
    """Elsewhere the violation may be the full plan's own."""
    assert left_out.case in cases.EVIDENCE


def check(left_out: LeftOut) -> None:
    result = explore(left_out.setting, left_out.violation)
    print(described(result.traces))
    assert left_out.violation in result.traces


@pytest.mark.parametrize("left_out", [each for each in LEFT_OUT if each.is_quick], ids=lambda each: each.name)
def test_a_plan_without_this_step_breaks_a_promise(left_out: LeftOut) -> None:
    check(left_out)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("left_out", [each for each in LEFT_OUT if not each.is_quick], ids=lambda each: each.name)
def test_a_plan_without_this_step_breaks_a_promise_after_many_steps(left_out: LeftOut) -> None:
    check(left_out)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize(("field", "case"), [(field, case) for field, names in UNNEEDED.items() for case in names])
def test_other_steps_cover_for_this_one(field: str, case: str) -> None:
    result = explore(Setting(turned(field), cases.BY_NAME[case]))
    assert not UNSAFE & set(result.traces), described(result.traces)
    assert result.is_complete, "what is not explored to the end is no evidence"


def test_each_step_of_the_plan_is_left_out_once() -> None:
    left_out = {field for each in LEFT_OUT for field in each.fields} | set(UNNEEDED)
    assert left_out == {field.name for field in fields(Plan)}


# RECORDED TRACES


@pytest.mark.parametrize("trace", RECORDED_TRACES, ids=lambda trace: trace["name"])
def test_a_recorded_trace_leads_to_its_violation_step_by_step(trace: dict[str, Any]) -> None:
    left_out = BY_NAME[trace["name"]]
    violation = traces.violation_of(left_out.setting, trace["steps"])
    assert violation is not None
    assert (violation, violation.value) == (left_out.violation, trace["violation"])


@pytest.mark.parametrize("trace", RECORDED_TRACES, ids=lambda trace: trace["name"])
def test_the_full_plan_survives_the_schedule_of_a_recorded_trace(trace: dict[str, Any]) -> None:
    setting = Setting(FULL_PLAN, BY_NAME[trace["name"]].case)
    assert traces.violation_of(setting, trace["full_plan"]) is None
    visible = trace["full_plan_visible"]
    assert len(set(visible)) == len(visible)


def test_each_plan_with_a_step_left_out_has_its_trace() -> None:
    assert [trace["name"] for trace in RECORDED_TRACES] == [each.name for each in LEFT_OUT]


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
def test_the_recorded_traces_are_the_shortest_ones() -> None:
    assert protocol_model.recorded_traces() == protocol_model.TRACES_FILE.read_text(encoding="utf-8"), (
        "python -m tests.exactly_once.protocol_model --write"
    )


# THE MODEL


@pytest.mark.parametrize("step", [*task.STEPS.items(), *driver.STEPS.items()], ids=lambda step: step[0])
def test_each_step_says_which_one_of_the_plan_it_is(step: tuple[str, Callable[..., Any]]) -> None:
    name, function = step
    number = re.match(r"\d[a-h]?", name)
    if number is not None:
        assert f"Step {number[0]}" in (function.__doc__ or "")
        assert function.__name__.startswith(f"step_{number[0]}")


def test_the_table_of_crash_points_has_a_line_for_each_step_of_a_write() -> None:
    lines = "\n".join(protocol_model.crash_points())
    for step in ("1 take own id", "5 write marker", "6a read decision", "6d describe", "6e decide", "6f end", "log"):
        assert f"[{step}]" in lines


def test_the_command_prints_a_trace_in_words_for_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    protocol_model.main(["marker outside of the transaction"])
    printed = capsys.readouterr().out
    assert Violation.LOST.value in printed
    assert "[5 write marker]" in printed
