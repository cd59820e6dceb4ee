"""The sections `ingress` and `egress`: where messages go in, and where they come out again.

The system under test may be more than one broker: it takes messages at one place, does something
with them, and gives them out at another. Each end has a broker of its own, members of its own, and
sections of its own that go over those of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from bench_spark.scenario.amqp_section import Amqp
from bench_spark.scenario.fields import Conflict, Section
from bench_spark.scenario.http_section import Http
from bench_spark.scenario.kafka_section import Kafka
from bench_spark.scenario.keys import EXPLAINED_ELSEWHERE
from bench_spark.scenario.mqtt_section import Mqtt
from bench_spark.scenario.tcp_section import Tcp
from bench_spark.scenario.topologies import EndSizes

PROTOCOLS = ("amqp", "kafka", "mqtt", "http", "tcp")
"""Sections that an end may have of its own."""

MOST_ENDS = 100

Members = Annotated[int, Field(ge=1, le=1_000_000)]


class _End(Section):
    broker: Annotated[str, Field(min_length=1, max_length=4096)]
    """A broker file, relative to the scenario's, or the name of a shipped one."""
    destinations: Members | None = None
    """Queues or topics at this end. Member i of the end uses number i modulo this; unset: the
    scenario's `destinations`, or as many as the end has members."""
    amqp: Annotated[Amqp | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `amqp` that are different at this end."""
    kafka: Annotated[Kafka | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `kafka` that are different at this end."""
    mqtt: Annotated[Mqtt | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `mqtt` that are different at this end."""
    http: Annotated[Http | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `http` that are different at this end."""
    tcp: Annotated[Tcp | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `tcp` that are different at this end."""

    @property
    def members(self) -> int | None:
        raise NotImplementedError

    def own_sections(self) -> dict[str, Any]:
        """The keys that were given for this end, by section."""
        given = self.model_dump(exclude_unset=True, include=set(PROTOCOLS))
        return {name: keys for name, keys in given.items() if keys is not None}


class Ingress(_End):
    """A broker that producers publish to."""

    producers: Members | None = None
    """How many of the producers publish here; to be said of all ingresses or of none. Unset: they
    are dealt out evenly."""

    @property
    def members(self) -> int | None:
        return self.producers


class Egress(_End):
    """A broker that consumers receive from."""

    consumers: Members | None = None
    """How many of the consumers receive here; to be said of all egresses or of none. Unset: they
    are dealt out evenly."""

    @property
    def members(self) -> int | None:
        return self.consumers


End = Ingress | Egress


def sizes_of(ends: Sequence[End], members: int, destinations: int) -> tuple[EndSizes, ...]:
    """Members and destinations of each end. No end at all means one, of a broker to be named."""
    if not ends:
        return (EndSizes(members, min(destinations, members)),)
    told = [end.members for end in ends]
    whole, rest = divmod(members, len(ends))
    shares = [
        count if count is not None else whole + (place < rest) for place, count in enumerate(told)
    ]
    return tuple(
        EndSizes(share, end.destinations or min(destinations, max(1, share)))
        for end, share in zip(ends, shares, strict=True)
    )


def size_conflicts(
    role: str, members_key: str, ends: Sequence[End], members: int, destinations: int
) -> Iterator[Conflict]:
    """What does not add up at the ends of one role."""
    told = [end.members for end in ends if end.members is not None]
    if told and len(told) < len(ends):
        problem = f"{members_key} must be said of every entry or of none"
        yield Conflict((role,), problem)
        return
    if told and sum(told) != members:
        problem = f"have {sum(told)} {members_key} in all, but {members_key} is {members}"
        yield Conflict((role, members_key), problem)
        return
    if members < len(ends):
        problem = f"{members} is too few for {len(ends)} entries of {role}: each needs one"
        yield Conflict((members_key, role), problem)
        return
    for place, sizes in enumerate(sizes_of(ends, members, destinations)):
        if sizes.destinations > sizes.members:
            yield Conflict(
                (role,),
                f"entry {place} has {sizes.destinations} destinations, and each needs one of its "
                f"{members_key}, of which there are {sizes.members}",
            )
