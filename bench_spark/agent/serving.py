"""Which subscriptions an agent serves, and by which lanes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bench_spark.agent.lanes import SubscriptionTable
from bench_spark.plan import Assignment, Member
from bench_spark.transports.base import Destination, Lane


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
