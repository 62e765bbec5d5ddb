"""The built code does what the model does, and survives the schedules that break plans with a step left out, on the fake broker.

tests/integration/test_exactly_once_traces.py has the same with a real one.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG, TransactionClient
from tests.exactly_once.model import cases
from tests.exactly_once.model.traces import walk
from tests.exactly_once.model.world import ModelCase
from tests.exactly_once.protocol_model import TRACES_FILE
from tests.exactly_once.runs import TOPIC, open_transactions, visible_rows
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.trace_replay import Replay
from tests.fakes.fake_broker import FakeBroker

TRACES = json.loads(TRACES_FILE.read_text(encoding="utf-8"))


def check(trace: dict[str, Any], *, is_the_same: bool = True, has_listed: bool = False) -> None:
    """Readers see no row twice, and a repetition completes what is missing and leaves nothing open.

    Args:
        is_the_same: it ends as the model of the full plan does, and readers see the same before the repetition.
        has_listed: see DriverRun.
    """
    with FakeBroker(nodes=2, topics={TOPIC: 1, TRANSACTION_LOG: 50}) as broker, ExitStack() as stack:
        broker.set_transaction_version(trace["transaction_version"])

        def make_run(name: str, **how: Any) -> DriverRun:
            return stack.enter_context(DriverRun(broker.bootstrap_servers, TOPIC, name, has_listed=has_listed, **how))

        client = stack.enter_context(TransactionClient({"bootstrap.servers": broker.bootstrap_servers}))
        with Replay(trace, make_run, client) as replay:
            replay.run()
        if is_the_same:
            assert replay.has_ended_well() == trace["full_plan_ends"].startswith("done"), replay.description()
            assert replay.wrong_errors() == {}
            assert Counter(visible_rows(broker)) == Counter(trace["full_plan_visible"]), replay.description()
        assert set(Counter(visible_rows(broker)).values()) <= {1}, replay.description()
        expected = replay.recover()
        assert Counter(visible_rows(broker)) == expected
        assert open_transactions(broker) == []


@pytest.mark.parametrize("has_listed", [False, True], ids=["first commit", "later commit"])
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace["name"])
def test_the_built_code_survives_the_schedule_that_breaks_a_plan_without_this_step(
    trace: dict[str, Any], has_listed: bool
) -> None:
    check(trace, has_listed=has_listed)


def can_be_walked(case: ModelCase) -> bool:
    """False if a repetition with the first rows may be refused, or a time-out cannot be had, see trace_replay.py."""
    return case.replay is None and case.frames == 1 and not (case.faults.time_outs and case.transaction_version == 1)


WALKED = [case for case in cases.EVIDENCE if can_be_walked(case)]


@pytest.mark.parametrize("case", WALKED, ids=lambda case: case.name)
def test_the_built_code_does_what_the_model_does(case: ModelCase) -> None:
    """The order of steps is random, with faults."""
    check(walk(case, seed=0), has_listed=True)


# A job that goes on with the next version leaves out one that has failed: then a repetition of it finds the later one.
REPEATED = [case for case in WALKED if not case.skips]


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case.name)
def test_no_row_is_lost_or_there_twice_in_many_orders(case: ModelCase) -> None:
    """The model's requests are finer steps than the built code's calls, so that not every order can be the same."""
    for seed in range(1, 50):
        print(f"seed {seed}")
        check(walk(case, seed), is_the_same=False, has_listed=bool(seed % 2))
