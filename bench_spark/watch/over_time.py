"""What a followed run looks like over time: the charts of its report, as far as they go. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.agent.timeline import Timeline as Phases
from bench_spark.core.clock import NANOSECONDS
from bench_spark.load_course import has_open_end
from bench_spark.report.charts import Line
from bench_spark.report.time_charts import TimeChart, time_charts
from bench_spark.report.timeline import Timeline
from bench_spark.watch.agent_rows import CONSUMER
from bench_spark.watch.run_state import KEPT_SECONDS, RunState

_SPREAD = ("slowest", "median", "fastest")


def timeline_so_far(state: RunState) -> Timeline | None:
    """None before the load starts."""
    if state.timeline is None:
        return None
    return Timeline(
        throughput=list(state.throughput.values()),
        durations={measure: list(rows.values()) for measure, rows in state.durations.items()},
        broker={source: list(rows.values()) for source, rows in state.broker.items()},
        generator=[
            {"second": state.second_of(each.started_at), "busy": each.busiest_share}
            for each in state.agents.by_tick.values()
            if each.busiest_share is not None
        ],
        measured=(
            (state.timeline.measure_start_ns - state.origin_ns) / NANOSECONDS,
            _measured_until(state, state.timeline),
        ),
    )


def _measured_until(state: RunState, phases: Phases) -> float:
    """As the run's row tells it at the end; before, as it is planned."""
    if state.run is not None and state.run["measured_until"] is not None:
        return state.second_of(state.run["measured_until"])
    ends_ns = phases.measure_end_ns
    if state.plan is not None and has_open_end(state.plan.scenario):
        ends_ns = max(phases.measure_start_ns, state.newest_ns)
    return (ends_ns - state.origin_ns) / NANOSECONDS


def charts_so_far(state: RunState, timeline: Timeline) -> Iterator[TimeChart]:
    yield from time_charts(timeline)
    if len(state.agents.by_number) > 1:
        yield _agents_apart(state, timeline)


def span_of(timeline: Timeline) -> tuple[float, float]:
    """The time axis: the whole run if it is short, the last minutes of a long one."""
    first, last = timeline.span
    if last - first <= KEPT_SECONDS:
        return first, last
    newest = max([row["second"] for row in timeline.throughput] or [last])
    return max(first, newest - KEPT_SECONDS), newest


def _agents_apart(state: RunState, timeline: Timeline) -> TimeChart:
    """How far the agents are apart: hundreds of lines could not be told from each other."""
    assert state.timeline is not None
    rows = []
    for tick, each in sorted(state.agents.by_tick.items()):
        spread = each.spread_now
        if spread is not None:
            second = (state.timeline.tick_end_ns(tick) - state.origin_ns) / NANOSECONDS
            rows.append({"second": second, **dict(zip(_SPREAD, spread, strict=True))})
    does = "received" if state.agents.counted_role == CONSUMER else "sent"
    return TimeChart(
        "Agents",
        f"messages {does} per second by the slowest, the median and the fastest agent",
        "rate",
        rows,
        [Line(name, name) for name in _SPREAD],
    )
