"""The result so far of a run that goes on, or whose driver was killed.

The tables hold it at any moment: what is missing is only what agents tell at the end, which are the
accounts. So nothing is said of losses, and nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.load_course import has_to_settle, timeline_of
from bench_spark.plan import make_plan
from bench_spark.scenario.models import Scenario
from bench_spark.summary.checks import Check, verdict_of
from bench_spark.summary.document import Document, summarise
from bench_spark.summary.facts import RunFacts
from bench_spark.summary.totals import Tick

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True)
class Reached:
    """How far the events of a run go."""

    tick: int
    """Some tick, and when it started, on the run's clock."""
    tick_start_ns: int
    newest_tick: int
    has_confirms: bool
    measured_from_ns: int | None = None
    """When the measured phase began, where the driver has said so."""


def timeline_at(
    scenario: Scenario, tick: int, tick_start_ns: int, measured_from_ns: int | None = None
) -> Timeline:
    """The timeline on which this tick starts at this moment.

    `measured_from_ns`: from when on a load that had to settle was measured, where that is known.
    Then a tick of the warm-up tells when the run started, and a later one to within a second.
    """
    if measured_from_ns is not None and has_to_settle(scenario):
        start_ns = tick_start_ns - tick * NANOSECONDS
        # Such a warm-up lasts whole milliseconds; times in tables are cut or rounded.
        warmup_ns = round((measured_from_ns - start_ns) / MILLISECOND_NS) * MILLISECOND_NS
        return timeline_of(scenario, start_ns, start_ns + warmup_ns)
    from_zero = timeline_of(scenario, start_ns=0)
    return timeline_of(scenario, tick_start_ns - from_zero.tick_start_ns(tick))


def partial_document(
    run_id: str,
    scenario: Scenario,
    broker: dict[str, Any],
    reached: Reached,
    ticks: Iterable[Tick],
) -> Document:
    """As a result document, with the status `running` and what is not known left open."""
    timeline = timeline_at(scenario, reached.tick, reached.tick_start_ns, reached.measured_from_ns)
    until_ns = min(timeline.tick_end_ns(reached.newest_tick), timeline.measure_end_ns)
    until_ns = max(until_ns, timeline.measure_start_ns)
    facts = RunFacts(
        plan=make_plan(scenario, run_id),
        broker=broker,
        measured_from=timeline.measure_start_ns / NANOSECONDS,
        measured_until=until_ns / NANOSECONDS,
        accounts=None,
        confirms=reached.has_confirms,
        failures=(),
        interrupted_by=None,
        busiest_agent_share=None,
        busiest_host_share=None,
        spark_cores=None,
        clock_bound_ns=0,
        environment={},
        is_partial=True,
    )
    measured = (until_ns - timeline.measure_start_ns) / NANOSECONDS
    planned = timeline.measure_ns / NANOSECONDS
    note = (
        f"partial: {measured:.0f} of {planned:.0f} s measured; the run goes on, or its driver was "
        "killed"
    )
    document = summarise(ticks, facts).document
    return document | {
        "status": "running",
        "exit_code": None,
        "reasons": [note],
        "is_partial": True,
        "audit": verdict_of([Check("partial", "warn", note)]),
    }
