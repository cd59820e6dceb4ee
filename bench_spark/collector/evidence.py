"""What the agents' reports add up to: the accounts of a run, and an entry per agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bench_spark.agent.sampler import SAMPLE_DTYPE, Samples
from bench_spark.collector.accounts import Accounts, Ledger, Sent
from bench_spark.collector.control import RunControl
from bench_spark.collector.health import AgentHealth
from bench_spark.core.clock import NANOSECONDS
from bench_spark.load_course import has_open_end
from bench_spark.plan import Plan


def uses_confirms(control: RunControl) -> bool:
    return any(state.reports.get("ready", {}).get("confirms") for state in control.agents)


def accounts_of(plan: Plan, control: RunControl) -> Accounts | None:
    """Where every message went; None if the load never began, if the run has one end only, or if
    bodies carry no sequence."""
    if not plan.has_accounts or control.start_at_ns is None:
        return None
    ledger = Ledger(plan.scenario.wiring, uses_confirms(control))
    depths: dict[int, int | None] = {}
    for state in control.agents:
        closed = state.reports.get("closed")
        if closed is None:
            continue
        ledger.add_sent([Sent(*entry) for entry in closed["sent_by_producer"]])
        ends = [sum(closed["page_bytes"][: part + 1]) for part in range(3)]
        ledger.add_pages(
            received=state.pages[: ends[0]],
            confirmed=state.pages[ends[0] : ends[1]],
            failed=state.pages[ends[1] : ends[2]],
        )
        found = state.reports.get("inspected", {}).get("depths", {})
        depths |= {int(index): depth for index, depth in found.items()}
    closed_by = [state.reports.get("closed") for state in control.agents]
    is_complete = all(
        closed["is_settled"] if closed is not None else not plan.assignments[agent].consumers
        for agent, closed in enumerate(closed_by)
    )
    is_reported = all(closed is not None for closed in closed_by)
    return replace(ledger.accounts(depths, is_complete), is_reported=is_reported)


def measured_span(plan: Plan, control: RunControl) -> tuple[float, float] | tuple[None, None]:
    """Beginning and end of the measured phase, in seconds since the epoch; None if it never began.

    It ends early when all messages are sent. Where a run has one end only and a number of messages
    ends it, it lasts from the first of them to the last, so that waiting before and after is no
    part of it.
    """
    timeline = control.timeline
    if timeline is None:
        return None, None
    start_ns = timeline.measure_start_ns
    ended = [
        int(state.reports["produced"]["ended_ns"])
        for agent, state in enumerate(control.agents)
        if "produced" in state.reports
        and (plan.assignments[agent].producers or plan.scenario.only_consumes)
    ]
    # Agents that were killed have not said when they ended: at the latest when that was noticed.
    latest_ns = timeline.measure_end_ns if control.stopped_at_ns is None else control.stopped_at_ns
    until_ns = min(timeline.measure_end_ns, max(ended, default=latest_ns))
    if plan.scenario.only_publishes:
        firsts = [
            state.reports.get("produced", {}).get("first_measured_ns") for state in control.agents
        ]
        start_ns = min((first for first in firsts if first is not None), default=start_ns)
    elif plan.scenario.only_consumes and has_open_end(plan.scenario):
        spans = [
            span
            for state in control.agents
            if (span := state.reports.get("closed", {}).get("received_span_ns")) is not None
        ]
        if spans:
            until_ns = max(last for _, last in spans)
            first_ns = min(first for first, _ in spans)
            # All at once is no time at all: then the wait for them counts.
            start_ns = first_ns if first_ns < until_ns else start_ns
    return start_ns / NANOSECONDS, max(until_ns, start_ns) / NANOSECONDS


class Counted(NamedTuple):
    """Messages of the measured phase."""

    sent: int
    received: int


def counted_while_measured(plan: Plan, control: RunControl) -> Counted | None:
    """What was sent and received until a measured phase with an open end was over.

    As the agents counted it at that moment: events count by the second, and the last second goes on
    into the drain. None where the phase has its planned length, or an agent has not said.
    """
    if not plan.scenario.has_both_ends or not has_open_end(plan.scenario):
        return None
    reports = [state.reports.get("produced") for state in control.agents]
    told = [report for report in reports if report is not None]
    if len(told) < len(reports):
        return None
    return Counted(
        sent=sum(int(report["sent_measured"]) for report in told),
        received=sum(int(report["received_measured"]) for report in told),
    )


class AgentSamples(NamedTuple):
    agent: int
    attempt: int
    samples: Samples


def samples_of(plan: Plan, control: RunControl) -> tuple[AgentSamples, ...] | None:
    """The samples of every agent that has closed its lanes; None where none were to be taken."""
    if not plan.scenario.sampling.samples:
        return None
    return tuple(
        AgentSamples(
            agent,
            state.attempt,
            np.frombuffer(state.pages[sum(closed["page_bytes"][:3]) :], dtype=SAMPLE_DTYPE),
        )
        for agent, state in enumerate(control.agents)
        if (closed := state.reports.get("closed")) is not None
    )


def stalled_seconds(
    stalls: Sequence[tuple[int, int]], measured: tuple[float | None, float | None]
) -> float:
    """How long an agent stood still within the measured phase, by its report of when it did."""
    measured_from, measured_until = measured
    if measured_from is None or measured_until is None:
        return 0.0
    return sum(
        max(0.0, min(until / NANOSECONDS, measured_until) - max(since / NANOSECONDS, measured_from))
        for since, until in stalls
    )


def silences_of(control: RunControl, measured_from: float | None) -> tuple[dict[str, Any], ...]:
    """Consumers that got nothing for too long: who, since when in the measured phase, how long."""
    return tuple(
        {
            "consumers": list(silence.consumers),
            "after_seconds": silence.since_ns / NANOSECONDS - (measured_from or 0.0),
            "seconds": silence.length_ns / NANOSECONDS,
        }
        for silence in control.silence.silences()
    )


def agent_entry(
    control: RunControl,
    agent: int,
    health: AgentHealth,
    measured: tuple[float | None, float | None],
) -> dict[str, Any]:
    """One agent in the result: where it ran, what it did, how well it kept time."""
    state = control.agents[agent]
    probed = state.reports.get("probed", {})
    closed = state.reports.get("closed", {})
    began_ns = state.reports.get("produced", {}).get("began_ns")
    late_us = None
    if began_ns is not None and control.start_at_ns is not None:
        late_us = (int(began_ns) - control.start_at_ns) / 1000
    return {
        "agent": agent,
        "host": probed.get("host", {}).get("host"),
        "executor": probed.get("executor"),
        "connections": state.reports.get("ready", {}).get("connections"),
        "sent": state.progress.get("sent"),
        "received_once": state.progress.get("received_once"),
        "cpu_seconds": health.cpu_seconds.get(agent),
        "started_late_us": late_us,
        "clock_error_us": health.clock_error_ns(agent) / 1000,
        "stalled_seconds": stalled_seconds(closed.get("stalls", ()), measured),
        "outages": closed.get("outages", []),
        "answers_by_status": closed.get("answers_by_status", {}),
        "trace": closed.get("trace"),
    }
