"""How the driver's state machine takes failures and ends a run early."""

from __future__ import annotations

import pytest
from played_runs import STEPS_BEFORE_START, Play, to_all

from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver.control import STOPPED_DRAIN_NS, Failure

# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, *STEPS_BEFORE_START])
def test_a_failure_before_the_start_stops_everyone_and_nothing_starts(step: str | None) -> None:
    play = Play(agents=3)
    play.join()
    for reached in STEPS_BEFORE_START[: STEPS_BEFORE_START.index(step) if step else 0]:
        play.reach(reached)
    if step is not None:
        play.reach(step, 0, 2)
    play.heard()
    play.fail(1, "LoginRefused", "no such user")
    assert play.heard() == to_all("stop", agents=3)
    assert play.control.failures == [Failure(1, "LoginRefused", "no such user")]
    assert not play.control.finished.is_set()
    play.reach("inspected", 0, 2, depths={})
    assert play.control.finished.is_set()
    assert not play.control.started.is_set()
    assert play.control.start_at_ns is None


def test_an_agent_that_reports_a_step_after_the_stop_is_not_sent_on() -> None:
    play = Play()
    play.join()
    play.fail(1)
    play.heard()
    for step in STEPS_BEFORE_START:
        play.reach(step, 0)
    assert play.heard() == []
    assert play.control.start_at_ns is None


def test_a_failure_in_mid_run_goes_through_the_closing_steps() -> None:
    play = Play()
    play.start()
    play.control.on_message(1, {"type": "failed", "kind": "LaneLost", "text": "gone"}, b"")
    assert play.heard() == to_all("stop")
    assert play.control.stop_reason == "agent 1 failed: gone"
    play.reach("produced")
    play.reach("closed", 1)
    play.pass_time(STOPPED_DRAIN_NS / NANOSECONDS + 0.01)
    assert play.heard() == to_all("drained")
    play.reach("closed", 0)
    assert play.heard() == to_all("inspect")
    play.reach("inspected", depths={})
    assert play.control.finished.is_set()
    assert play.control.failures == [Failure(1, "LaneLost", "gone")]


def test_an_agent_that_is_through_early_does_not_hold_up_the_others() -> None:
    play = Play()
    play.start()
    play.fail(1)
    play.heard()
    play.reach("produced", 0)
    play.reach("closed", 0)
    assert (0, "inspect") in play.heard()
    play.reach("inspected", 0, depths={})
    assert play.control.finished.is_set()


def test_a_lost_link_is_a_failure_of_its_agent() -> None:
    play = Play()
    play.start()
    play.control.on_left(1)
    assert [failure.agent for failure in play.control.failures] == [1]
    assert "connection ended" in play.control.failures[0].text
    assert play.heard() == to_all("stop")
    play.reach("produced", 0)
    play.reach("closed", 0)
    play.reach("inspected", 0, depths={})
    assert play.control.finished.is_set()


def test_an_agent_that_failed_and_then_left_has_failed_once() -> None:
    play = Play()
    play.start()
    play.fail(1)
    play.control.on_left(1)
    assert len(play.control.failures) == 1


def test_the_run_is_over_when_the_last_agent_has_left() -> None:
    play = Play()
    play.start()
    play.control.on_left(0)
    assert not play.control.finished.is_set()
    play.control.on_left(1)
    assert play.control.finished.is_set()


def test_an_agent_that_joins_a_stopped_run_is_told_at_once() -> None:
    play = Play()
    play.join(0)
    play.fail(0)
    play.heard()
    play.join(1)
    assert play.heard() == [(1, "stop")]
    play.reach("inspected", 1, depths={})
    assert play.control.finished.is_set()


# -- stopping ------------------------------------------------------------------------------------


def test_an_interruption_stops_everyone_once_and_shortens_the_drain() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=100, received_once=0)
    play.control.stop("interrupted")
    play.control.stop("again")
    assert play.heard() == to_all("stop")
    assert play.control.stop_reason == "interrupted"
    play.reach("produced")
    play.pass_time(STOPPED_DRAIN_NS / NANOSECONDS - 0.01)
    assert play.heard() == []
    play.pass_time(0.02)
    assert play.heard() == to_all("drained")


def test_a_stopped_run_drains_no_longer_than_it_must() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=5, received_once=5)
    play.control.stop("interrupted")
    play.pass_time(0.01)
    assert play.heard() == to_all("stop")
    play.reach("produced")
    play.pass_time(0.01)
    assert play.heard() == to_all("drained")


def test_a_stop_during_the_drain_does_not_lengthen_it() -> None:
    play = Play(keys={"phases": {"drain_seconds": 0.5}})
    play.start()
    play.progress(0, sent=5)
    play.reach("produced")
    play.control.stop("interrupted")
    play.heard()
    play.pass_time(0.51)
    assert play.heard() == to_all("drained")
