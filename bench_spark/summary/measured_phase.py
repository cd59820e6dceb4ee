"""Which ticks and which intervals of a run belong to its measured phase."""

from __future__ import annotations

from bench_spark.agent.timeline import MEASURE
from bench_spark.load_course import has_open_end
from bench_spark.summary.facts import RunFacts
from bench_spark.summary.totals import Tick

_EDGE_SECONDS = 2e-6
"""How far apart the start of a tick and that of its phase may seem: tables cut to microseconds,
and seconds since the epoch are exact to a quarter of one."""


def in_window(tick: Tick, facts: RunFacts) -> bool:
    if facts.measured_from is None or facts.measured_until is None:
        return False
    if _lasts_from_first_to_last(facts):
        return tick.phase == MEASURE
    return _starts_in_window(tick.start_seconds, facts)


def interval_of(start_seconds: float, facts: RunFacts) -> int | None:
    """Which interval of the measured phase a tick with its messages belongs to; None if the load
    never started. What arrives after the phase belongs to the last interval."""
    if facts.measured_from is None:
        return None
    since = max(0.0, start_seconds - facts.measured_from + _EDGE_SECONDS)
    interval = int(since // facts.plan.scenario.interval_seconds)
    return min(interval, intervals_of(facts) - 1)


def intervals_of(facts: RunFacts) -> int:
    """How many intervals the measured phase has: at least one, and a rest that is shorter than half
    of one is part of the last."""
    length = facts.plan.scenario.interval_seconds
    whole, rest = divmod(facts.measured_seconds + _EDGE_SECONDS, length)
    return max(1, int(whole) + (1 if rest >= length / 2 else 0))


def _starts_in_window(start_seconds: float, facts: RunFacts) -> bool:
    if facts.measured_from is None or facts.measured_until is None:
        return False
    if _lasts_from_first_to_last(facts):
        return True
    return facts.measured_from <= start_seconds + _EDGE_SECONDS < facts.measured_until


def _lasts_from_first_to_last(facts: RunFacts) -> bool:
    """Whether the phase lasts from the first message to the last, whatever ticks they were in."""
    scenario = facts.plan.scenario
    return not scenario.has_both_ends and has_open_end(scenario)
