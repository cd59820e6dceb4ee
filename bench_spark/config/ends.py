"""The brokers of a run: one that serves both roles, or ingresses and egresses apart.

A run always has `Ends`; only who opens connections asks whether they are apart. To its transport
each end then looks like a scenario of its own, made here: the members and destinations of that end,
and its own sections over those that all ends share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench_spark.config.broker import Broker, Credentials, resolve_credentials
from bench_spark.config.models import Scenario, merged
from bench_spark.config.problems import validated
from bench_spark.config.topologies import ThroughSystem

Role = Literal["both", "ingress", "egress"]

_OF_THE_WHOLE = {"ingress", "egress", "placement", "metrics_by"}
"""Keys of a scenario that make no sense at one end."""

_KEEPING_NOTHING = ("mqtt", "http", "tcp")
"""Kinds whose consumers get what comes while they are there, from any sender."""


@dataclass(frozen=True)
class End:
    """A broker in the part that it plays."""

    role: Role
    broker: Broker
    credentials: Credentials
    place: int = 0
    """Its number among those of its role."""

    @property
    def label(self) -> str:
        """For messages to people."""
        return f"{'broker' if self.role == 'both' else self.role} {self.broker.name}"

    @property
    def address(self) -> str:
        host, port = self.broker.address()
        return f"{host}:{port}"

    def run_id(self, run_id: str) -> str:
        """What queues, topics, groups and connections of this end are named after: an ingress and
        an egress may be at one broker."""
        if self.role == "both":
            return run_id
        return f"{run_id}-{'in' if self.role == 'ingress' else 'out'}{self.place}"

    def masked(self) -> dict[str, Any]:
        return {"role": self.role, **self.broker.masked()}


@dataclass(frozen=True)
class Ends:
    """All brokers of a run; both tuples hold the same end where one broker serves both roles."""

    ingress: tuple[End, ...]
    egress: tuple[End, ...]

    @classmethod
    def of(cls, broker: Broker, credentials: Credentials | None = None) -> Ends:
        """One broker that is both."""
        end = End("both", broker, credentials or resolve_credentials(broker))
        return cls((end,), (end,))

    @classmethod
    def apart(cls, ingress: Sequence[Broker], egress: Sequence[Broker]) -> Ends:
        def ends(role: Role, brokers: Sequence[Broker]) -> tuple[End, ...]:
            return tuple(
                End(role, broker, resolve_credentials(broker), place)
                for place, broker in enumerate(brokers)
            )

        return cls(ends("ingress", ingress), ends("egress", egress))

    @property
    def are_apart(self) -> bool:
        return self.ingress[0].role != "both"

    @property
    def every(self) -> tuple[End, ...]:
        return (*self.ingress, *self.egress) if self.are_apart else self.ingress

    @property
    def once(self) -> tuple[End, ...]:
        """One end of each broker, for what concerns the broker itself."""
        found: list[End] = []
        for end in self.every:
            if all(end.broker != known.broker for known in found):
                found.append(end)
        return tuple(found)

    @property
    def name(self) -> str:
        """What results call the whole: `rabbitmq`, `rabbitmq-to-kafka`."""
        sides = [self.ingress, self.egress] if self.are_apart else [self.ingress]
        names = ["-".join(dict.fromkeys(end.broker.name for end in side)) for side in sides]
        return "-to-".join(names)

    @property
    def shown(self) -> dict[str, Any]:
        """The first broker, masked, under the name of the whole: what results call `broker`."""
        return self.ingress[0].broker.masked() | {"name": self.name}

    @property
    def all_shown(self) -> list[dict[str, Any]]:
        """Every broker with its role, masked."""
        return [end.masked() for end in self.every]


def scenario_at(scenario: Scenario, end: End) -> Scenario:
    """The scenario as one end's transport sees it. Raises ConfigurationError where the end's own
    keys contradict the others."""
    if end.role == "both":
        return scenario
    wiring = scenario.wiring
    assert isinstance(wiring, ThroughSystem)
    is_ingress = end.role == "ingress"
    sizes = (wiring.ingress if is_ingress else wiring.egress)[end.place]
    section = (scenario.ingress if is_ingress else scenario.egress)[end.place]
    left_out = _OF_THE_WHOLE | ({"consumer"} if is_ingress else set())
    document = scenario.model_dump(exclude_unset=True, exclude=left_out)
    # The clients on the other side of this broker: to the transport they are as many as ours.
    document |= {
        "producers": sizes.members,
        "consumers": sizes.members,
        "destinations": sizes.destinations,
    }
    document = merged(document, section.own_sections())
    found = validated(Scenario, document, f"{end.role}.{end.place}")
    return found.model_copy(update=_absent(end))


def _absent(end: End) -> dict[str, Any]:
    """The role that this run does not play at that end.

    Memory that the run does not read would be emptied at once. And brokers that keep messages are
    to be asked only for those that come out from now on, as in a run that has producers.
    """
    if end.role == "ingress" and end.broker.kind != "loopback":
        return {"consumers": 0}
    if end.role == "egress" and end.broker.kind in _KEEPING_NOTHING:
        return {"producers": 0}
    return {}
