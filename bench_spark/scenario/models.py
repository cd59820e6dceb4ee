"""What a scenario file may say. Frozen values: nothing changes after parsing.

A scenario describes a load and never names a broker; `broker.py` describes a broker and never a
load, so any scenario runs on any broker. The sections `amqp`, `kafka`, `mqtt`, `http` and `tcp`
tune one protocol and are ignored by the others. Reading files, overrides and error texts live in
`loader.py` and the modules it uses; the docstring below each key is its explanation in
docs/reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bench_spark.measure.envelope import ENVELOPE_BYTES
from bench_spark.scenario.amqp_section import Amqp
from bench_spark.scenario.data_conflicts import data_conflicts
from bench_spark.scenario.dataset_section import Dataset
from bench_spark.scenario.ends_section import MOST_ENDS, Egress, Ingress, size_conflicts, sizes_of
from bench_spark.scenario.fields import Conflict, Name, Rate, Section, TagValue, refuse
from bench_spark.scenario.http_section import Http
from bench_spark.scenario.identity_section import ENVELOPE, Identity
from bench_spark.scenario.kafka_section import Kafka
from bench_spark.scenario.load_sections import (
    Consumer,
    HistogramRange,
    Load,
    Message,
    Phases,
    Sampling,
)
from bench_spark.scenario.mqtt_section import Mqtt
from bench_spark.scenario.objectives import Objectives
from bench_spark.scenario.tcp_section import Tcp
from bench_spark.scenario.topologies import (
    Sizes,
    Topology,
    Wiring,
    default_consumers,
    default_destinations,
    default_producers,
    size_problem,
    through_system,
    wiring_for,
)
from bench_spark.scenario.trace_section import OFF, Trace

_SKIPPED_WINDOWS = 2
_LONGEST_OPENING_SECONDS = 500
_NEEDS_BOUND = (
    "needs a bound: load.messages, x-max-length or x-max-length-bytes in amqp.queue.arguments, or "
    "retention.bytes in kafka.topic.properties"
)


class Scenario(Section):
    """A load, and how long it lasts."""

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
    topology_scale: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
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
    reconnect_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0
    """For how long a lost connection is opened again before the run fails; 0: it fails at once.
    The schedule goes on meanwhile, and a run that lost a connection is degraded."""
    interval_seconds: int = Field(1, ge=1, le=3600)
    """Length of the intervals over which `interval_max` and `interval_mean` are taken."""
    histogram: HistogramRange = Field(default_factory=HistogramRange)
    breakdown: Literal["none", "destination"] = "none"
    """`destination`: event rows per destination (at most 100 per agent)."""
    trace: Trace = OFF
    """Rows of single messages in the table `messages`. `all`: of every one, which are joined by
    their IDs when the run ends. `sample 1/N`: of one in N of each producer, by its number, so that
    all ends choose the same. `off`: none."""
    slo: Objectives = Field(default_factory=list)
    """What the run must reach: a list such as `["p99 < 50ms", "counts.lost == 0"]` of conditions on
    numbers of the result, by path or short name. One that is missed makes the exit code 1."""
    tags: dict[Name, TagValue] = Field(default_factory=dict)
    """Free names and values stored with the run, for finding it again by SQL."""
    amqp: Amqp = Field(default_factory=Amqp)
    kafka: Kafka = Field(default_factory=Kafka)
    mqtt: Mqtt = Field(default_factory=Mqtt)
    http: Http = Field(default_factory=Http)
    tcp: Tcp = Field(default_factory=Tcp)

    @model_validator(mode="after")
    def _keys_agree(self) -> Scenario:
        if not self.producers and not self.consumers:
            problem = "0, and so are producers: nobody would send or receive"
            refuse([Conflict(("consumers", "producers"), problem)])
        refuse(
            [
                *self._end_conflicts(),
                *self._topology_conflicts(),
                *self._opening_conflicts(),
                *self._destination_conflicts(),
                *self._name_conflicts(),
                *self._placement_conflicts(),
                *self._one_ended_conflicts(),
                *self._step_conflicts(),
                *self._transaction_conflicts(),
                *self._sampling_conflicts(),
                *self._filling_conflicts(),
                *self._trace_conflicts(),
                *data_conflicts(self),
            ]
        )
        return self

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
    def only_consumes(self) -> bool:
        return not self.producers

    @property
    def has_both_ends(self) -> bool:
        """Whether what is sent is received in the same run, so that it can be accounted for."""
        return bool(self.producers and self.consumers)

    def _end_conflicts(self) -> Iterator[Conflict]:
        if not self.has_ends_apart:
            return
        key = "ingress" if self.ingress else "egress"
        if not self.has_both_ends:
            role = "consumers" if self.only_publishes else "producers"
            yield Conflict((role, key), f"0, but {key} is for messages that come out again")
            return
        if self.topology is not None:
            yield Conflict(
                ("topology", key),
                f"{self.topology} does not go with {key}: the system between the ends decides who "
                "gets what, and every message is to come out once",
            )
        if self.breakdown == "destination":
            yield Conflict(
                ("breakdown", key),
                f"destination does not go with {key}: a message may come out of any destination",
            )
        yield from size_conflicts(
            "ingress", "producers", self.ingress, self.producers, self.destinations
        )
        yield from size_conflicts(
            "egress", "consumers", self.egress, self.consumers, self.destinations
        )

    def _topology_conflicts(self) -> Iterator[Conflict]:
        if self.subscriptions_per_consumer > 1 and self.topology != "fan-out":
            yield Conflict(
                ("subscriptions_per_consumer", "topology"),
                f"{self.subscriptions_per_consumer} needs topology fan-out, in which every "
                "subscription gets a copy of each message",
            )
        if self.topology is None:
            if self.topology_scale != 1:
                problem = f"{self.topology_scale:g} scales the sizes of a topology; there is none"
                yield Conflict(("topology_scale", "topology"), problem)
            return
        sizes = Sizes(self.producers, self.consumers, self.destinations)
        wrong = size_problem(self.topology, sizes)
        if wrong is not None:
            yield Conflict((wrong[0], "topology"), wrong[1])
        if self.load.most_awaited and self.topology == "fan-out":
            yield Conflict(
                ("load.mode", "topology"),
                f"{self.load.mode} does not go with topology fan-out: a message gives its place "
                "back by arriving, and here each arrives many times",
            )
        if self.breakdown == "destination" and not self.wiring.is_plain:
            yield Conflict(
                ("breakdown", "topology"),
                f"destination does not go with topology {self.topology}: consumers receive from "
                "several destinations at once",
            )

    def _opening_conflicts(self) -> Iterator[Conflict]:
        if self.connections_per_second is None:
            return
        taking = (self.producers + self.consumers) / self.connections_per_second
        if taking > _LONGEST_OPENING_SECONDS:
            yield Conflict(
                ("connections_per_second", "producers", "consumers"),
                f"{self.connections_per_second:g} is too slow: opening "
                f"{self.producers + self.consumers} connections would take {taking:.0f} s; "
                f"allowed: {_LONGEST_OPENING_SECONDS} s",
            )

    def _destination_conflicts(self) -> Iterator[Conflict]:
        """Where no topology has its own rules, and no end."""
        if self.has_ends_apart:
            return
        if self.has_both_ends:
            ends = min(self.producers, self.consumers)
            need = "a producer and a consumer"
        else:
            ends = self.producers + self.consumers
            need = "a producer" if self.only_publishes else "a consumer"
        if self.topology is None and self.destinations > ends:
            yield Conflict(
                ("destinations", "producers", "consumers"),
                f"{self.destinations} is too many: each needs {need}, and "
                f"there are {self.producers} and {self.consumers}",
            )

    def _name_conflicts(self) -> Iterator[Conflict]:
        if self.has_ends_apart:
            return  # each end has names of its own: see `ends.py`
        queues = self.wiring.subscriptions
        for key, name, count, what in (
            ("amqp.queue.name", self.amqp.queue.name, queues, "queues"),
            ("kafka.topic.name", self.kafka.topic.name, self.destinations, "destinations"),
            ("mqtt.topic", self.mqtt.topic, self.destinations, "destinations"),
            ("mqtt.topic_filter", self.mqtt.topic_filter, self.destinations, "destinations"),
        ):
            if name is not None and "%d" not in name and count > 1:
                what = "destinations" if self.wiring.is_plain else what
                yield Conflict(
                    (key, "destinations"),
                    f"one name for {count} {what}; put %d where the {what[:-1]}'s number goes",
                )

    def _step_conflicts(self) -> Iterator[Conflict]:
        for key, steps in (("load.steps", self.load.steps), ("message.steps", self.message.steps)):
            lasting = sum(step.seconds for step in steps)
            if lasting > self.phases.measure_seconds:
                yield Conflict(
                    (key, "phases.measure_seconds"),
                    f"last {lasting:g} s, which is more than phases.measure_seconds: "
                    f"{self.phases.measure_seconds:g}",
                )
        if self.message.steps and self.only_consumes:
            yield Conflict(
                ("message.steps", "producers"), "say what is sent, but there are no producers"
            )

    def _transaction_conflicts(self) -> Iterator[Conflict]:
        """A load that waits for messages inside transactions that wait for more of them."""
        messages = self.amqp.producer_transaction
        awaited = self.load.most_awaited
        if awaited is not None and awaited < messages:
            is_window = self.load.mode == "window"
            what = f"{awaited}" if is_window else "request, and so one message of each producer,"
            yield Conflict(
                ("load.in_flight" if is_window else "load.mode", "amqp.producer_transaction"),
                f"{what} is below amqp.producer_transaction, which is {messages}: nothing would "
                "ever be committed",
            )
        limit = self.load.backlog_limit_bytes // self.message.largest_bytes
        together = messages * self.producers
        if self.load.mode == "maximum" and messages and limit < together:
            yield Conflict(
                ("load.backlog_limit_bytes", "amqp.producer_transaction", "producers"),
                f"{self.load.backlog_limit_bytes} is less than the {together} messages of "
                f"{self.message.largest_bytes} bytes in the transactions of all producers",
            )

    def _sampling_conflicts(self) -> Iterator[Conflict]:
        if not self.sampling.samples:
            return
        if self.load.has_schedule:
            yield Conflict(
                ("sampling.samples", "load.mode"),
                f"needs load.mode window or maximum: in mode {self.load.mode} the throughput is "
                "what was asked for",
            )
        if self.load.messages is not None:
            yield Conflict(
                ("sampling.samples", "load.messages"),
                "excludes load.messages: both would end the measured phase",
            )
        if not self.has_both_ends:
            role = "consumers" if self.only_publishes else "producers"
            yield Conflict(
                ("sampling.samples", role), f"needs both ends of a destination, but {role} is 0"
            )
        if self.placement == "split":
            yield Conflict(
                ("sampling.samples", "placement"),
                "needs placement paired: whoever samples also ends the load",
            )
        if self.load.mode == "maximum" and self.sampling.skip_windows is not None:
            yield Conflict(
                ("sampling.skip_windows", "load.mode"),
                "counts windows, which load.mode maximum has none of; phases.warmup_seconds is "
                "what is skipped there",
            )

    def _filling_conflicts(self) -> Iterator[Conflict]:
        if self.load.fill_first and self.load.mode != "window":
            yield Conflict(
                ("load.fill_first", "load.mode"),
                f"needs load.mode window: mode {self.load.mode} has no window to fill",
            )

    def _trace_conflicts(self) -> Iterator[Conflict]:
        if self.trace == OFF:
            return
        if self.only_consumes:
            problem = f"{self.trace} needs producers: messages of others have no ID"
            yield Conflict(("trace", "producers"), problem)
        if self.has_envelopes and self.message.bytes < ENVELOPE_BYTES:
            yield Conflict(
                ("trace", "message.bytes"),
                f"{self.trace} needs message.bytes of at least {ENVELOPE_BYTES}: smaller bodies "
                "carry no number",
            )

    def _placement_conflicts(self) -> list[Conflict]:
        if self.placement != "split":
            return []
        conflicts = []
        if not self.has_both_ends:
            role = "consumers" if self.only_publishes else "producers"
            conflicts.append(
                Conflict(("placement", role), f"split parts both ends, but {role} is 0; use paired")
            )
        if self.agents == 1:
            conflicts.append(
                Conflict(("placement", "agents"), "split needs agents of at least 2, not 1")
            )
        if self.load.mode == "window":
            conflicts.append(
                Conflict(
                    ("load.mode", "placement"),
                    "window needs placement paired: its credit stays inside one task",
                )
            )
        # Backlog is sent minus received, which only a task that has both ends can know.
        if self.has_both_ends and self._is_unbounded_maximum:
            conflicts.append(
                Conflict(("load.mode", "placement"), f"maximum with placement split {_NEEDS_BOUND}")
            )
        return conflicts

    def _one_ended_conflicts(self) -> list[Conflict]:
        if self.message.timestamped and self.producers:
            problem = "is for runs without producers: messages of our own always are"
            return [Conflict(("message.timestamped", "producers"), problem)]
        if self.has_both_ends:
            return []
        role = "consumers" if self.only_publishes else "producers"
        if self.only_publishes and self.consumer.is_slow:
            return [Conflict(("consumer", "consumers"), "slows consumers down, but there are none")]
        if self.load.most_awaited:
            return [
                Conflict(
                    ("load.mode", role),
                    f"{self.load.mode} needs both ends, but {role} is 0: a message gives its place "
                    "back by arriving",
                )
            ]
        if self.only_publishes and self._is_unbounded_maximum:
            return [Conflict(("load.mode", role), f"maximum without consumers {_NEEDS_BOUND}")]
        return []

    @property
    def _is_unbounded_maximum(self) -> bool:
        """Nothing stops it: neither a number of messages nor the destination itself."""
        is_bounded = self.load.messages is not None or self._limits_length
        return self.load.mode == "maximum" and not is_bounded

    @property
    def _limits_length(self) -> bool:
        return (
            not self.amqp.queue.arguments.keys().isdisjoint(("x-max-length", "x-max-length-bytes"))
            or "retention.bytes" in self.kafka.topic.properties
        )

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
