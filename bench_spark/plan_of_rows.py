"""The plan of a run whose data set is a table, once the table has been read: until then nobody
knows how many records it holds and, where it is recorded traffic, when they are due."""

from __future__ import annotations

from dataclasses import replace

from bench_spark.agent.pacing import recording_at
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import ConfigurationError
from bench_spark.plan import Plan, make_plan, with_phases_by_number
from bench_spark.scenario.models import Scenario


def with_rows(plan: Plan, scenario: Scenario, rows_at: str) -> Plan:
    """The same members with the scenario as it is once its table was read, and where its rows
    are."""
    if scenario.dataset.is_recorded:
        scenario = _at_the_recorded_pace(scenario, rows_at)
    made = make_plan(scenario, plan.run_id)
    assignments = [replace(one, rows_at=rows_at) for one in made.assignments]
    if any(one.first_measured is not None for one in assignments):
        assignments = with_phases_by_number(assignments)
    return replace(made, assignments=tuple(assignments))


def _at_the_recorded_pace(scenario: Scenario, rows_at: str) -> Scenario:
    """Recorded traffic has its own rate, and without repeating its own length."""
    recording = recording_at(rows_at, scenario.dataset.repeat)
    phases = scenario.phases
    if not scenario.dataset.repeat:
        milliseconds = recording.last_ns // 1_000_000 + 1
        phases = phases.model_copy(update={"measure_seconds": milliseconds / 1000})
    start_ns = round(phases.warmup_seconds * NANOSECONDS)
    end_ns = start_ns + round(phases.measure_seconds * NANOSECONDS)
    rows = recording.rows_before(end_ns) - recording.rows_before(start_ns)
    if not rows:
        raise ConfigurationError(
            "dataset.columns.interval: no row is due in the measured phase; lengthen "
            "phases.measure_seconds, or raise dataset.replay.speed"
        )
    load = scenario.load.model_copy(
        update={"scope": "total", "rate_per_second": rows / phases.measure_seconds}
    )
    return scenario.model_copy(update={"phases": phases, "load": load})
