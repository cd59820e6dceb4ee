"""Which agent gets which producers and consumers of a run. Pure.

Destinations tie members together, as `scenario/topologies.py` says. Whole groups (destinations with
their producers and consumers) stay in one agent where they can, so that one clock measures both
ends and the accounts close inside one process; only when there are more agents than groups are a
group's members spread over several agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench_spark.scenario.models import Scenario
from bench_spark.scenario.topologies import Wiring


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
    proportion to their consumers where nobody produces."""
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
