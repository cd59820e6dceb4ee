"""How producers and consumers are tied together: by hand, or by the name of a topology. Pure.

Producer i publishes to destination i modulo the number of destinations, always. Destinations fall
into *groups* that have nothing to do with each other: destination d is in group d modulo the number
of groups. A *subscription* covers all destinations of its group, and gets every message of them
once, whichever of its consumers takes it. Several subscriptions of one group get a copy each.

    topology       groups         subscriptions per group   consumers per subscription
    none           destinations   1                         shared out
    fan-in         consumers      1                         1
    fan-out        1              consumers (times k)       1
    straight-run   destinations   1                         1
    round-robin    1              1                         all

So two numbers, groups and copies, say everything. Where there are more subscriptions than consumers
(a fan-out in which each has k of them), a consumer serves several. What destinations and
subscriptions are made of is each protocol's own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Topology = Literal["fan-in", "fan-out", "straight-run", "round-robin"]


@dataclass(frozen=True)
class Sizes:
    producers: int
    consumers: int
    destinations: int


DEFAULT_SIZES: Mapping[str, Sizes] = {
    "fan-in": Sizes(1000, 10, 100),
    "fan-out": Sizes(10, 1000, 10),
    "straight-run": Sizes(100, 100, 100),
    "round-robin": Sizes(100, 100, 10),
}
_SINGLE = Sizes(1, 1, 1)


def _sizes(known: Mapping[str, Any]) -> Sizes:
    named = DEFAULT_SIZES.get(known.get("topology") or "")
    if named is None:
        return _SINGLE
    scale = float(known.get("topology_scale", 1))
    return Sizes(*(max(1, round(size * scale)) for size in astuple(named)))


def default_producers(known: Mapping[str, Any]) -> int:
    """From the keys that were read before this one, as all of these."""
    return _members(known.get("ingress")) or _sizes(known).producers


def default_consumers(known: Mapping[str, Any]) -> int:
    """Never more than the producers allow, where each consumer needs one."""
    at_ends = _members(known.get("egress"))
    if at_ends:
        return at_ends
    size, producers = _sizes(known).consumers, int(known.get("producers", 1))
    if known.get("topology") == "straight-run":
        return producers
    return min(size, producers) if known.get("topology") == "fan-in" else size


def default_destinations(known: Mapping[str, Any]) -> int:
    """Each destination needs a producer, and each consumer of a fan-in a destination."""
    size, producers = _sizes(known).destinations, int(known.get("producers", 1))
    if known.get("topology") == "straight-run":
        return producers
    if known.get("topology") == "fan-in":
        size = max(size, int(known.get("consumers", 1)))
    return max(1, min(size, producers)) if known.get("topology") else size


def _members(ends: Sequence[Any] | None) -> int:
    """As many members as these ends say, or one each."""
    return sum(end.members or 1 for end in ends or ())


@dataclass(frozen=True)
class Wiring:
    """Who publishes where, and who receives it."""

    producers: int
    consumers: int
    destinations: int
    groups: int
    copies: int
    """Subscriptions of each group: how often a message is to be received."""

    @property
    def subscriptions(self) -> int:
        return self.groups * self.copies

    @property
    def is_plain(self) -> bool:
        """Whether every destination has one subscription, of the same number, for itself."""
        return self.copies == 1 and self.groups == self.destinations

    @property
    def consumers_per_subscription(self) -> int:
        """At most."""
        return -(-self.consumers // self.subscriptions)

    def destination_of_producer(self, producer: int) -> int:
        return producer % self.destinations

    def subscriptions_of_consumer(self, consumer: int) -> range:
        """One, unless there are more of them than consumers."""
        return range(consumer % self.subscriptions, self.subscriptions, self.consumers)

    def destinations_of_consumer(self, consumer: int) -> range:
        return self.destinations_of_group(self.group_of_consumer(consumer))

    def group_of_destination(self, destination: int) -> int:
        return destination % self.groups

    def group_of_producer(self, producer: int) -> int:
        return self.group_of_destination(self.destination_of_producer(producer))

    def group_of_consumer(self, consumer: int) -> int:
        return self.group_of_subscription(self.subscriptions_of_consumer(consumer)[0])

    def group_of_subscription(self, subscription: int) -> int:
        return subscription % self.groups

    def destinations_of_group(self, group: int) -> range:
        return range(group, self.destinations, self.groups)

    def subscriptions_of_group(self, group: int) -> range:
        return range(group, self.subscriptions, self.groups)

    def consumers_of_subscription(self, subscription: int) -> range:
        """One, unless several share it."""
        first = subscription % min(self.subscriptions, max(1, self.consumers))
        return range(first, self.consumers, self.subscriptions)

    def producers_of_group(self, group: int) -> Iterator[int]:
        rounds = range(0, self.producers, self.destinations)
        for first in rounds:
            for destination in self.destinations_of_group(group):
                if first + destination < self.producers:
                    yield first + destination

    @property
    def streams(self) -> int:
        """Most producers of a group; a message is known by its subscription and its stream."""
        return max(1, int(self.stream_of_producer.max(initial=0)) + 1)

    @property
    def stream_of_producer(self) -> npt.NDArray[np.int64]:
        """Per producer its rank among the producers of its group."""
        round_, destination = np.divmod(
            np.arange(self.producers, dtype=np.int64), max(1, self.destinations)
        )
        sizes = np.array([len(self.destinations_of_group(g)) for g in range(self.groups)])
        ranks: npt.NDArray[np.int64] = (
            round_ * sizes[destination % self.groups] + destination // self.groups
        )
        return ranks


@dataclass(frozen=True)
class EndSizes:
    """Members and destinations of one ingress or egress."""

    members: int
    destinations: int


@dataclass(frozen=True)
class ThroughSystem(Wiring):
    """Messages go in at some ends and come out at others; what is between is not ours to know.

    So there is one group and one subscription: a message of any producer is to arrive once, at
    whichever egress. Destinations are numbered through, those of the ingresses first.
    """

    ingress: tuple[EndSizes, ...]
    egress: tuple[EndSizes, ...]

    @property
    def is_plain(self) -> bool:
        return False

    def destination_of_producer(self, producer: int) -> int:
        return _destination_of(self.ingress, producer)

    def destinations_of_consumer(self, consumer: int) -> range:
        first_egress = sum(end.destinations for end in self.ingress)
        own = first_egress + _destination_of(self.egress, consumer)
        return range(own, own + 1)

    def producers_of_group(self, group: int) -> Iterator[int]:
        yield from range(self.producers)

    @property
    def stream_of_producer(self) -> npt.NDArray[np.int64]:
        return np.arange(self.producers, dtype=np.int64)


def _destination_of(ends: Sequence[EndSizes], member: int) -> int:
    """A member's destination, both numbered through all ends."""
    first = 0
    for end in ends:
        if member < end.members:
            return first + member % end.destinations
        member -= end.members
        first += end.destinations
    raise ValueError("there is no such member")


def through_system(ingress: Sequence[EndSizes], egress: Sequence[EndSizes]) -> ThroughSystem:
    return ThroughSystem(
        producers=sum(end.members for end in ingress),
        consumers=sum(end.members for end in egress),
        destinations=sum(end.destinations for end in (*ingress, *egress)),
        groups=1,
        copies=1,
        ingress=tuple(ingress),
        egress=tuple(egress),
    )


def wiring_for(
    topology: Topology | None,
    producers: int,
    consumers: int,
    destinations: int,
    subscriptions_per_consumer: int = 1,
) -> Wiring:
    groups, copies = {
        None: (destinations, 1),
        "fan-in": (consumers, 1),
        "fan-out": (1, consumers * subscriptions_per_consumer),
        "straight-run": (destinations, 1),
        "round-robin": (1, 1),
    }[topology]
    return Wiring(producers, consumers, destinations, groups, copies)


def size_problem(topology: Topology, sizes: Sizes) -> tuple[str, str] | None:
    """Which of `producers`, `consumers`, `destinations` cannot be, and why."""
    producers, consumers, destinations = sizes.producers, sizes.consumers, sizes.destinations
    for key, size in (("producers", producers), ("consumers", consumers)):
        if not size:
            return key, f"0, but topology {topology} needs both ends"
    if topology == "straight-run" and not producers == consumers == destinations:
        return (
            "consumers" if producers != consumers else "destinations",
            "topology straight-run has a destination for each pair, so there must be as many "
            f"producers, consumers and destinations; there are {producers}, {consumers} and "
            f"{destinations}",
        )
    if destinations > producers:
        return (
            "destinations",
            f"{destinations} is too many: each needs a producer, and there are {producers}",
        )
    if topology == "fan-in" and consumers > destinations:
        return (
            "consumers",
            f"{consumers} is too many: in topology fan-in each receives from destinations of its "
            f"own, and there are {destinations}",
        )
    return None
