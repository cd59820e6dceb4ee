"""What is seen while a run goes on."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load, Phases
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Plan, make_plan
from bench_spark.report.live import (
    LiveLine,
    LiveLog,
    Steps,
    Verbosity,
    display_for,
    display_for_trials,
    progress_of,
)

START_NS = 1_700_000_000 * NANOSECONDS
PHASES = Phases(warmup_seconds=5, measure_seconds=10, drain_seconds=5)
TIMELINE = Timeline(START_NS, 5 * NANOSECONDS, 10 * NANOSECONDS, 5 * NANOSECONDS)
PLAN = make_plan(Scenario(name="steady", phases=PHASES), "r1")


@dataclass(frozen=True)
class HandWindow:
    sent_per_second: float = 10_000.2
    received_per_second: float = 9_998.7
    ended_ns: int = START_NS + 15 * NANOSECONDS
    measures: dict[str, dict[str, int]] = field(
        default_factory=lambda: {
            "latency": {"p99_us": 1_700},
            "delivery_latency": {"p99_us": 2_100},
            "confirm_latency": {"p99_us": 900},
        }
    )


class HandClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ns(self) -> int:
        return START_NS + round(self.seconds * NANOSECONDS)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


class ClosedTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def watched(display: Steps, clock: HandClock, plan: Plan = PLAN) -> None:
    display.name_next("steady on kafka")
    display.started(plan, TIMELINE, clock.now_ns)


@pytest.mark.parametrize(
    ("seconds", "is_draining", "expected"),
    [
        (-0.5, False, "warm-up  0/15 s"),
        (3.0, False, "warm-up  3/15 s"),
        (5.0, False, "measure  5/15 s"),
        (14.9, False, "measure  15/15 s"),
        (15.0, False, "drain    15/20 s"),
        (12.0, True, "drain    12/20 s"),
    ],
)
def test_progress_names_phase_elapsed_and_total(
    seconds: float, is_draining: bool, expected: str
) -> None:
    now_ns = START_NS + round(seconds * NANOSECONDS)
    progress = progress_of(PLAN, TIMELINE, now_ns, HandWindow(), is_draining)
    assert progress.text == f"{expected}  9,999 msg/s  delivery P99 2.10 ms"


def test_without_a_schedule_the_percentile_is_of_the_latency() -> None:
    plan = make_plan(Scenario(name="all", phases=PHASES, load=Load(mode="maximum")), "r1")
    progress = progress_of(plan, TIMELINE, START_NS, HandWindow(), is_draining=False)
    assert progress.text.endswith("msg/s  latency P99 1.70 ms")


def test_before_the_first_window_numbers_are_unknown_and_not_zero() -> None:
    progress = progress_of(PLAN, TIMELINE, START_NS, None, is_draining=False)
    assert progress.text == "warm-up  0/15 s  - msg/s  delivery P99 -"


def lines_of(counts: dict[float, int], plan: Plan = PLAN, **window: Any) -> dict[int, str]:
    """What a log says at each whole second, by what was counted until then."""
    stream, clock = io.StringIO(), HandClock()
    display = LiveLog(stream)
    watched(display, clock, plan)
    said = {}
    for tenth in range(1, 150):
        clock.seconds = tenth / 10
        until = [count for second, count in counts.items() if second <= clock.seconds]
        name = "sent" if plan.scenario.only_publishes else "received_once"
        display.counted({name: max(until, default=0)})
        display.update(HandWindow(**window) if window else None, is_draining=False)
        if tenth % 10 == 0:
            said[tenth // 10] = stream.getvalue().splitlines()[-1]
    return said


def test_the_throughput_is_there_from_the_first_second_without_any_window() -> None:
    every_tenth = {tenth / 10: 50 * tenth for tenth in range(150)}
    said = lines_of(every_tenth)
    for second in (1, 2, 5, 14):
        assert f"{second}/15 s  500 msg/s  delivery P99 -" in said[second]


def test_where_nobody_receives_it_is_what_was_sent_with_the_time_to_the_confirmation() -> None:
    plan = make_plan(Scenario(name="fill", phases=PHASES, consumers=0), "r1")
    said = lines_of({tenth / 10: 50 * tenth for tenth in range(150)}, plan, sent_per_second=7.0)
    assert "4/15 s  500 msg/s  confirm P99 900 us" in said[4]


def test_when_nothing_moves_no_old_value_is_shown() -> None:
    until_the_second = {tenth / 10: 50 * tenth for tenth in range(21)}
    said = lines_of(until_the_second, sent_per_second=1.0)
    assert said[2].endswith("500 msg/s  delivery P99 2.10 ms")
    assert said[6].endswith("measure  6/15 s  no messages for 4 s")
    assert said[14].endswith("measure  14/15 s  no messages for 12 s")
    goes_on = lines_of(until_the_second | {10.0: 1050, 11.0: 1100, 12.0: 1150})
    assert goes_on[9].endswith("no messages for 7 s")
    assert goes_on[12].endswith("50 msg/s  delivery P99 -")


def test_a_window_that_ended_long_ago_is_not_shown() -> None:
    every_tenth = {tenth / 10: 50 * tenth for tenth in range(150)}
    said = lines_of(every_tenth, ended_ns=START_NS - 6 * NANOSECONDS)
    assert "delivery P99 2.10 ms" in said[8]
    assert "500 msg/s  delivery P99 -" in said[10]


def test_a_load_that_ends_by_messages_has_no_total() -> None:
    load = Load(mode="maximum", messages=1000)
    plan = make_plan(Scenario(name="all", phases=PHASES, load=load), "r1")
    progress = progress_of(plan, TIMELINE, START_NS + NANOSECONDS, None, is_draining=False)
    assert "1/- s" in progress.text
    assert progress.share == 0.0


def test_without_consumers_it_shows_what_is_sent_and_confirmed() -> None:
    plan = make_plan(Scenario(name="fill", phases=PHASES, consumers=0), "r1")
    progress = progress_of(plan, TIMELINE, START_NS, HandWindow(), is_draining=False)
    assert progress.text == "warm-up  0/15 s  10,000 msg/s  confirm P99 900 us"


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("producers", "until all messages are received"),
        ("consumers", "until all messages are sent"),
    ],
)
def test_a_load_of_one_end_says_what_ends_it(role: str, expected: str) -> None:
    stream, clock = io.StringIO(), HandClock()
    load = Load(mode="maximum", messages=1000)
    scenario = Scenario.model_validate({"name": "one", role: 0, "load": load})
    watched(Steps(stream), clock, make_plan(scenario, "r1"))
    assert expected in stream.getvalue()


def test_without_a_terminal_there_is_a_line_per_interval_and_per_phase() -> None:
    stream, clock = io.StringIO(), HandClock()
    display = LiveLog(stream)
    slow = Scenario(name="slow", phases=PHASES, interval_seconds=4)
    watched(display, clock, make_plan(slow, "r1"))
    for tenth in range(160):
        clock.seconds = tenth / 10
        display.update(HandWindow(), is_draining=False)
    display.ended()
    shown = [line.split("  ")[1:3] for line in stream.getvalue().splitlines()]
    assert [" ".join(parts).split() for parts in shown] == [
        ["warm-up", "0/15", "s"],
        ["warm-up", "4/15", "s"],
        ["measure", "5/15", "s"],
        ["measure", "8/15", "s"],
        ["measure", "12/15", "s"],
        ["drain"],
    ]


def test_every_run_of_a_session_starts_its_lines_anew() -> None:
    stream, clock = io.StringIO(), HandClock()
    display = LiveLog(stream)
    for _ in range(2):
        watched(display, clock)
        display.ended()
    assert stream.getvalue().count("warm-up  0/15 s") == 2


def test_nothing_is_said_between_runs() -> None:
    for display in (LiveLog(io.StringIO()), LiveLine(io.StringIO())):
        display.update(HandWindow(), is_draining=False)
        assert display._stream.getvalue() == ""  # type: ignore[attr-defined]


def test_on_a_terminal_the_line_is_rewritten_and_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), HandClock()
    display = LiveLine(stream)
    watched(display, clock)
    clock.seconds = 7.5
    display.update(HandWindow(), is_draining=False)
    display.ended()
    first, second, last = stream.getvalue().split("\r\x1b[2K")[1:]
    assert first.startswith("steady on kafka ░░░░░░░░░░░░░░░░░░░░")
    assert second.startswith("steady on kafka █████░░░░░░  measure  8/15 s  9,999 msg/s")
    assert last == ""
    assert "\n" not in stream.getvalue()


@pytest.mark.parametrize("columns", [10, 30, 50, 80, 200])
def test_the_line_never_reaches_the_last_column(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    display = LiveLine(stream)
    watched(display, HandClock())
    assert len(stream.getvalue().removeprefix("\r\x1b[2K")) < columns


def test_a_step_does_not_mix_with_the_line() -> None:
    stream = Terminal()
    display = LiveLine(stream)
    watched(display, HandClock())
    display.step("summing up")
    assert stream.getvalue().endswith("\r\x1b[2Ksumming up\n")


def test_without_live_the_start_is_announced_once() -> None:
    stream, clock = io.StringIO(), HandClock()
    display = display_for(stream, live=False)
    watched(display, clock)
    clock.seconds = 7
    display.update(HandWindow(), is_draining=False)
    assert stream.getvalue() == "steady on kafka: the load runs, 20 s at most\n"


def test_the_display_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for(Terminal()), LiveLine)
    assert isinstance(display_for(io.StringIO()), LiveLog)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display_for(Terminal()), LiveLog)


def test_runs_that_are_parts_of_something_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        display = display_for_trials(stream)
        display.step("starting 1 agent")
        watched(display, HandClock())
        display.update(None, is_draining=False)
    assert log.getvalue() == ""
    assert "starting" not in terminal.getvalue()
    assert "warm-up" in terminal.getvalue()


def test_the_line_of_a_trial_tells_its_place_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), HandClock()
    display = display_for_trials(stream)
    display.name_next("trial 12 of 160, about 1 h 20 min left")
    display.started(PLAN, TIMELINE, clock.now_ns)
    clock.seconds = 7
    display.update(HandWindow(), is_draining=False)
    shown = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", stream.getvalue()).split("\r")[-1]
    assert shown.startswith("trial 12 of 160, about 1 h ")
    assert "measure  7/15 s  9,999 msg/s  delivery P99 2.10 ms" in shown
    assert len(shown) < 80


def test_no_color_leaves_the_line_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for no_colour, is_bold in (("1", False), ("", True)):
        monkeypatch.setenv("NO_COLOR", no_colour)
        stream = Terminal()
        watched(display_for(stream), HandClock())
        assert ("\x1b[1m" in stream.getvalue()) is is_bold


@pytest.mark.parametrize("kind", [LiveLog, LiveLine, Steps])
def test_a_closed_terminal_does_not_end_the_run(kind: type[Steps]) -> None:
    display = kind(ClosedTerminal())
    display.step("starting")
    watched(display, HandClock())
    display.ended()


MANY = make_plan(Scenario(name="many", producers=1000, consumers=1000, destinations=10), "r2")


def test_a_terminal_shows_how_many_of_many_connections_are_open() -> None:
    terminal = Terminal()
    display = LiveLine(terminal)
    for opened in (0, 32, 640, 1280):
        display.opening(MANY, opened)
    display.step("next")
    shown = terminal.getvalue().replace("\r\x1b[2K", "|")
    assert shown == "|640 of 2,000 connections are open|1,280 of 2,000 connections are open|next\n"


def test_a_log_says_now_and_then_how_many_connections_are_open() -> None:
    log = io.StringIO()
    display = LiveLog(log)
    for opened in range(0, 1600, 32):
        display.opening(MANY, opened)
    assert log.getvalue().splitlines() == [
        "many  512 of 2,000 connections are open",
        "many  1,024 of 2,000 connections are open",
        "many  1,536 of 2,000 connections are open",
    ]


def test_quiet_says_nothing_and_verbose_says_when_and_what() -> None:
    quiet, verbose = io.StringIO(), io.StringIO()
    for stream, verbosity in ((quiet, Verbosity.QUIET), (verbose, Verbosity.VERBOSE)):
        display = display_for(stream, live=False, verbosity=verbosity)
        display.step("starting Spark")
        display.detail("run x\ninto y")
    assert quiet.getvalue() == ""
    stamped, *details = verbose.getvalue().splitlines()
    assert re.fullmatch(r" *0\.\d\d s  starting Spark", stamped)
    assert [line.strip() for line in details] == ["run x", "into y"]


def test_details_are_for_those_who_asked() -> None:
    stream = io.StringIO()
    display_for(stream, live=False).detail("run x")
    assert stream.getvalue() == ""
