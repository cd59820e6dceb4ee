"""When a message of another agent was due follows from its producer and number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.flows import deal, round_robin

from bench_spark.agent.pacing import DueTimes
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import empty_envelopes
from bench_spark.plan import make_plan

START_NS = 7 * NANOSECONDS


@pytest.mark.parametrize("steps", [[], [{"seconds": 1, "rate_per_second": 55}]])
def test_it_is_what_the_sending_agent_had_in_its_schedule(steps: list[dict[str, Any]]) -> None:
    scenario = Scenario.model_validate(
        {
            "agents": 3,
            "placement": "split",
            "producers": 5,
            "identity": {"carrier": "header"},
            "load": {"rate_per_second": 130, "steps": steps},
            "phases": {"warmup_seconds": 1},
        }
    )
    plan = make_plan(scenario, "run")
    receiver = plan.assignments[-1]
    due_times = DueTimes(receiver.streams, receiver.run_tag, START_NS)
    senders = [one for one in plan.assignments if one.producers]
    assert len(senders) > 1
    for sender in senders:
        flow = round_robin(len(sender.producers), owes=True)
        lane, sequence = deal(flow, 200)
        assert sender.schedule is not None
        envelope = empty_envelopes(200)
        envelope["producer"] = np.array([member.index for member in sender.producers])[lane]
        envelope["sequence"] = sequence
        envelope["run_tag"] = receiver.run_tag
        due_times.fill(envelope)
        expected = sender.schedule.intended_of_ns(flow.numbers(lane, sequence)) + START_NS
        assert envelope["intended_ns"].tolist() == expected.tolist()


def test_what_is_known_already_or_not_ours_is_left_alone() -> None:
    keys = {"agents": 2, "placement": "split", "identity": {"carrier": "header"}}
    receiver = make_plan(Scenario.model_validate(keys), "run").assignments[-1]
    envelope = empty_envelopes(3)
    envelope["run_tag"] = receiver.run_tag
    envelope["intended_ns"][0] = 5
    envelope["run_tag"][1] = 0
    envelope["producer"][2] = 99
    DueTimes(receiver.streams, receiver.run_tag, START_NS).fill(envelope)
    assert envelope["intended_ns"].tolist() == [5, 0, 0]
