"""What a scenario file may say. Frozen values: nothing changes after parsing.

A scenario describes a load and never names a broker; `broker.py` describes a broker and never a
load, so any scenario runs on any broker. The sections `amqp`, `kafka`, `mqtt`, `http` and `tcp`
tune one protocol and are ignored by the others. Which keys do not go together is for
`conflicts.py`; reading files, overrides and error texts live in `loader.py` and the modules it
uses; the docstring below each key is its explanation in docs/reference.md.

Scenarios of stored runs, which outlive the keys that they were written with. A store keeps a run's
scenario as it was dumped by the version that ran it. A key that this version no longer has is
listed among its section's `former_keys`, with its name of today or the value that describes what is
done without it: such scenarios are still read, and still compare equal to those of newer runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from bench_spark.config.conflicts import conflicts_of
from bench_spark.config.fields import Conflict, FormerKey, Name, Rate, Section, TagValue
from bench_spark.config.objectives import Objectives
from bench_spark.config.problems import keys_of
from bench_spark.config.protocols import Amqp, Http, Kafka, Mqtt, Tcp
from bench_spark.config.sections import (
    ENVELOPE,
    LARGEST_BODY_BYTES,
    MOST_ENDS,
    OFF,
    Audit,
    Consumer,
    Dataset,
    Egress,
    HistogramRange,
    Identity,
    Ingress,
    Load,
    Message,
    Phases,
    Sampling,
    Trace,
    sizes_of,
)
from bench_spark.config.topologies import (
    Topology,
    Wiring,
    default_consumers,
    default_destinations,
    default_producers,
    through_system,
    wiring_for,
)
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.errors import ConfigurationError, StoreError

_SKIPPED_WINDOWS = 2


class Scenario(Section):
    """A load, and how long it lasts."""

    former_keys: ClassVar[Mapping[str, FormerKey]] = {"breakdown": FormerKey(now="metrics_by")}

    name: Name = "unnamed"
    """What results call this scenario; unset: the file's name."""
    description: str = Field("", max_length=2000)
    """For people."""
    agents: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] = 1
    """Spark tasks that generate load; `auto`: one per free slot, but for one of every executor,
    which is left to the rolling metrics."""
    topology: Topology | None = None
    """Who receives what. `fan-in`: each consumer receives all messages of destinations of its own.
    `fan-out`: every consumer receives a copy of every message. `straight-run`: a destination for
    each pair. `round-robin`: each message goes to one of all consumers. Sizes that are not given
    are then (producers, consumers, destinations) 1000, 10, 100 for fan-in; 10, 1000, 10 for
    fan-out; 100, 100, 100 for straight-run, or all as many as there are producers; 100, 100, 10 for
    round-robin. Unset: consumer i receives from destination i modulo `destinations`, and several
    consumers of one destination share its messages."""
    topology_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """By what the topology's own sizes are multiplied, where they are not given."""
    ingress: list[Ingress] = Field(default_factory=list, max_length=MOST_ENDS)
    """Where messages go in, if the system under test is more than a broker: brokers that producers
    publish to. Unset, with `egress` set: the broker of the command line. Neither set: that broker
    is both ends."""
    egress: list[Egress] = Field(default_factory=list, max_length=MOST_ENDS)
    """Where messages come out again: brokers that consumers receive from. Unset, with `ingress`
    set: the broker of the command line."""
    producers: int = Field(default_factory=default_producers, ge=0, le=1_000_000)
    """Producers in the whole run (per agent with `load.scope: per_agent`), a connection each. 0:
    the run only consumes, from queues or topics that are there already, whatever is in them."""
    consumers: int = Field(default_factory=default_consumers, ge=0, le=1_000_000)
    """Consumers, counted in the same way. 0: the run only publishes."""
    destinations: int = Field(default_factory=default_destinations, ge=1, le=1_000_000)
    """Queues or topics. Producer i publishes to destination i modulo this number; who receives it
    is said by `topology`."""
    subscriptions_per_consumer: int = Field(1, ge=1, le=10_000)
    """Topology `fan-out` (AMQP, loopback): queues from which each consumer receives, all of which
    get a copy of every message."""
    keep_destinations: bool = False
    """Leave the queues or topics that the run has made, with what is in them, for a later run."""
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] | None = None
    """What may happen to a message when something fails, in one word for all protocols; it stands
    for keys of the protocol's own section. `at_most_once`: it may be lost (AMQP: no confirms,
    automatic acks; Kafka: acks=0; MQTT: QoS 0). `at_least_once`: it may come twice (AMQP: confirms
    and manual acks; Kafka: acks=all; MQTT: QoS 1). `exactly_once` (AMQP: refused; Kafka:
    transactions, and consumers that read what is committed; MQTT: QoS 2). Unset: as the sections
    say. A key that says otherwise is refused."""
    placement: Literal["paired", "split"] = "paired"
    """`paired`: both ends of a destination in one task where possible, so one clock measures.
    `split`: producers and consumers in different tasks."""
    message: Message = Field(default_factory=Message)
    dataset: Dataset = Field(default_factory=Dataset)
    identity: Identity = Field(default_factory=Identity)
    load: Load = Field(default_factory=Load)
    sampling: Sampling = Field(default_factory=Sampling)
    consumer: Consumer = Field(default_factory=Consumer)
    phases: Phases = Field(default_factory=Phases)
    connections_per_second: Rate | None = None
    """Most connections opened per second before the load starts, by all agents together; unset: as
    fast as the broker accepts them."""
    reconnect_seconds: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """For how long a lost connection is opened again before the run fails; 0: it fails at once.
    The schedule goes on meanwhile, and a run that lost a connection is degraded."""
    interval_seconds: int = Field(1, ge=1, le=3600)
    """Length of the intervals over which `interval_max` and `interval_mean` are taken."""
    histogram: HistogramRange = Field(default_factory=HistogramRange)
    metrics_by: Literal["none", "destination"] = "none"
    """`destination`: event rows per destination (at most 100 per agent)."""
    trace: Trace = OFF
    """Rows of single messages in the table `messages`. `all`: of every one, which are joined by
    their IDs when the run ends. `sample 1/N`: of one in N of each producer, by its number, so that
    all ends choose the same. `off`: none."""
    slo: Objectives = Field(default_factory=list)
    """What the run must reach: a list such as `["p99 < 50ms", "counts.lost == 0"]` of conditions on
    numbers of the result, by path or short name. One that is missed makes the exit code 1."""
    audit: Audit = Field(default_factory=Audit)
    tags: dict[Name, TagValue] = Field(default_factory=dict)
    """Free names and values stored with the run, for finding it again by SQL."""
    amqp: Amqp = Field(default_factory=Amqp)
    kafka: Kafka = Field(default_factory=Kafka)
    mqtt: Mqtt = Field(default_factory=Mqtt)
    http: Http = Field(default_factory=Http)
    tcp: Tcp = Field(default_factory=Tcp)

    def conflicts(self) -> Iterator[Conflict]:
        yield from conflicts_of(self)

    @property
    def has_ends_apart(self) -> bool:
        """Whether messages go in at other places than they come out of."""
        return bool(self.ingress or self.egress)

    @property
    def wiring(self) -> Wiring:
        """Who is tied to whom."""
        if self.has_ends_apart:
            return through_system(
                sizes_of(self.ingress, self.producers, self.destinations),
                sizes_of(self.egress, self.consumers, self.destinations),
            )
        return wiring_for(
            self.topology,
            self.producers,
            self.consumers,
            self.destinations,
            self.subscriptions_per_consumer,
        )

    @property
    def carrier(self) -> str:
        """What says which message is which."""
        return self.identity.carrier or ("prefix" if self.dataset.is_set else ENVELOPE)

    @property
    def has_envelopes(self) -> bool:
        """Whether bodies are made for measuring, with the numbers and times in them."""
        return self.carrier == ENVELOPE

    @property
    def has_accounts(self) -> bool:
        """Whether what is sent is also received here, by numbers that messages carry."""
        is_numbered = not self.has_envelopes or self.message.bytes >= ENVELOPE_BYTES
        return self.has_both_ends and is_numbered

    @property
    def is_paced(self) -> bool:
        """Whether this run sends, every message at a certain time."""
        return self.load.has_schedule and not self.only_consumes

    @property
    def rates_counted(self) -> int:
        """How many times `load.rate_per_second` is asked for in all."""
        return self.producers if self.load.scope == "per_producer" else 1

    @property
    def headline_measure(self) -> str:
        """What a percentile without a measure is of: in open loops the time since a message was
        due, which contains what a broker that pushes back does to it."""
        if self.only_publishes:
            return "confirm_latency"
        has_due_times = self.load.has_schedule and self.has_accounts
        return "delivery_latency" if has_due_times else "latency"

    @property
    def largest_body_bytes(self) -> int:
        """Of all messages; those of a data set are known once it has been read."""
        if not self.dataset.is_set:
            return self.message.largest_bytes
        return max(1, self.dataset.found.largest_body_bytes)

    @property
    def skipped_per_producer(self) -> int:
        """Messages of each producer that arrive before a sample begins."""
        if self.load.mode != "window":
            return 0
        windows = self.sampling.skip_windows
        return math.ceil(self.load.in_flight * (_SKIPPED_WINDOWS if windows is None else windows))

    @property
    def only_publishes(self) -> bool:
        return not self.consumers

    @property
    def most_arriving_bytes(self) -> int:
        """The largest message that may arrive: twice the largest body that is sent, and 64 KiB for
        what a system may add. What somebody else sends may be as large as any message."""
        largest = self.dataset.found.largest_body_bytes if self.dataset.found.records else 0
        if self.only_consumes or self.has_ends_apart:
            largest = LARGEST_BODY_BYTES
        return 2 * max(largest, self.message.largest_bytes) + 64 * 1024

    @property
    def only_consumes(self) -> bool:
        return not self.producers

    @property
    def has_both_ends(self) -> bool:
        """Whether what is sent is received in the same run, so that it can be accounted for."""
        return bool(self.producers and self.consumers)

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def stored_scenario(run_id: str, dumped: Mapping[str, Any]) -> Scenario:
    """The scenario of a stored run. Raises StoreError if this version cannot read it."""
    try:
        return Scenario.model_validate(_of_today(Scenario, dumped, keeps_differences=False))
    except ValidationError as error:
        raise StoreError(
            f"run {run_id} has a scenario of another version of bench-spark: "
            f"{error.errors()[0]['msg']}"
        ) from error


def comparable_scenario(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped scenario with today's keys; removed ones stay where they asked for something else
    than what is done now."""
    return _of_today(Scenario, dumped, keeps_differences=True)


def _of_today(
    section: type[Section], given: Mapping[str, Any], *, keeps_differences: bool
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    known = keys_of(section)
    for name, value in given.items():
        former = section.former_keys.get(name)
        if former and not former.now and not (keeps_differences and value != former.stood_for):
            continue
        today = (former and former.now) or name
        key = known.get(today)
        inside = (key.entry() if key.is_list else key).section if key else None
        if inside and isinstance(value, Mapping):
            value = _of_today(inside, value, keeps_differences=keeps_differences)
        elif inside and isinstance(value, list):
            value = [_of_today(inside, one, keeps_differences=keeps_differences) for one in value]
        result[today] = value
    return result


def at_whole_rate(scenario: Scenario, rate_per_second: float) -> Scenario:
    """On a schedule of so many messages per second, all producers and agents together."""
    load = scenario.load
    update: dict[str, object] = {"mode": "rate", "rate_per_second": float(rate_per_second)}
    if load.scope == "per_producer":
        update["scope"] = "total"
    elif load.scope == "per_agent":
        if scenario.agents == "auto":
            raise ConfigurationError(
                "load.scope: per_agent with agents auto has no rate of the whole run; give a "
                "number of agents"
            )
        update["rate_per_second"] = rate_per_second / scenario.agents
    return scenario.model_copy(update={"load": load.model_copy(update=update)})


def merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; whatever is no section is replaced."""
    result = dict(given)
    for key, value in over.items():
        if isinstance(value, Mapping):
            below = result.get(key)
            value = merged(below if isinstance(below, Mapping) else {}, value)
        result[key] = value
    return result
