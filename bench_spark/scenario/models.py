"""What a scenario file may say. Frozen values: nothing changes after parsing.

A scenario describes a load and never names a broker; `broker.py` describes a broker and never a
load, so any scenario runs on any broker. The sections `amqp`, `kafka` and `mqtt` tune one protocol
and are ignored by the others. Reading files, overrides and error texts live in `loader.py` and the
modules it uses; the docstring below each key is its explanation in docs/reference.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bench_spark.measure.envelope import ENVELOPE_BYTES, TIMESTAMP_BYTES
from bench_spark.scenario.topologies import (
    Sizes,
    Topology,
    Wiring,
    default_consumers,
    default_destinations,
    default_producers,
    size_problem,
    wiring_for,
)

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
PLAIN_NAME_RULE = "letters, digits, '.', '_' and '-', at most 120, the first a letter or digit"

_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_WIRE_NAME_BYTES = 200
_MQTT_TEXT_BYTES = 65535
_MQTT_WILDCARDS = "+#"
_SKIPPED_WINDOWS = 2
_LONGEST_OPENING_SECONDS = 500
LARGEST_BODY_BYTES = 128 * 1024 * 1024


_NEEDS_BOUND = (
    "needs a bound: load.messages, x-max-length or x-max-length-bytes in amqp.queue.arguments, or "
    "retention.bytes in kafka.topic.properties"
)


class Conflict(NamedTuple):
    """Keys that contradict each other: the first is the one to name, relative to its section."""

    keys: tuple[str, ...]
    problem: str


def refuse(conflicts: Sequence[Conflict]) -> None:
    """Raise for all conflicts at once, in a form from which `problems.py` can name each key."""
    if conflicts:
        text = "; ".join(
            f"{'.'.join(conflict.keys[:1])}: {conflict.problem}" for conflict in conflicts
        )
        raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicts})


def plain_name(value: str) -> str:
    if not PLAIN_NAME.fullmatch(value):
        raise ValueError(f"allowed: {PLAIN_NAME_RULE}")
    return value


def _wire_name(value: str) -> str:
    """AMQP carries names in 255 bytes; the run's own additions need some of them."""
    if len(value.encode("utf-8", "replace")) > _WIRE_NAME_BYTES or not value.isprintable():
        raise ValueError(f"allowed: printable text of at most {_WIRE_NAME_BYTES} bytes")
    return value


def _kafka_topic(value: str) -> str:
    if not _KAFKA_TOPIC.fullmatch(value.replace("%d", "0")):
        raise ValueError("allowed: letters, digits, '.', '_', '-' and '%d', at most 200")
    return value


def _mqtt_text(value: str) -> str:
    """What MQTT can carry as text: topics, filters and client ids."""
    if not value or "\0" in value or len(value.encode("utf-8", "replace")) > _MQTT_TEXT_BYTES:
        raise ValueError(f"allowed: 1 to {_MQTT_TEXT_BYTES} bytes of text without NUL")
    return value


def _mqtt_topic(value: str) -> str:
    if any(mark in value for mark in _MQTT_WILDCARDS):
        raise ValueError(
            "has a wildcard, and nothing can be published to a pattern; allowed: a topic without + "
            "and # (mqtt.topic_filter is what consumers subscribe to)"
        )
    return _mqtt_text(value)


def _mqtt_filter(value: str) -> str:
    levels = _mqtt_text(value).split("/")
    for place, level in enumerate(levels):
        is_bad_plus = "+" in level and level != "+"
        is_bad_hash = "#" in level and (level != "#" or place < len(levels) - 1)
        if is_bad_plus or is_bad_hash:
            raise ValueError("allowed: + in place of a whole level, # as the last level")
    if levels[0] == "$share":
        raise ValueError("has $share already; allowed: a filter, with the group in shared_group")
    return value


def _mqtt_group(value: str) -> str:
    if any(mark in value for mark in "/+#"):
        raise ValueError("allowed: text without /, + and #")
    return _mqtt_text(value)


def _mqtt_version(value: object) -> object:
    """A YAML file that says 5 means the number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _plain_value(value: object) -> object:
    """One refusal for all of `str | int | float | bool`, where the union would give four."""
    is_plain = (
        isinstance(value, str)
        or (isinstance(value, int) and abs(value) < 2**63)
        or (isinstance(value, float) and math.isfinite(value))
    )
    if not is_plain:
        raise ValueError("allowed: text, a number, true or false")
    return value


Name = Annotated[str, AfterValidator(plain_name)]
WireName = Annotated[str, AfterValidator(_wire_name)]
Seconds = Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=100_000_000, allow_inf_nan=False)]
PropertyName = Annotated[str, Field(min_length=1, max_length=255)]
PropertyValue = Annotated[str | int | float | bool, BeforeValidator(_plain_value)]
ClientProperties = dict[PropertyName, PropertyValue]


class Section(BaseModel):
    """Keys that belong together. Inputs stay out of errors: a broker's URI may hold a password."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class SizeStep(Section):
    """A part of the measured phase."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
    """How long it lasts."""
    bytes: int = Field(ge=ENVELOPE_BYTES, le=LARGEST_BODY_BYTES)
    """Size of the bodies that are sent meanwhile."""


class Message(Section):
    """What is sent."""

    bytes: int = Field(1000, ge=TIMESTAMP_BYTES, le=LARGEST_BODY_BYTES)
    """Size of the body. From 32 bytes on, losses and duplicates are accounted for."""
    steps: list[SizeStep] = Field(default_factory=list, max_length=10_000)
    """A size that changes in the measured phase: a list such as
    `[{seconds: 10, bytes: 100}, {seconds: 5, bytes: 100000}]`. A message has the size of the moment
    at which it is sent. The last step goes on until the end; the warm-up has `bytes`."""
    padding: Literal["random", "zero"] = "random"
    """What fills the body behind the measurement data."""
    timestamped: bool = False
    """In a run without producers: whoever publishes puts when it did so (nanoseconds since the
    epoch, 64 bits, little-endian) into the first 8 bytes of every body, so that `latency` can be
    measured. The messages of runs with producers always have it."""

    @property
    def largest_bytes(self) -> int:
        return max([self.bytes, *(step.bytes for step in self.steps)])

    @model_validator(mode="after")
    def _steps_have_an_envelope(self) -> Message:
        if self.steps and self.bytes < ENVELOPE_BYTES:
            problem = f"{self.bytes} is below {ENVELOPE_BYTES}, which a size that changes needs"
            refuse([Conflict(("bytes", "steps"), problem)])
        return self


class LoadStep(Section):
    """A part of the measured phase."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
    """How long it lasts."""
    rate_per_second: Rate
    """Messages per second asked for meanwhile, counted as `load.scope` says."""


class Load(Section):
    """How much is sent, and what decides when."""

    mode: Literal["rate", "maximum", "window"] = "rate"
    """`rate`: open loop on a fixed schedule. `maximum`: as fast as back-pressure and
    `backlog_limit_bytes` allow. `window`: closed loop of `in_flight` messages per producer."""
    rate_per_second: Rate = 10_000.0
    """Messages per second asked for in mode `rate`, counted as `scope` says."""
    steps: list[LoadStep] = Field(default_factory=list, max_length=10_000)
    """A rate that changes in the measured phase, in mode `rate`: a list such as
    `[{seconds: 10, rate_per_second: 1000}, {seconds: 5, rate_per_second: 8000}]`. The last step
    goes on until the end; the warm-up has `rate_per_second`."""
    scope: Literal["total", "per_producer", "per_agent"] = "total"
    """What `rate_per_second` counts. With `per_agent`, producers, consumers, destinations and
    messages are per agent too, so that adding executors adds load."""
    in_flight: int = Field(100, ge=1, le=10_000_000)
    """Messages in flight per producer in mode `window`."""
    fill_first: bool = False
    """Mode `window`: producers send their whole window before any consumer attaches. With
    `amqp.immediate` consumers attach first all the same: the broker would return every message."""
    messages: int | None = Field(None, ge=1, le=10**15)
    """End the measured phase after this many messages instead of after `measure_seconds`. They are
    counted when sent; without producers when received, and then the run also ends once nothing has
    arrived for `drain_seconds`."""
    backlog_limit_bytes: int = Field(64 * 1024 * 1024, ge=1, le=2**50)
    """Mode `maximum` pauses while more than this is sent but not yet received."""

    @model_validator(mode="after")
    def _steps_are_a_schedule(self) -> Load:
        if self.steps and self.mode != "rate":
            refuse([Conflict(("steps", "mode"), f"need mode rate; {self.mode} has no schedule")])
        if self.steps and self.messages is not None:
            problem = "exclude messages: their length is given in seconds"
            refuse([Conflict(("steps", "messages"), problem)])
        return self


class Sampling(Section):
    """Throughput sampled at the consumer: the inverse of the time between messages.

    Per pair, which is a destination with its producers and consumers.
    """

    samples: int = Field(0, ge=0, le=10_000)
    """Samples per pair; 0 turns sampling off. The measured phase ends when every pair has its
    samples, and after `phases.measure_seconds` at the latest. Needs mode `window` or `maximum`."""
    threshold_seconds: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 0.01
    """A sample is as many messages as it takes to exceed this time."""
    skip_windows: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    """Mode `window`: how many windows of messages a pair receives before its first sample begins;
    unset: 2. What arrives in the warm-up is never sampled, whatever the mode."""


class Phases(Section):
    """How long it lasts."""

    warmup_seconds: Seconds = 5.0
    """Sent and recorded, but left out of the results."""
    measure_seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)] = 10.0
    """What the results are about."""
    drain_seconds: Seconds = 5.0
    """How long to wait, at most, for messages still on their way after the last was sent."""


class Consumer(Section):
    """Consumers that are slow on purpose."""

    rate_per_second: Annotated[float, Field(ge=1, le=100_000_000, allow_inf_nan=False)] | None = (
        None
    )
    """Most messages that one consumer takes per second, evenly; unset: no limit."""
    processing_us: int = Field(0, ge=0, le=1_000_000)
    """How long a consumer is busy with each message. It takes the next one, and acknowledges this
    one, when that time is over."""

    @property
    def is_slow(self) -> bool:
        return self.rate_per_second is not None or self.processing_us > 0


class HistogramRange(Section):
    """What the latency histograms can hold."""

    highest_seconds: Annotated[float, Field(ge=0.001, le=2000, allow_inf_nan=False)] = 10.0
    """Upper end of the latency histograms; slower messages are counted as overflow."""

    @property
    def highest_us(self) -> int:
        return round(self.highest_seconds * 1_000_000)


class AmqpQueue(Section):
    """The queues that are declared for the run."""

    name: Annotated[WireName, Field(min_length=1)] | None = None
    """Queue name; `%d` stands for the destination's number. Unset: a name of the run's own. A queue
    of that name that is there already is used as it is, and never deleted."""
    first_number: int = Field(0, ge=0, le=10**9)
    """The first destination's number, wherever `%d` stands in names, keys, headers and arguments:
    with 1 and 10 destinations, `perf-test-%d` is `perf-test-1` to `perf-test-10`."""
    server_named: bool = False
    """Let the broker choose the names."""
    durable: bool = False
    """The queue survives a restart of the broker."""
    auto_delete: bool = False
    """The broker deletes the queue when its last consumer leaves."""
    arguments: ClientProperties = Field(default_factory=dict)
    """Queue arguments such as `x-max-length: 10000`, passed as they are."""

    @model_validator(mode="after")
    def _one_name(self) -> AmqpQueue:
        if self.server_named and self.name is not None:
            refuse([Conflict(("server_named", "name"), "excludes name; give one of the two")])
        return self


class AmqpExchange(Section):
    """Where messages are published."""

    name: WireName = ""
    """The exchange published to; empty is the default exchange, which needs no binding."""
    type: Literal["direct", "topic", "fanout", "headers"] = "direct"
    """Type of a named exchange, which is declared for the run."""
    durable: bool = False
    """A named exchange survives a restart of the broker."""
    binding_arguments: ClientProperties = Field(default_factory=dict)
    """What a `headers` exchange compares with a message's headers (`amqp.headers`), and how:
    `x-match: all` or `any`. `%d` in a text stands for the destination's number. None: every message
    passes."""

    @model_validator(mode="after")
    def _arguments_are_for_headers(self) -> AmqpExchange:
        if self.binding_arguments and (self.type != "headers" or not self.name):
            refuse(
                [
                    Conflict(
                        ("binding_arguments", "type", "name"),
                        "only a named exchange of type headers looks at them",
                    )
                ]
            )
        return self


class AmqpPolicy(Section):
    """A policy of RabbitMQ for the queues of the run, there while it lasts; needs `management_uri`
    in the broker file. Mirrors: `definition: {ha-mode: exactly, ha-params: 2}`."""

    definition: Annotated[ClientProperties, Field(min_length=1)]
    """What the policy sets, passed as it is."""
    pattern: Annotated[WireName, Field(min_length=1)] | None = None
    """Regular expression for the names of the queues it is for; unset: exactly those of the run."""
    priority: int = Field(0, ge=0, le=1_000_000)
    """Among policies that match one queue the highest wins."""


class Amqp(Section):
    """AMQP 0-9-1 only; other protocols ignore it."""

    queue: AmqpQueue = Field(default_factory=AmqpQueue)
    exchange: AmqpExchange = Field(default_factory=AmqpExchange)
    policy: AmqpPolicy | None = None
    routing_key: WireName | None = None
    """Routing key, also the binding's; `%d` stands for the destination's number. Unset: the
    queue's name."""
    routing_keys: int = Field(1, ge=1, le=10_000)
    """Above 1: every message takes one of so many keys at random, the routing key with a number
    behind it (`KEY.00` to `KEY.99`). Each queue is bound to all of its keys, so the exchange has
    work to do; it must be a named one."""
    binding_key: WireName | None = None
    """Pattern by which queues are bound to a `topic` exchange, as `orders.*.%d` or `orders.#`;
    unset: what fits the routing keys."""
    headers: ClientProperties = Field(default_factory=dict)
    """Headers of every message, as a `headers` exchange compares them; `%d` in a text stands for
    the destination's number."""
    confirms: int = Field(0, ge=0, le=10_000_000)
    """Publisher confirms: most messages unconfirmed per producer; 0 turns confirms off."""
    producer_transaction: int = Field(0, ge=0, le=10_000_000)
    """Messages per transaction (tx.commit) of a producer; 0 turns transactions off. A producer
    sends nothing more until the broker has committed, which counts as its confirm."""
    consumer_transaction: int = Field(0, ge=0, le=65535)
    """With manual acks: messages whose acks are committed together; 0 turns transactions off."""
    mandatory: bool = False
    """Ask the broker to return messages that reach no queue; they are counted as `returned`."""
    immediate: bool = False
    """Ask the broker to return messages that no consumer can take at once; they are counted as
    `returned`. RabbitMQ has refused that since 3.0 (540 NOT_IMPLEMENTED); Qpid Broker-J returns
    many even where a consumer waits."""
    persistent: bool = False
    """Delivery mode: persistent instead of transient."""
    ack: Literal["auto", "manual"] = "auto"
    """`auto`: the broker forgets a message once it is sent to a consumer. `manual`: only when the
    consumer has acknowledged it."""
    ack_every: int = Field(1, ge=1, le=65535)
    """With manual acks: acknowledge every so many messages at once (multiple=true above 1). Fewer
    are acknowledged when none has come for a second, and at the end."""
    prefetch: int | None = Field(None, ge=0, le=65535)
    """Unacknowledged messages per consumer, 0 for no limit; unset: twice `ack_every` or
    `consumer_transaction`, at least 200."""
    heartbeat_seconds: int = Field(30, ge=0, le=3600)
    """How often both sides prove that they are alive; 0 turns heartbeats off."""
    plane: Literal["fast", "pika"] = "fast"
    """Who moves the data: frames built and decoded in batches, or pika's own methods, message by
    message: slow, and the reference."""

    @model_validator(mode="after")
    def _prefetch_covers_acks(self) -> Amqp:
        if self.ack == "manual" and self.prefetch and self.prefetch < self.ack_every:
            below = f"{self.prefetch} is below ack_every, which is {self.ack_every}"
            refuse([Conflict(("prefetch", "ack_every"), f"{below}: nothing would be acknowledged")])
        return self

    @model_validator(mode="after")
    def _keys_suit_the_exchange(self) -> Amqp:
        refuse(list(self._key_conflicts()))
        return self

    def _key_conflicts(self) -> Iterator[Conflict]:
        if self.routing_keys > 1 and not self.exchange.name:
            yield Conflict(
                ("routing_keys", "exchange.name"),
                f"{self.routing_keys} keys need a named exchange: the default one has one key per "
                "queue, its name",
            )
        if self.binding_key is not None and (
            not self.exchange.name or self.exchange.type != "topic"
        ):
            yield Conflict(
                ("binding_key", "exchange.type", "exchange.name"),
                "only a named exchange of type topic has patterns; others are bound by the routing "
                "key",
            )

    @model_validator(mode="after")
    def _transactions_agree(self) -> Amqp:
        refuse([*self._producer_transaction_conflicts(), *self._consumer_transaction_conflicts()])
        return self

    def _producer_transaction_conflicts(self) -> Iterator[Conflict]:
        if self.producer_transaction and self.confirms:
            yield Conflict(
                ("producer_transaction", "confirms"),
                "excludes confirms: brokers refuse both on one channel",
            )

    def _consumer_transaction_conflicts(self) -> Iterator[Conflict]:
        messages = self.consumer_transaction
        if messages and self.ack == "auto":
            yield Conflict(
                ("consumer_transaction", "ack"), "commits acknowledgements: it needs ack: manual"
            )
        if messages % self.ack_every:
            yield Conflict(
                ("consumer_transaction", "ack_every"),
                f"{messages} is no multiple of ack_every, which is {self.ack_every}",
            )
        if self.prefetch and self.prefetch < messages:
            yield Conflict(
                ("prefetch", "consumer_transaction"),
                f"{self.prefetch} is below consumer_transaction, which is {messages}: nothing "
                "would be committed",
            )

    @property
    def may_return(self) -> bool:
        """Whether the broker gives back what it cannot place."""
        return self.mandatory or self.immediate

    @property
    def effective_prefetch(self) -> int:
        if self.prefetch is not None:
            return self.prefetch
        return min(65535, max(200, 2 * self.ack_every, 2 * self.consumer_transaction))


class KafkaTopic(Section):
    """The topics that are created for the run."""

    name: Annotated[str, AfterValidator(_kafka_topic)] | None = None
    """Topic name; `%d` stands for the destination's number. Unset: a name of the run's own. A topic
    of that name that is there already is used as it is, and never deleted."""
    partitions: int = Field(1, ge=1, le=100_000)
    """Topic partitions of each topic."""
    replication_factor: int = Field(1, ge=1, le=100)
    """Brokers that hold a copy of each topic partition."""
    properties: ClientProperties = Field(default_factory=dict)
    """Topic properties such as `flush.messages: 1`, passed as they are."""


class Kafka(Section):
    """Kafka only; other protocols ignore it."""

    topic: KafkaTopic = Field(default_factory=KafkaTopic)
    producer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka producer property (`acks`, `linger.ms`, `batch.size` ...)."""
    consumer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka consumer property."""
    keys: Literal["none", "producer", "sequence"] = "none"
    """Message key: none, the producer's number, or the sequence number."""
    transaction_messages: int = Field(0, ge=0, le=10_000_000)
    """Messages per transaction of a producer; 0 turns transactions off. A message is confirmed when
    its transaction is committed, and consumers read committed messages only."""
    plane: Literal["fast", "confluent"] = "fast"
    """Who moves the data: librdkafka's own interface, batch by batch, or confluent-kafka's, message
    by message: slow, and the reference. Transactions are always the latter's."""

    @field_validator("producer", "consumer")
    @classmethod
    def _no_credentials(cls, properties: ClientProperties) -> ClientProperties:
        refuse(
            [
                Conflict((key,), "says where the broker is or how to log in; broker files say that")
                for key in properties
                if key.startswith(("sasl.", "ssl."))
                or key in ("bootstrap.servers", "security.protocol", "metadata.broker.list")
            ]
        )
        return properties


class Mqtt(Section):
    """MQTT only; other protocols ignore it."""

    version: Annotated[
        Literal["3.1.1", "5"],
        BeforeValidator(_mqtt_version, json_schema_input_type=Literal["3.1.1", "5", 5]),
    ] = "3.1.1"
    """The protocol's version. With 5 a broker says why it refuses something."""
    qos: int = Field(0, ge=0, le=2)
    """Quality of service of messages and subscriptions: 0 at most once, 1 at least once (a PUBACK
    is the confirm), 2 exactly once (a PUBCOMP is the confirm)."""
    topic: Annotated[str, AfterValidator(_mqtt_topic)] | None = None
    """Topic published to; `%d` stands for the destination's number. Unset: a topic of the run's
    own, `bench/RUN/%d`."""
    topic_filter: Annotated[str, AfterValidator(_mqtt_filter)] | None = None
    """What consumers subscribe to, wildcards and all; `%d` stands for the destination's number.
    Unset: the topic."""
    shared_group: Annotated[str, AfterValidator(_mqtt_group)] | None = None
    """Subscribe as `$share/GROUP/FILTER`: the members of a group divide the messages among them.
    Unset: a group of the run's own where a destination has several consumers, else no group."""
    retain: bool = False
    """The broker keeps the last message of each topic for those who subscribe later. On topics of
    the run's own it is removed at the end."""
    in_flight: int = Field(20, ge=1, le=65535)
    """QoS 1 and 2: most messages unacknowledged per producer, and with version 5 per consumer
    (receive maximum). A broker of version 5 that allows fewer has its way; one of 3.1.1 hangs up:
    Mosquitto, unless told otherwise, above 20 at QoS 2."""
    clean_session: bool = True
    """`false`: the broker keeps a consumer's subscriptions and unacknowledged messages while its
    connection is lost. Sessions end with the run. Producers have none."""
    session_expiry_seconds: int = Field(300, ge=1, le=2**32 - 2)
    """Version 5 with `clean_session: false`: for how long the broker keeps a session."""
    keep_alive_seconds: int = Field(30, ge=0, le=65535)
    """A connection without traffic is tried (PINGREQ) so often that the broker hears something in
    this time; 0 turns that off."""
    client_id_prefix: Annotated[str, AfterValidator(_mqtt_text), Field(max_length=200)] = "bench"
    """What client identifiers begin with; the run, the role and the member's number follow."""


class Scenario(Section):
    """A load, and how long it lasts."""

    name: Name = "unnamed"
    """What results call this scenario; unset: the file's name."""
    description: str = Field("", max_length=2000)
    """For people."""
    agents: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] = 1
    """Spark tasks that generate load; `auto`: one per free slot."""
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
    tags: dict[PropertyName, str] = Field(default_factory=dict)
    """Free names and values stored with the run, for finding it again by SQL."""
    amqp: Amqp = Field(default_factory=Amqp)
    kafka: Kafka = Field(default_factory=Kafka)
    mqtt: Mqtt = Field(default_factory=Mqtt)

    @model_validator(mode="after")
    def _keys_agree(self) -> Scenario:
        if not self.producers and not self.consumers:
            problem = "0, and so are producers: nobody would send or receive"
            refuse([Conflict(("consumers", "producers"), problem)])
        refuse(
            [
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
            ]
        )
        return self

    @property
    def wiring(self) -> Wiring:
        """Who is tied to whom."""
        return wiring_for(
            self.topology,
            self.producers,
            self.consumers,
            self.destinations,
            self.subscriptions_per_consumer,
        )

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
        if self.load.mode == "window" and self.topology == "fan-out":
            yield Conflict(
                ("load.mode", "topology"),
                "window does not go with topology fan-out: a message gives its place back by "
                "arriving, and here each arrives many times",
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
        """Where no topology has its own rules."""
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
        if self.load.mode == "window" and self.load.in_flight < messages:
            yield Conflict(
                ("load.in_flight", "amqp.producer_transaction"),
                f"{self.load.in_flight} is below amqp.producer_transaction, which is {messages}: "
                "nothing would ever be committed",
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
        if self.load.mode == "rate":
            yield Conflict(
                ("sampling.samples", "load.mode"),
                "needs load.mode window or maximum: in mode rate the throughput is what was asked "
                "for",
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
        if self.load.mode == "window":
            return [
                Conflict(
                    ("load.mode", role),
                    f"window needs both ends, but {role} is 0: a message gives its place back by "
                    "arriving",
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
