"""Whole agents whose consumers get nothing, or that stand still themselves."""

from __future__ import annotations

import threading
import time

import pytest
from agents import Load, run_load
from patience import PATIENCE_SECONDS, eventually
from unit.loopbacks import LOOPBACK, Watch, assert_all_arrived, pairs, plan

from bench_spark.agent.loop import LoadLoop
from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver import control as control_module
from bench_spark.driver.accounts import AgentHealth, agent_entry, measured_span, silences_of

PHASES = {"warmup_seconds": 0.5, "measure_seconds": 4, "drain_seconds": 1}
UNTIL_STOPPED = {"warmup_seconds": 0.5, "measure_seconds": 300, "drain_seconds": 1}


def stalled_seconds(load: Load) -> list[float]:
    measured = measured_span(load.plan, load.control)
    return [
        agent_entry(load.control, agent, AgentHealth(), measured)["stalled_seconds"]
        for agent in range(len(load.control.agents))
    ]


@pytest.mark.parametrize(
    ("keys", "confirms"),
    [
        ({"load": {"rate_per_second": 200}}, False),
        ({"load": {"rate_per_second": 200}, "agents": 2, "placement": "split"}, True),
        ({"load": {"mode": "maximum"}}, False),
    ],
    ids=["sent", "confirmed in another agent", "maximum"],
)
def test_a_consumer_that_gets_nothing_is_found(
    keys: dict[str, object], confirms: bool, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "LONGEST_SILENCE_NS", NANOSECONDS)
    watch.confirms = confirms
    watch.delay = lambda: watch.received.total() >= 20

    def stop_when_found(load: Load) -> None:
        assert eventually(load.control.silence.silences)
        load.stop()

    load = run_load(plan(phases=UNTIL_STOPPED, **keys), LOOPBACK, stop_when_found)
    measured_from = measured_span(load.plan, load.control)[0]
    found = silences_of(load.control, measured_from)
    assert [one["consumers"] for one in found] == [[0]]
    assert found[0]["seconds"] >= 1.0


def test_consumers_that_get_their_messages_are_not_silent(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "LONGEST_SILENCE_NS", NANOSECONDS)
    load = run_load(plan(**pairs(2), load={"rate_per_second": 200}, phases=PHASES), LOOPBACK)
    assert_all_arrived(load)
    assert silences_of(load.control, measured_span(load.plan, load.control)[0]) == ()


def test_an_agent_that_stands_still_says_for_how_long(watch: Watch) -> None:
    """A call that does not return in time is the same for the loop as being stopped."""
    stands_still, goes_on = threading.Event(), threading.Event()

    def at(step: str) -> None:
        if step == "send" and watch.sent.total() >= 150 and not stands_still.is_set():
            stands_still.set()
            time.sleep(1.5)
        elif step == "receive" and stands_still.is_set():
            goes_on.set()

    watch.at = at

    def stop_when_it_goes_on(load: Load) -> None:
        assert goes_on.wait(PATIENCE_SECONDS)
        load.stop()

    phases = UNTIL_STOPPED | {"drain_seconds": 20}
    began = time.monotonic()
    made = plan(load={"rate_per_second": 200}, phases=phases)
    load = run_load(made, LOOPBACK, stop_when_it_goes_on)
    assert_all_arrived(load)
    assert 1.4 <= stalled_seconds(load)[0] <= time.monotonic() - began


def test_an_agent_that_stands_still_until_all_is_over_sends_nothing_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for_start = LoadLoop._wait_for_start

    def oversleep(self: LoadLoop) -> None:
        wait_for_start(self)
        time.sleep(1.5)

    monkeypatch.setattr(LoadLoop, "_wait_for_start", oversleep)
    phases = {"warmup_seconds": 0, "measure_seconds": 1.2, "drain_seconds": 5}
    load = run_load(plan(load={"mode": "maximum"}, phases=phases), LOOPBACK)
    accounts = load.accounts()
    assert (accounts.sent, accounts.closes) == (0, True)
    assert stalled_seconds(load) == [pytest.approx(1.2)]


def test_an_agent_that_runs_on_has_stood_still_for_no_time_that_counts(watch: Watch) -> None:
    """Of the warm-up nothing is told: there it does no harm."""
    stands_still = threading.Event()

    def at(step: str) -> None:
        if step == "send" and watch.sent.total() >= 20 and not stands_still.is_set():
            stands_still.set()
            time.sleep(1.2)

    watch.at = at
    phases = {"warmup_seconds": 3, "measure_seconds": 0.5, "drain_seconds": 5}
    load = run_load(plan(load={"rate_per_second": 200}, phases=phases), LOOPBACK)
    assert stands_still.is_set()
    assert load.results[0].report["stalls"]
    assert stalled_seconds(load) == [0.0]


def test_turns_of_the_loop_are_counted_in_the_measured_phase() -> None:
    phases = {"warmup_seconds": 0.3, "measure_seconds": 1, "drain_seconds": 5}
    load = run_load(plan(load={"rate_per_second": 200}, phases=phases), LOOPBACK)
    measured = measured_span(load.plan, load.control)
    turns = agent_entry(load.control, 0, AgentHealth(), measured)["turns_per_second"]
    # One to send and one to receive a message, fewer where a busy machine wakes it late.
    assert 10 < turns < 2000
