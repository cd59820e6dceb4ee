"""The driver's state machine, played through without a socket or a clock."""

from __future__ import annotations

import numpy as np
import pytest
from played_runs import DRAIN_SECONDS, Play, to_all

from bench_spark.agent.protocol import EventRow, encode_rows
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import SparseHistogram
from bench_spark.driver.control import BACKLOG_NEWS_NS, START_DELAY_NS


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
