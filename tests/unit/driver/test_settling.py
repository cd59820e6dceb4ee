"""The measured phase of a maximum load begins when as much arrives as is sent, in all agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.driver.played_runs import Play, to_all

from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver.control import ANNOUNCED_NS

WARMUP_SECONDS = 5
LATEST_SECONDS = 15
STEP_SECONDS = 0.1


def maximum(**keys: Any) -> Play:
    phases = {"warmup_seconds": WARMUP_SECONDS, "measure_seconds": 20, "drain_seconds": 4}
    play = Play(keys={"load": {"mode": "maximum"}, "phases": phases} | keys)
    play.start()
    return play


def play_until_measured(
    play: Play, sent: Callable[[float], float], received: Callable[[float], float]
) -> float | None:
    """Both agents tell ten times a second what each has sent and received by then. When after the
    start the agents are told of the measured phase; None if they never are."""
    start_ns = play.control.start_at_ns
    assert start_ns is not None
    while play.now_ns < start_ns + 20 * NANOSECONDS:
        seconds = max(0.0, (play.now_ns - start_ns) / NANOSECONDS)
        for agent in range(play.agents):
            play.progress(agent, sent=int(sent(seconds)), received_once=int(received(seconds)))
        play.pass_time(STEP_SECONDS)
        told = [message for message in play.messages if message["type"] == "measure"]
        if told:
            assert play.heard() == to_all("measure")
            assert told[0] == told[1], "all agents are told the same"
            begins_ns = int(told[0]["measure_at_ns"])
            assert begins_ns >= play.now_ns + ANNOUNCED_NS, "and are told in time"
            timeline = play.control.timeline
            assert timeline is not None
            assert timeline.measure_start_ns == begins_ns
            assert timeline.measure_end_ns == begins_ns + 20 * NANOSECONDS
            return (begins_ns - start_ns) / NANOSECONDS
    return None


def steadily(per_second: float) -> Callable[[float], float]:
    return lambda seconds: per_second * seconds


def with_a_burst(per_second: float, messages: float) -> Callable[[float], float]:
    """A backlog is filled first; then as much goes in as comes out."""
    return lambda seconds: messages + per_second * seconds if seconds else 0


def no_sooner_than(seconds: float, per_second: float) -> Callable[[float], float]:
    return lambda at_seconds: per_second * max(0.0, at_seconds - seconds)


def test_a_load_that_is_even_from_the_start_is_measured_after_its_warm_up() -> None:
    play = maximum()
    assert play_until_measured(play, steadily(1000), steadily(1000)) == WARMUP_SECONDS
    assert play.control.settling is not None
    outcome = play.control.settling.outcome
    assert outcome is not None
    assert outcome.is_settled
    assert outcome.sent_per_second == pytest.approx(2000, rel=0.06)
    assert outcome.received_per_second == pytest.approx(2000, rel=0.06)


def test_a_backlog_that_was_filled_early_in_the_warm_up_does_not_matter() -> None:
    sent = with_a_burst(1000, 50_000)
    assert play_until_measured(maximum(), sent, steadily(1000)) == WARMUP_SECONDS


@pytest.mark.parametrize(("share", "settles"), [(0.92, True), (0.88, False), (1.08, True)])
def test_a_tenth_is_the_most_that_may_be_between_them(share: float, settles: bool) -> None:
    found = play_until_measured(maximum(), steadily(10_000), steadily(10_000 * share))
    assert found == (WARMUP_SECONDS if settles else None)


def test_consumers_that_come_late_are_waited_for() -> None:
    """They receive from the eighth second on: two more seconds show that it is even."""
    begins = play_until_measured(maximum(), steadily(1000), no_sooner_than(8, 1000))
    assert begins is not None
    assert 9.8 + ANNOUNCED_NS / NANOSECONDS <= begins <= 10.2 + ANNOUNCED_NS / NANOSECONDS


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (steadily(1000), steadily(300)),
        (steadily(0), steadily(300)),
        (steadily(300), steadily(0)),
        (steadily(0), steadily(0)),
        (steadily(1000), no_sooner_than(12.6, 1000)),
    ],
    ids=["behind", "only drained", "only filled", "nothing moves", "too late to be announced"],
)
def test_a_load_that_does_not_settle_is_measured_after_three_warm_ups(
    sent: Callable[[float], float], received: Callable[[float], float]
) -> None:
    play = maximum()
    assert play_until_measured(play, sent, received) is None
    control = play.control
    assert control.timeline is not None
    assert control.start_at_ns is not None
    latest_ns = control.start_at_ns + LATEST_SECONDS * NANOSECONDS
    assert control.timeline.measure_start_ns == latest_ns
    assert control.settling is not None
    outcome = control.settling.outcome
    assert outcome is not None
    assert outcome.after_seconds == LATEST_SECONDS


def test_every_copy_of_a_message_counts() -> None:
    keys = {"topology": "fan-out", "producers": 2, "consumers": 8, "destinations": 2}
    play = maximum(**keys)
    copies = play.control._plan.copies
    assert copies > 1
    assert play_until_measured(play, steadily(1000), steadily(1000)) is None
    again = maximum(**keys)
    found = play_until_measured(again, steadily(1000), steadily(1000 * copies))
    assert found == WARMUP_SECONDS


@pytest.mark.parametrize(
    "keys",
    [
        {"load": {"mode": "rate", "rate_per_second": 1000}},
        {"load": {"mode": "window", "in_flight": 10}},
        {"load": {"mode": "request", "rate_per_second": 10}},
        {"load": {"mode": "maximum", "messages": 100}, "consumers": 0},
        {"phases": {"warmup_seconds": 0, "measure_seconds": 20}},
    ],
    ids=["rate", "window", "request", "publishes only", "no warm-up"],
)
def test_other_loads_keep_the_warm_up_they_ask_for(keys: dict[str, Any]) -> None:
    play = maximum(**keys)
    control = play.control
    assert control.settling is None
    assert control.timeline is not None
    warmup_seconds = control._plan.scenario.phases.warmup_seconds
    assert control.timeline.warmup_ns == warmup_seconds * NANOSECONDS
    assert play_until_measured(play, steadily(1000), steadily(1000)) is None


def test_a_run_that_is_stopped_in_its_warm_up_begins_to_measure_nothing() -> None:
    play = maximum()
    play.pass_time(1)
    play.control.stop("interrupted")
    assert play_until_measured(play, steadily(1000), steadily(1000)) is None


def test_a_run_that_lost_an_agent_in_its_warm_up_begins_to_measure_nothing() -> None:
    play = maximum()
    play.pass_time(1)
    play.control.on_left(1)
    assert play_until_measured(play, steadily(1000), steadily(1000)) is None
