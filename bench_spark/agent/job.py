"""What the parts of a load have in common: the job, the open connections, and who serves what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bench_spark.agent.payload import Bodies, BodySizes
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NowNs
from bench_spark.plan import Assignment, Member
from bench_spark.transports.base import Consumers, Destination, Lane, Producers, Signal


@dataclass(frozen=True)
class Job:
    """What an agent is to do, from when on, and by which clock."""

    assignment: Assignment
    timeline: Timeline
    sizes: BodySizes
    now_ns: NowNs


SubscriptionTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""[consumer lane, route] -> subscription, by its place among those that this agent serves."""


@dataclass(frozen=True)
class Lanes:
    """The open connections of both roles; a role without members has a null object."""

    producers: Producers
    consumers: Consumers
    bodies: Bodies
    """What makes bodies, and knows messages again by them."""
    subscription_of: SubscriptionTable
    addresses: Mapping[str, str]
    """By role the broker's host and port, for messages to people."""
    confirms: bool = False
    """Whether every message sent will have an outcome."""
    fills_first: bool = False
    """Whether the consumers are still to be attached, once the windows are full."""
    are_self_limiting: bool = False
    """Whether the destinations drop what is too much, so that nothing else need bound a backlog."""
    early_signals: Sequence[tuple[str, Signal]] = ()
    """Role and what happened to its lanes before the load began."""


@dataclass(frozen=True)
class Serving:
    assignment: Assignment

    @cached_property
    def subscriptions(self) -> list[int]:
        """Those that this agent serves; in its rows and sets they are known by their place."""
        wiring = self.assignment.scenario.wiring
        consumers = self.assignment.consumers
        return sorted(
            {one for member in consumers for one in wiring.subscriptions_of_consumer(member.index)}
        )

    @cached_property
    def first_destinations(self) -> list[int]:
        """Of each of these subscriptions."""
        wiring = self.assignment.scenario.wiring
        groups = map(wiring.group_of_subscription, self.subscriptions)
        return [wiring.destinations_of_group(group)[0] for group in groups]

    def subscription_of(self) -> SubscriptionTable:
        wiring = self.assignment.scenario.wiring
        places = {subscription: place for place, subscription in enumerate(self.subscriptions)}
        consumers = self.assignment.consumers
        served = [wiring.subscriptions_of_consumer(member.index) for member in consumers]
        routes = [len(member.destinations) for member in consumers]
        width = max([*routes, *map(len, served)], default=1)
        table = np.zeros((max(1, len(consumers)), width), dtype=np.int64)
        for lane, subscriptions in enumerate(served):
            table[lane, : len(subscriptions)] = [places[one] for one in subscriptions]
            if len(subscriptions) == 1:  # whichever of its destinations it came from
                table[lane, :] = places[subscriptions[0]]
        return table

    def producer_lanes(self, destinations: Mapping[int, Destination]) -> list[Lane]:
        return _lanes_of(self.assignment.producers, destinations)

    def consumer_lanes(self, destinations: Mapping[int, Destination]) -> list[Lane]:
        wiring = self.assignment.scenario.wiring
        lanes = _lanes_of(self.assignment.consumers, destinations)
        return [
            replace(lane, subscriptions=tuple(wiring.subscriptions_of_consumer(lane.member)))
            for lane in lanes
        ]


def _lanes_of(members: tuple[Member, ...], destinations: Mapping[int, Destination]) -> list[Lane]:
    return [
        Lane(member.index, tuple(destinations[index] for index in member.destinations))
        for member in members
    ]
