"""From a scenario to one Assignment per agent: who gets which producers, consumers and records; and
the course of its load: the rates it asks for over time, and how long its phases last.

The plan of a run whose data set is a table, once the table has been read: until then it is unknown
how many records it holds and, where it is recorded traffic, when they are due.

Which agent gets which producers and consumers of a run. Pure. Destinations tie members together, as
`config/topologies.py` says. Whole groups (destinations with their producers and consumers) stay
in one agent where they can, so that one clock measures both ends and the accounts close inside one
process; only when there are more agents than groups are a group's members spread over several
agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from bench_spark.agent.pacing import Pacing, RecordedSchedule, Schedule, Stream, recording_at
from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Egress, Ingress
from bench_spark.config.topologies import Wiring
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, run_tag
from bench_spark.errors import ConfigurationError

UNBOUNDED_PHASE_SECONDS = 3600.0
"""Time limit of a measured phase that is bounded by a number of messages."""
LONGEST_SETTLING = 3
"""Times the warm-up that a load has to settle."""


def total_rate_per_second(scenario: Scenario) -> float:
    """What the load asks for; with steps, during the warm-up."""
    return scenario.load.rate_per_second * scenario.rates_counted


def mean_rate_per_second(scenario: Scenario) -> float:
    """What the load asks for on average over the measured phase."""
    steps = scenario.load.steps
    if not steps:
        return total_rate_per_second(scenario)
    left_seconds = measured_seconds(scenario) - sum(step.seconds for step in steps)
    messages = sum(step.seconds * step.rate_per_second for step in steps)
    messages += left_seconds * steps[-1].rate_per_second
    return messages * scenario.rates_counted / measured_seconds(scenario)


def rate_changes(scenario: Scenario) -> Iterator[tuple[int, float]]:
    """When the rate changes after the start, and to what in all."""
    at_seconds = scenario.phases.warmup_seconds
    for step in scenario.load.steps:
        yield round(at_seconds * NANOSECONDS), step.rate_per_second * scenario.rates_counted
        at_seconds += step.seconds


def measured_seconds(scenario: Scenario) -> float:
    """Length of the measured phase; an upper limit where the load has an open end."""
    load = scenario.load
    if load.messages is None:
        return scenario.phases.measure_seconds
    if not scenario.is_paced:
        return UNBOUNDED_PHASE_SECONDS
    return load.messages / total_rate_per_second(scenario)


def has_open_end(scenario: Scenario) -> bool:
    """Whether a number of messages or of samples ends the measured phase, at a moment not known
    beforehand."""
    if scenario.sampling.samples:
        return True
    return scenario.load.messages is not None and not scenario.is_paced


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


# -- who gets what -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A producer or consumer, by its number in the whole run."""

    index: int
    destinations: tuple[int, ...]


Placed = list[tuple[tuple[Member, ...], tuple[Member, ...]]]
"""Producers and consumers of each agent."""


def placed_members(scenario: Scenario) -> Placed:
    """As `placement` says; `agents` is a number already."""
    return _place_split(scenario) if scenario.placement == "split" else _place_paired(scenario)


def _place_paired(scenario: Scenario) -> Placed:
    agents, wiring = int(scenario.agents), scenario.wiring
    groups = wiring.groups
    producers: list[list[Member]] = [[] for _ in range(agents)]
    consumers: list[list[Member]] = [[] for _ in range(agents)]
    for role, members, group_of in (
        (producers, _producers(wiring), wiring.group_of_producer),
        (consumers, _consumers(wiring), wiring.group_of_consumer),
    ):
        in_group: list[list[Member]] = [[] for _ in range(groups)]
        for member in members:
            in_group[group_of(member.index)].append(member)
        for group, together in enumerate(in_group):
            hosts = (
                range(group % agents, group % agents + 1)
                if groups >= agents
                else range(group, agents, groups)
            )
            for host, share in zip(hosts, _dealt(together, len(hosts)), strict=True):
                role[host].extend(share)
    if scenario.dataset.is_set:
        # In order of their numbers, as the records are dealt.
        producers = [sorted(made, key=lambda member: member.index) for made in producers]
    return [(tuple(made), tuple(used)) for made, used in zip(producers, consumers, strict=True)]


def _place_split(scenario: Scenario) -> Placed:
    agents, wiring = int(scenario.agents), scenario.wiring
    members = scenario.producers + scenario.consumers
    producing = round(agents * scenario.producers / members)
    producing = min(max(producing, 1, agents - scenario.consumers), agents - 1, scenario.producers)
    placed: Placed = [(tuple(share), ()) for share in _dealt(_producers(wiring), producing)]
    consuming = max(1, agents - producing)
    placed += [((), tuple(share)) for share in _dealt(_consumers(wiring), consuming)]
    return placed


def _producers(wiring: Wiring) -> list[Member]:
    return [
        Member(index, (wiring.destination_of_producer(index),)) for index in range(wiring.producers)
    ]


def _consumers(wiring: Wiring) -> list[Member]:
    numbers = [wiring.destinations_of_consumer(index) for index in range(wiring.consumers)]
    received = {of_group: tuple(of_group) for of_group in numbers}  # one for all of a group
    return [Member(index, received[of_group]) for index, of_group in enumerate(numbers)]


def _dealt(members: Sequence[Member], hands: int) -> list[list[Member]]:
    return [list(members[hand::hands]) for hand in range(hands)]


def destinations_of(members: Iterable[Member]) -> set[int]:
    return {index for member in members for index in member.destinations}


def whole_groups(wiring: Wiring, destinations: Iterable[int]) -> list[int]:
    """These destinations and all others of their groups, in order."""
    groups = {wiring.group_of_destination(index) for index in destinations}
    return sorted(index for group in groups for index in wiring.destinations_of_group(group))


def shared_destinations(wiring: Wiring, placed: Placed) -> set[int]:
    """Of groups with members in several agents."""
    seen: set[int] = set()
    shared: set[int] = set()
    for producers, consumers in placed:
        used = set(whole_groups(wiring, destinations_of(producers + consumers)))
        shared |= used & seen
        seen |= used
    return shared


def message_shares(scenario: Scenario, placed: Placed) -> list[int | None]:
    """`load.messages` dealt over agents in proportion to their producers, adding up exactly; in
    proportion to their consumers where there are no producers."""
    messages = scenario.load.messages
    if messages is None:
        return [None] * len(placed)
    if scenario.dataset.is_set and not scenario.dataset.repeat:
        return [_records_of(producers, scenario) for producers, _ in placed]
    counts = [
        len(consumers if scenario.only_consumes else producers) for producers, consumers in placed
    ]
    return list(_proportional(messages, counts))


def _records_of(producers: Sequence[Member], scenario: Scenario) -> int:
    """How many records these producers have, of which each takes every so-manieth: together they
    send each once."""
    records, step = scenario.dataset.found.records, scenario.producers
    return sum(len(range(producer.index, records, step)) for producer in producers)


def _proportional(total: int, weights: Iterable[int]) -> Iterable[int]:
    weights = list(weights)
    whole, given, seen = sum(weights), 0, 0
    for weight in weights:
        seen += weight
        upto = math.floor(total * seen / whole)
        yield upto - given
        given = upto


MOST_DESTINATIONS_BROKEN_DOWN = 100
"""Per agent: every destination has event rows of its own, each with its histograms."""
SLOTS_FOR_STREAMING = 1
"""Spark slots that the rolling metrics need beside the agents."""

_End = TypeVar("_End", Ingress, Egress)


@dataclass(frozen=True)
class Assignment:
    """One Spark task's share of a run."""

    run_id: str
    run_tag: int
    agent: int
    agents: int
    scenario: Scenario
    producers: tuple[Member, ...]
    consumers: tuple[Member, ...]
    declares: tuple[int, ...]
    """Destinations this agent makes before the start and deletes after the end, whole groups of
    them; in a run that only consumes it looks for them, and leaves them alone."""
    shares_destinations: bool
    """Whether some destination also has members in another agent."""
    messages: int | None
    """This agent's share of `load.messages`: to send or, in a run that only consumes, to
    receive."""
    rows_at: str | None = None
    """The directory with the rows of `dataset.table`, once they were put there."""
    first_measured: tuple[int, ...] | None = None
    """Per producer of the run, the number of its first message in the measured phase: for agents
    that receive messages of others, which say by IDs who they are and not when they were due."""
    streams: tuple[Stream, ...] = ()
    """For the same agents, where it can be computed: what all agents send, and when."""

    @property
    def destinations(self) -> tuple[int, ...]:
        return tuple(sorted(destinations_of(self.producers + self.consumers)))

    @property
    def producer_numbers(self) -> tuple[int, ...]:
        """Those of its producers in the whole run."""
        return tuple(member.index for member in self.producers)

    @property
    def inspects(self) -> tuple[int, ...]:
        """Subscriptions in which this agent counts what is left: those of what it declares."""
        wiring = self.scenario.wiring
        groups = sorted({wiring.group_of_destination(index) for index in self.declares})
        return tuple(sub for group in groups for sub in wiring.subscriptions_of_group(group))

    @cached_property
    def subscriptions(self) -> list[int]:
        """Those that this agent serves; in its rows and sets they are known by their place."""
        wiring = self.scenario.wiring
        served = (wiring.subscriptions_of_consumer(member.index) for member in self.consumers)
        return sorted({one for subscriptions in served for one in subscriptions})

    @cached_property
    def first_destinations(self) -> list[int]:
        """Of each of these subscriptions."""
        wiring = self.scenario.wiring
        groups = map(wiring.group_of_subscription, self.subscriptions)
        return [wiring.destinations_of_group(group)[0] for group in groups]

    @property
    def schedule(self) -> Pacing | None:
        """The stream this agent sends; None where the load has no schedule, or where it is that of
        a table which has not been read yet."""
        load, dataset = self.scenario.load, self.scenario.dataset
        if not load.has_schedule or not self.producers:
            return None
        if dataset.is_recorded:
            return None if self.rows_at is None else self._recorded_schedule(self.rows_at)
        share = len(self.producers) / self.scenario.producers
        rate = total_rate_per_second(self.scenario) * share
        period_ns = NANOSECONDS / rate
        changes = ((at_ns, total * share) for at_ns, total in rate_changes(self.scenario))
        return Schedule(rate, period_ns * self.agent / self.agents, tuple(changes))

    def _recorded_schedule(self, rows_at: str) -> RecordedSchedule:
        recording = recording_at(rows_at, self.scenario.dataset.repeat)
        return RecordedSchedule(recording, self.producer_numbers, self.scenario.producers)

    @property
    def expected_messages(self) -> int | None:
        """Messages this agent sends (receives, if the run only consumes) in the measured phase,
        where that is known beforehand."""
        if self.messages is not None:
            return self.messages
        schedule = self.schedule
        if schedule is None:
            return None if self.producers or self.scenario.only_consumes else 0
        start = round(self.scenario.phases.warmup_seconds * NANOSECONDS)
        end = start + round(measured_seconds(self.scenario) * NANOSECONDS)
        return schedule.messages_before(end) - schedule.messages_before(start)


@dataclass(frozen=True)
class Plan:
    run_id: str
    scenario: Scenario
    """As it will run: `agents` is a number, and `per_agent` counts are multiplied out."""
    assignments: tuple[Assignment, ...]

    @property
    def slots_needed(self) -> int:
        return len(self.assignments) + SLOTS_FOR_STREAMING

    @property
    def expected_messages(self) -> int | None:
        """Messages to be sent in the measured phase (received, if the run only consumes); None when
        the load finds its own speed."""
        shares = [assignment.expected_messages for assignment in self.assignments]
        return None if None in shares else sum(share or 0 for share in shares)

    @property
    def copies(self) -> int:
        """How often each message is to be received."""
        return self.scenario.wiring.copies

    @property
    def expected_deliveries(self) -> int | None:
        """What is to be received of the messages of the measured phase, every copy counted."""
        messages = self.expected_messages
        return None if messages is None else messages * self.copies

    @property
    def resolution_us(self) -> float | None:
        """What sending in batches adds at most to a time since the intended one; None where nothing
        is paced."""
        schedules = [one.schedule for one in self.assignments]
        paced = [schedule.resolution_ns for schedule in schedules if schedule is not None]
        return max(paced) / 1000 if paced else None

    @property
    def longest_seconds(self) -> float:
        load_seconds = longest_warmup_seconds(self.scenario) + measured_seconds(self.scenario)
        return load_seconds + self.scenario.phases.drain_seconds

    @property
    def is_paired(self) -> bool:
        """Whether every agent receives just what it has sent."""
        is_split = any(one.shares_destinations for one in self.assignments)
        return self.scenario.has_both_ends and not is_split


def resolve_agents(scenario: Scenario, free_slots: int, executors: int = 1) -> int:
    """How many agents to run: as asked, or for `auto` all that slots and members allow."""
    if scenario.agents != "auto":
        return scenario.agents
    is_split = scenario.placement == "split"
    # Roles apart need two agents; where there is no room for both, the slot check says so.
    most = max(2 if is_split else 1, free_slots - _slots_left_free(free_slots, executors))
    if scenario.load.scope == "per_agent":
        return most
    members = min(scenario.producers, scenario.consumers)
    if is_split or not scenario.has_both_ends:
        members = scenario.producers + scenario.consumers
    return min(most, members)


def _slots_left_free(free_slots: int, executors: int) -> int:
    """Slots that `auto` leaves to the rolling metrics: one on every executor that has several.

    So k times the executors have k times the agents, and k times the room to merge their rows.
    """
    return executors if free_slots >= 2 * executors else SLOTS_FOR_STREAMING


def make_plan(scenario: Scenario, run_id: str, free_slots: int = 2, executors: int = 1) -> Plan:
    """The whole plan; raises ConfigurationError for a load that cannot be split as asked."""
    effective = _multiplied_out(scenario, resolve_agents(scenario, free_slots, executors))
    placed = placed_members(effective)
    _refuse_idle_agents(effective, placed)
    shared = shared_destinations(effective.wiring, placed)
    if shared:
        _refuse_what_needs_pairs(effective)
    if effective.load.mode == "request" or (
        effective.load.mode == "window" and effective.producers > 1
    ):
        _refuse_anonymous_bodies(effective)
    if effective.metrics_by == "destination":
        _refuse_wide_breakdown(placed)
    declared: set[int] = set()
    assignments = []
    shares = message_shares(effective, placed)
    for agent, (producers, consumers) in enumerate(placed):
        assignment = Assignment(
            run_id=run_id,
            run_tag=run_tag(run_id),
            agent=agent,
            agents=len(placed),
            scenario=effective,
            producers=producers,
            consumers=consumers,
            declares=(),
            shares_destinations=False,
            messages=shares[agent],
        )
        touched = whole_groups(effective.wiring, assignment.destinations)
        assignments.append(
            replace(
                assignment,
                declares=tuple(index for index in touched if index not in declared),
                shares_destinations=any(index in shared for index in touched),
            )
        )
        declared.update(touched)
    if shared and effective.has_envelopes:
        assignments = _with_streams(assignments)
    elif shared:
        _refuse_unknown_phases(effective)
        assignments = with_phases_by_number(assignments)
    return Plan(run_id, effective, tuple(assignments))


def _multiplied_out(scenario: Scenario, agents: int) -> Scenario:
    update: dict[str, object] = {"agents": agents}
    if scenario.load.scope == "per_agent":
        load = scenario.load
        update |= {
            "producers": scenario.producers * agents,
            "consumers": scenario.consumers * agents,
            "destinations": scenario.destinations * agents,
            "ingress": [_end_times(end, "producers", agents) for end in scenario.ingress],
            "egress": [_end_times(end, "consumers", agents) for end in scenario.egress],
            "load": load.model_copy(
                update={
                    "scope": "total",
                    "rate_per_second": load.rate_per_second * agents,
                    "steps": [
                        step.model_copy(update={"rate_per_second": step.rate_per_second * agents})
                        for step in load.steps
                    ],
                    "messages": None if load.messages is None else load.messages * agents,
                }
            ),
        }
    return scenario.model_copy(update=update)


def _end_times(end: _End, members: str, agents: int) -> _End:
    counts = {"destinations": end.destinations, members: end.members}
    given = {key: count * agents for key, count in counts.items() if count is not None}
    return end.model_copy(update=given)


def with_phases_by_number(assignments: Sequence[Assignment]) -> list[Assignment]:
    """On a schedule it is known beforehand which message of a producer is the first that counts."""
    first = [0] * assignments[0].scenario.producers
    warmup_ns = round(assignments[0].scenario.phases.warmup_seconds * NANOSECONDS)
    for assignment in assignments:
        schedule, lanes = assignment.schedule, len(assignment.producers)
        before = 0 if schedule is None else schedule.messages_before(warmup_ns)
        for lane, member in enumerate(assignment.producers):
            first[member.index] = len(range(lane, before, lanes))
    return [replace(one, first_measured=tuple(first)) for one in _with_streams(assignments)]


def _with_streams(assignments: Sequence[Assignment]) -> list[Assignment]:
    """On a schedule every agent knows when the messages of the others are due."""
    streams = tuple(
        Stream(one.producer_numbers, schedule)
        for one in assignments
        # Recorded traffic is no rule but a table: too much to send to every agent.
        if isinstance(schedule := one.schedule, Schedule)
    )
    return [replace(one, streams=streams) for one in assignments]


def _refuse_unknown_phases(scenario: Scenario) -> None:
    if scenario.load.mode != "rate" and scenario.phases.warmup_seconds:
        raise ConfigurationError(
            f"phases.warmup_seconds: with identity.carrier {scenario.carrier} and agents that "
            f"receive what others send, load.mode {scenario.load.mode} cannot tell which messages "
            "are of the warm-up; use 0"
        )


def _refuse_idle_agents(scenario: Scenario, placed: Placed) -> None:
    idle = sum(1 for producers, consumers in placed if not producers and not consumers)
    if idle:
        raise ConfigurationError(
            f"agents: {scenario.agents} agents, but producers: {scenario.producers} and "
            f"consumers: {scenario.consumers} leave {idle} of them without work; use fewer "
            "agents, more producers and consumers, or load.scope: per_agent"
        )


def _refuse_what_needs_pairs(scenario: Scenario) -> None:
    aside = ""
    if scenario.load.mode == "window":
        what = "load.mode: window"
    elif scenario.sampling.samples:
        what = "sampling.samples:"
    elif scenario.carrier == "acknowledgement":
        what, aside = "identity.carrier: acknowledgement", "which gets the answers, "
    else:
        return
    raise ConfigurationError(
        f"{what} needs both ends of a destination in one agent, {aside}but agents: "
        f"{scenario.agents} share destinations: {scenario.destinations}; "
        f"{_what_keeps_apart(scenario)}"
    )


def _refuse_anonymous_bodies(scenario: Scenario) -> None:
    if scenario.has_envelopes and scenario.message.bytes < ENVELOPE_BYTES:
        raise ConfigurationError(
            f"message.bytes: {scenario.message.bytes} is too few for load.mode: "
            f"{scenario.load.mode} with several producers; below {ENVELOPE_BYTES} bytes a message "
            "does not say whose it is"
        )


def _refuse_wide_breakdown(placed: Placed) -> None:
    widest = max(len(destinations_of(producers + consumers)) for producers, consumers in placed)
    if widest > MOST_DESTINATIONS_BROKEN_DOWN:
        raise ConfigurationError(
            f"metrics_by: destination: an agent would have {widest} destinations; allowed: "
            f"{MOST_DESTINATIONS_BROKEN_DOWN} per agent"
        )


def _what_keeps_apart(scenario: Scenario) -> str:
    """How agents could have groups of their own."""
    if scenario.has_ends_apart:
        return "what goes in at an ingress may come out at any egress: use agents: 1"
    if scenario.topology in ("fan-out", "round-robin"):
        return f"topology {scenario.topology} ties all together: use agents: 1"
    what = "consumers" if scenario.topology == "fan-in" else "destinations"
    return f"use at least as many {what} as agents"


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
