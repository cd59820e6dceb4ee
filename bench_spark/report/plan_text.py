"""A plan for people: who would do what, for how long, with how many slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from bench_spark.config.problems import plural
from bench_spark.config.suite import TRIAL_OVERHEAD_SECONDS, Suite, estimated_seconds, trials_of
from bench_spark.plan import (
    SLOTS_FOR_STREAMING,
    Assignment,
    Plan,
    has_to_settle,
    longest_warmup_seconds,
    measured_seconds,
)
from bench_spark.report import descriptions
from bench_spark.report.formatting import count, number_ranges, seconds
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

MOST_AGENTS_LISTED = 100


def write_plan(
    plan: Plan,
    broker: Mapping[str, Any],
    writer: TextIO,
    brokers: Sequence[Mapping[str, Any]] = (),
    note: str = "",
) -> None:
    """`broker` is the masked form of the broker; `brokers` of all, where there are several; `note`
    says why this one."""
    scenario = plan.scenario.dump()
    console = console_for(writer)
    console.print(f"{scenario['name']} on {broker['name']}{note}")
    lines = [
        *_brokers(brokers if len(brokers) > 1 else [{"role": "broker", **broker}]),
        ("load", descriptions.content_of(scenario)),
        ("lasts", _duration(plan)),
        ("expects", _expected(plan)),
        ("needs", _slots(plan)),
    ]
    if scenario["topology"]:
        lines.insert(1, ("members", descriptions.members_of(scenario)))
    print_block(console, labelled(lines))
    console.print()
    listed = plan.assignments[:MOST_AGENTS_LISTED]
    print_block(console, plain_table(_COLUMNS, [_row(assignment) for assignment in listed]))
    if len(plan.assignments) > len(listed):
        console.print(f"  ... and {count(len(plan.assignments) - len(listed))} more agents")


def _brokers(brokers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(one["role"], f"{one['kind']}, {descriptions.address_of(one)}") for one in brokers]


_COLUMNS = ("agent", "producers", "consumers", "destinations", "declares", "messages")


def _row(assignment: Assignment) -> list[str]:
    return [
        str(assignment.agent),
        number_ranges(member.index for member in assignment.producers),
        number_ranges(member.index for member in assignment.consumers),
        number_ranges(assignment.destinations),
        number_ranges(() if assignment.scenario.only_consumes else assignment.declares),
        count(assignment.expected_messages),
    ]


def _duration(plan: Plan) -> str:
    phases = plan.scenario.phases
    warmup, drain = seconds(phases.warmup_seconds), seconds(phases.drain_seconds)
    measured = seconds(measured_seconds(plan.scenario))
    if has_to_settle(plan.scenario):
        warmup = f"{warmup} to {seconds(longest_warmup_seconds(plan.scenario))}"
    if (end := descriptions.end_of(plan)) is not None:
        return f"{warmup} warm-up, then {end} ({measured} at most), {drain} drain"
    return (
        f"{seconds(plan.longest_seconds)} at most: {warmup} warm-up, {measured} measured, "
        f"drain of up to {drain}"
    )


def _expected(plan: Plan) -> str:
    if plan.expected_messages is None and plan.scenario.dataset.is_recorded:
        return "as many messages as were recorded: Spark reads the table when the run begins"
    if plan.expected_messages is None and plan.scenario.only_consumes:
        return "whatever the broker gives"
    if plan.expected_messages is None:
        times = f", each to arrive {count(plan.copies)} times" if plan.copies > 1 else ""
        return f"whatever the broker takes: the load finds its own speed{times}"
    messages = f"{plural(plan.expected_messages, 'message')} in the measured phase"
    if plan.copies == 1:
        return messages
    return (
        f"{count(plan.expected_deliveries)} deliveries: {messages}, each to {count(plan.copies)} "
        "consumers"
    )


def _slots(plan: Plan) -> str:
    agents = plural(len(plan.assignments), "agent")
    return (
        f"{plural(plan.slots_needed, 'slot')}: {agents} and {SLOTS_FOR_STREAMING} for the rolling "
        "metrics"
    )


SPARK_START_SECONDS = 12.0
"""What Spark takes to start."""


def write_suite_plan(suite: Suite, broker: str, writer: TextIO) -> None:
    """The trials, and how long they take; `broker` by its name."""
    trials = trials_of(suite)
    for trial in trials:
        skipped = f"  (skipped: {trial.skipped_because})" if trial.skipped_because else ""
        writer.write(f"{trial.number:5d}  {trial.key}{skipped}\n")
    running = sum(trial.skipped_because is None for trial in trials)
    taken = SPARK_START_SECONDS + estimated_seconds(suite, TRIAL_OVERHEAD_SECONDS)
    writer.write(f"\n{count(running)} trials on {broker}, about {seconds(round(taken))}\n")
