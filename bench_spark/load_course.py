"""The course of a load: the rates it asks for over time, and how long its phases last. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS

UNBOUNDED_PHASE_SECONDS = 3600.0
"""Time limit of a measured phase that is bounded by a number of messages."""
LONGEST_SETTLING = 3
"""Times the warm-up that a load has to settle."""


def total_rate_per_second(scenario: Scenario) -> float:
    """What the load asks for; with steps, during the warm-up."""
    return scenario.load.rate_per_second * _rates_counted(scenario)


def mean_rate_per_second(scenario: Scenario) -> float:
    """What the load asks for on average over the measured phase."""
    steps = scenario.load.steps
    if not steps:
        return total_rate_per_second(scenario)
    left_seconds = measured_seconds(scenario) - sum(step.seconds for step in steps)
    messages = sum(step.seconds * step.rate_per_second for step in steps)
    messages += left_seconds * steps[-1].rate_per_second
    return messages * _rates_counted(scenario) / measured_seconds(scenario)


def rate_changes(scenario: Scenario) -> Iterator[tuple[int, float]]:
    """When the rate changes after the start, and to what in all."""
    at_seconds = scenario.phases.warmup_seconds
    for step in scenario.load.steps:
        yield round(at_seconds * NANOSECONDS), step.rate_per_second * _rates_counted(scenario)
        at_seconds += step.seconds


def _rates_counted(scenario: Scenario) -> int:
    return scenario.producers if scenario.load.scope == "per_producer" else 1


def measured_seconds(scenario: Scenario) -> float:
    """Length of the measured phase; an upper limit where the load has an open end."""
    load = scenario.load
    if load.messages is None:
        return scenario.phases.measure_seconds
    if not _is_paced(scenario):
        return UNBOUNDED_PHASE_SECONDS
    return load.messages / total_rate_per_second(scenario)


def has_open_end(scenario: Scenario) -> bool:
    """Whether a number of messages or of samples ends the measured phase, at a moment nobody knows
    beforehand."""
    if scenario.sampling.samples:
        return True
    return scenario.load.messages is not None and not _is_paced(scenario)


def _is_paced(scenario: Scenario) -> bool:
    return scenario.load.has_schedule and not scenario.only_consumes


def has_to_settle(scenario: Scenario) -> bool:
    """Whether the measured phase begins when as much is received as is sent, and not after a fixed
    time: a load without a schedule fills the broker first. One end alone cannot tell."""
    has_warmup = scenario.phases.warmup_seconds > 0
    return scenario.load.mode == "maximum" and scenario.has_both_ends and has_warmup


def longest_warmup_seconds(scenario: Scenario) -> float:
    factor = LONGEST_SETTLING if has_to_settle(scenario) else 1
    return factor * scenario.phases.warmup_seconds


def timeline_of(scenario: Scenario, start_ns: int, measured_from_ns: int | None = None) -> Timeline:
    """The phases of a run whose agents start together at that moment.

    Of a load that has to settle, with the longest warm-up there can be, unless it is known from
    when on it was measured.
    """
    phases = scenario.phases
    timeline = Timeline(
        start_ns=start_ns,
        warmup_ns=round(longest_warmup_seconds(scenario) * NANOSECONDS),
        measure_ns=round(measured_seconds(scenario) * NANOSECONDS),
        drain_ns=round(phases.drain_seconds * NANOSECONDS),
    )
    if measured_from_ns is not None and has_to_settle(scenario):
        timeline.measure_from(measured_from_ns)
    return timeline
