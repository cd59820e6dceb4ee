"""The driver's state machine, played through without a socket or a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bench_spark.agent.rows import EventRow, encode_rows
from bench_spark.agent.wire import Message
from bench_spark.collector.control import (
    BACKLOG_NEWS_NS,
    START_DELAY_NS,
    STOPPED_DRAIN_NS,
    Failure,
    RunControl,
)
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.measure.hdr import SparseHistogram
from bench_spark.plan import make_plan
from bench_spark.scenario.models import Scenario

DRAIN_SECONDS = 4.0
STEPS_BEFORE_START = ("probed", "declared", "ready")


@dataclass
class Play:
    """A run control with agents that do as the test says and a clock that it moves."""

    agents: int = 2
    keys: dict[str, Any] = field(default_factory=dict)
    now_ns: int = 1_000 * NANOSECONDS
    sent: list[tuple[int, str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    rows: list[tuple[int, int, list[EventRow]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        pairs = {"producers": self.agents, "consumers": self.agents, "destinations": self.agents}
        scenario = Scenario.model_validate(
            {"agents": self.agents, "phases": {"drain_seconds": DRAIN_SECONDS}} | pairs | self.keys
        )
        self.control = RunControl(
            make_plan(scenario, "run-1"),
            lambda: self.now_ns,
            self._send,
            lambda agent, attempt, rows: self.rows.append((agent, attempt, rows)),
        )

    def _send(self, agent: int, message: Message) -> None:
        self.sent.append((agent, message["type"]))
        self.messages.append(message)

    def heard(self) -> list[tuple[int, str]]:
        """What agents were told since the last time; news of the backlog left out."""
        heard, self.sent = [told for told in self.sent if told[1] != "backlog"], []
        return heard

    def join(self, *agents: int) -> None:
        for agent in agents or range(self.agents):
            self.control.on_joined(agent, 0)

    def reach(self, step: str, *agents: int, payload: bytes = b"", **fields: Any) -> None:
        if step == "declared":
            fields.setdefault("destinations", [])
        for agent in agents or range(self.agents):
            message = {"type": "reached", "step": step} | fields
            self.control.on_message(agent, message, payload)

    def progress(self, agent: int, **fields: int) -> None:
        self.control.on_message(agent, {"type": "progress"} | fields, b"")

    def fail(self, agent: int, kind: str = "RunError", text: str = "it broke") -> None:
        """As an agent does it: the failure, and that it is through with everything."""
        self.control.on_message(agent, {"type": "failed", "kind": kind, "text": text}, b"")
        self.reach("inspected", agent, depths={})

    def start(self) -> None:
        self.join()
        for step in STEPS_BEFORE_START:
            self.reach(step)
        assert self.control.started.is_set()
        self.heard()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * NANOSECONDS)
        self.control.on_time()


def to_all(*commands: str, agents: int = 2) -> list[tuple[int, str]]:
    return [(agent, command) for command in commands for agent in range(agents)]


def test_lanes_that_agents_have_opened_are_added_up() -> None:
    play = Play()
    play.join()
    assert play.control.opened_lanes == 0
    for agent, opened in ((0, 32), (1, 64), (0, 96)):
        play.control.on_message(agent, {"type": "opening", "opened": opened}, b"")
    assert play.control.opened_lanes == 96 + 64


# -- a run without incident ----------------------------------------------------------------------


def test_each_command_comes_when_all_agents_have_reached_the_step_before() -> None:
    play = Play()
    play.join(0)
    assert not play.control.all_joined.is_set()
    play.join(1)
    assert play.control.all_joined.is_set()
    assert play.heard() == []
    for step, command in (("probed", "declare"), ("declared", "open"), ("ready", "start")):
        play.reach(step, 1)
        assert play.heard() == []
        play.reach(step, 0)
        assert play.heard() == to_all(command)
    play.reach("produced", 0)
    play.pass_time(0.1)
    assert play.heard() == []
    play.reach("produced", 1)
    play.pass_time(0.1)
    assert play.control.produced.is_set()
    assert play.heard() == to_all("drained")
    play.reach("closed", 0)
    assert play.heard() == []
    play.reach("closed", 1)
    assert play.heard() == to_all("inspect")
    play.reach("inspected", 1, depths={})
    assert not play.control.finished.is_set()
    play.reach("inspected", 0, depths={})
    assert play.control.finished.is_set()
    for agent in range(2):
        play.control.on_left(agent)
    assert play.control.failures == []
    assert play.control.stop_reason is None


def test_everyone_starts_at_one_moment_that_is_still_to_come() -> None:
    play = Play(agents=3)
    play.start()
    starts = [m["start_at_ns"] for m in play.messages if m["type"] == "start"]
    assert starts == [play.now_ns + START_DELAY_NS] * 3 == [play.control.start_at_ns] * 3


def test_names_of_destinations_go_from_those_who_declared_them_to_everyone() -> None:
    play = Play()
    play.join()
    play.reach("probed")
    play.reach("declared", 0, destinations=[[0, "red", True]])
    play.reach("declared", 1, destinations=[[1, "blue", False]])
    told = [m["destinations"] for m in play.messages if m["type"] == "open"]
    assert told == [[[0, "red", True], [1, "blue", False]]] * 2


def test_a_command_is_said_once_however_often_a_step_is_reported() -> None:
    play = Play()
    play.join()
    for _ in range(3):
        play.reach("probed")
    assert play.heard() == to_all("declare")


def test_rows_are_handed_on_and_acknowledged_by_number() -> None:
    play = Play()
    play.control.on_joined(1, 4)
    histogram = SparseHistogram(1, 2, 3, 0, 0, np.array([2], np.int32), np.array([2], np.int64))
    rows = [
        EventRow(
            7, "producer", "measure", 1, 0, 1.0, {"sent": 2}, histograms={"send_lag": histogram}
        ),
        EventRow(8, "consumer", "measure", 1, 0, 1.0, {"received": 2}),
    ]
    header, columns = encode_rows(rows)
    play.control.on_message(1, {"type": "rows", "rows": header}, columns)
    assert play.rows == [(1, 4, rows)]
    assert play.messages == [{"type": "rows_kept", "row_numbers": [7, 8]}]
    assert play.heard() == [(1, "rows_kept")]


def test_rows_that_cannot_be_read_are_not_acknowledged() -> None:
    play = Play()
    play.join()
    with pytest.raises(ValueError, match="belong to no row"):
        play.control.on_message(0, {"type": "rows", "rows": []}, b"123")
    assert play.heard() == []


def test_the_load_goes_on_until_every_agent_has_its_samples() -> None:
    play = Play()
    play.start()
    play.reach("sampled", 1)
    assert play.heard() == []
    play.reach("sampled", 0)
    assert play.heard() == to_all("enough")


def test_nobody_waits_for_the_samples_of_an_agent_that_is_gone() -> None:
    play = Play()
    play.start()
    play.reach("sampled", 1)
    play.fail(0)
    assert play.heard() == to_all("stop")


def test_the_closing_report_and_its_pages_are_kept() -> None:
    play = Play()
    play.start()
    play.reach("closed", 1, payload=b"pages", sent_by_producer=[[1, 2, 3]])
    assert play.control.agents[1].pages == b"pages"
    assert play.control.agents[1].reports["closed"]["sent_by_producer"] == [[1, 2, 3]]


# -- the drain -----------------------------------------------------------------------------------


def test_the_drain_ends_as_soon_as_everything_has_arrived() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=100, received_once=40)
    play.progress(1, sent=0, received_once=30)
    play.reach("produced")
    play.pass_time(0.1)
    assert play.heard() == []
    play.progress(1, sent=0, received_once=60)
    play.pass_time(0.1)
    assert play.heard() == to_all("drained")


def test_the_drain_waits_for_outcomes_that_are_still_to_come() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=10, received_once=10, unsettled=1)
    play.reach("produced")
    play.pass_time(0.1)
    assert play.heard() == []
    play.progress(0, sent=10, received_once=10, unsettled=0)
    play.pass_time(0.1)
    assert play.heard() == to_all("drained")


def test_messages_that_came_back_are_not_waited_for() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=10, received_once=7, freed=3)
    play.reach("produced")
    play.pass_time(0.1)
    assert play.heard() == to_all("drained")


def test_the_drain_ends_at_its_deadline_whatever_is_missing() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=100, received_once=99)
    play.reach("produced")
    play.pass_time(DRAIN_SECONDS - 0.01)
    assert play.heard() == []
    play.pass_time(0.02)
    assert play.heard() == to_all("drained")
    play.pass_time(1)
    assert play.heard() == []


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


# -- news of the backlog -------------------------------------------------------------------------


def backlogs(play: Play) -> list[int]:
    return [m["messages"] for m in play.messages if m["type"] == "backlog"]


def test_agents_that_share_destinations_hear_of_the_whole_backlog() -> None:
    play = Play(keys={"placement": "split", "producers": 1, "consumers": 1, "destinations": 1})
    play.start()
    play.progress(0, sent=100, freed=5)
    play.progress(1, received_once=60)
    play.pass_time(BACKLOG_NEWS_NS / NANOSECONDS)
    assert backlogs(play) == [35, 35]
    play.pass_time(0.001)
    assert backlogs(play) == [35, 35]
    play.pass_time(BACKLOG_NEWS_NS / NANOSECONDS)
    assert backlogs(play) == [35] * 4


def test_what_went_down_with_a_connection_is_not_waited_for_but_counted_as_missing() -> None:
    play = Play(keys={"placement": "split", "producers": 1, "consumers": 1, "destinations": 1})
    play.start()
    play.progress(0, sent=100)
    play.progress(1, received_once=60, down=1)
    play.pass_time(2)
    play.progress(1, received_once=60, reopened=1)
    play.pass_time(0.5)
    play.progress(1, received_once=70, reopened=1)
    play.pass_time(0.5)
    play.pass_time(0.9)
    assert set(backlogs(play)) == {40, 30}
    play.pass_time(0.1)
    assert backlogs(play)[-2:] == [0, 0]
    # A message that was written off arrives all the same; others are on their way.
    play.progress(0, sent=110)
    play.progress(1, received_once=90, reopened=1)
    play.pass_time(0.1)
    assert backlogs(play)[-2:] == [0, 0]
    # The drain waits for what is missing, as long as it may.
    play.reach("produced")
    play.pass_time(0.1)
    assert "drained" not in [command for _, command in play.heard()]


def test_agents_that_share_nothing_hear_no_news() -> None:
    play = Play()
    play.start()
    play.progress(0, sent=100)
    for _ in range(5):
        play.pass_time(1)
    assert backlogs(play) == []


# -- one end only --------------------------------------------------------------------------------


def test_without_consumers_the_drain_waits_for_confirmations_only() -> None:
    play = Play(keys={"consumers": 0})
    play.start()
    for agent in range(2):
        play.progress(agent, sent=500, received_once=0, unsettled=agent)
    play.reach("produced")
    play.pass_time(0.1)
    assert play.heard() == []
    play.progress(1, sent=500, received_once=0, unsettled=0)
    play.pass_time(0.1)
    assert play.heard() == to_all("drained")


def test_without_producers_there_is_nothing_to_drain() -> None:
    play = Play(keys={"producers": 0})
    play.start()
    play.progress(0, sent=0, received_once=10, unsettled=0)
    play.pass_time(10)
    assert play.heard() == []
    play.reach("produced")
    play.pass_time(0.1)
    assert play.heard() == to_all("drained")


@pytest.mark.parametrize("role", ["producers", "consumers"])
def test_with_one_end_there_is_no_news_of_a_backlog(role: str) -> None:
    play = Play(keys={role: 0, "destinations": 1})
    play.start()
    play.pass_time(1)
    assert play.sent == []


def test_senders_are_told_of_arrivals_at_other_agents() -> None:
    play = Play(agents=3, keys={"producers": 4, "destinations": 3, "load": {"mode": "request"}})
    play.join()
    play.heard()
    play.messages.clear()
    arrived = {"type": "arrived", "producers": [1, 3, 0, 1], "sequences": [7, 5, 6, 8]}
    play.control.on_message(2, arrived, b"")
    assert play.heard() == [(1, "released"), (0, "released")]
    assert [(told["producers"], told["sequences"]) for told in play.messages] == [
        ([1, 1], [7, 8]),
        ([3, 0], [5, 6]),
    ]
