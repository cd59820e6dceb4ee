"""The sections of a scenario that belong to a protocol: `amqp`, `kafka`, `mqtt`, `http`, `tcp`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from bench_spark.config.fields import (
    ClientProperties,
    Conflict,
    FormerKey,
    PropertyValue,
    Section,
    WireName,
    byte_length,
    checked,
    few_bytes,
    refuse,
    uri_problem,
    value_text,
)


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
    """Queue arguments such as `x-max-length: 10000`, passed as they are. `x-queue-type: quorum` and
    `x-queue-type: stream` need `durable`."""

    @property
    def type(self) -> str:
        """As the argument `x-queue-type` says."""
        return str(self.arguments.get("x-queue-type", "classic"))

    @property
    def is_stream(self) -> bool:
        return self.type == "stream"

    def conflicts(self) -> Iterator[Conflict]:
        if self.server_named and self.name is not None:
            yield Conflict(("server_named", "name"), "excludes name; give one of the two")
        if self.type in ("quorum", "stream") and (not self.durable or self.auto_delete):
            problem = f"x-queue-type: {self.type} needs durable: true and no auto_delete"
            yield Conflict(("arguments", "durable", "auto_delete"), problem)


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

    def conflicts(self) -> Iterator[Conflict]:
        if self.binding_arguments and (self.type != "headers" or not self.name):
            problem = "only a named exchange of type headers looks at them"
            yield Conflict(("binding_arguments", "type", "name"), problem)


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

    former_keys: ClassVar[Mapping[str, FormerKey]] = {
        "plane": FormerKey(
            why="there is one data plane now, so there is nothing to choose: AMQP is spoken on "
            "bench-spark's own sockets. Leave the key out",
            stood_for="fast",
        )
    }

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
    consumer_arguments: ClientProperties = Field(default_factory=dict)
    """Arguments of consumers such as `x-priority: 10`, passed as they are. For a stream
    `x-stream-offset`: `first`, `last`, `next` or a number; unset: `next`, what is published from
    then on."""
    heartbeat_seconds: int = Field(30, ge=0, le=3600)
    """How often both sides prove that they are alive; 0 turns heartbeats off."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.ack == "manual" and self.prefetch and self.prefetch < self.ack_every:
            below = f"{self.prefetch} is below ack_every, which is {self.ack_every}"
            yield Conflict(("prefetch", "ack_every"), f"{below}: nothing would be acknowledged")
        # Acknowledgements are a stream's flow control: it insists on them and on a prefetch.
        if self.queue.is_stream and (self.ack == "auto" or self.prefetch == 0):
            problem = "x-queue-type: stream needs ack: manual and a prefetch"
            yield Conflict(("queue.arguments", "ack", "prefetch"), problem)
        if self.queue.is_stream and self.consumer_transaction:
            problem = "does not go with x-queue-type: stream, which forgets no message"
            yield Conflict(("consumer_transaction", "queue.arguments"), problem)
        if self.routing_keys > 1 and not self.exchange.name:
            problem = "keys need a named exchange: the default one has one key per queue, its name"
            yield Conflict(("routing_keys", "exchange.name"), f"{self.routing_keys} {problem}")
        has_patterns = self.exchange.name and self.exchange.type == "topic"
        if self.binding_key is not None and not has_patterns:
            yield Conflict(
                ("binding_key", "exchange.type", "exchange.name"),
                "only a named exchange of type topic has patterns; others are bound by the routing "
                "key",
            )
        yield from self._transaction_conflicts()

    def _transaction_conflicts(self) -> Iterator[Conflict]:
        if self.producer_transaction and self.confirms:
            problem = "excludes confirms: brokers refuse both on one channel"
            yield Conflict(("producer_transaction", "confirms"), problem)
        messages = self.consumer_transaction
        if messages and self.ack == "auto":
            problem = "commits acknowledgements: it needs ack: manual"
            yield Conflict(("consumer_transaction", "ack"), problem)
        if messages % self.ack_every:
            problem = f"{messages} is no multiple of ack_every, which is {self.ack_every}"
            yield Conflict(("consumer_transaction", "ack_every"), problem)
        if self.prefetch and self.prefetch < messages:
            below = f"{self.prefetch} is below consumer_transaction, which is {messages}"
            problem = f"{below}: nothing would be committed"
            yield Conflict(("prefetch", "consumer_transaction"), problem)

    @property
    def may_return(self) -> bool:
        """Whether the broker gives back what it cannot place."""
        return self.mandatory or self.immediate

    @property
    def effective_prefetch(self) -> int:
        if self.prefetch is not None:
            return self.prefetch
        return min(65535, max(200, 2 * self.ack_every, 2 * self.consumer_transaction))


_HEADER_NAME_CHARACTERS = 255
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")


_kafka_topic = checked(
    lambda name: _KAFKA_TOPIC.fullmatch(name.replace("%d", "0")),
    "letters, digits, '.', '_', '-' and '%d', at most 200",
)
_header_name = checked(
    lambda name: 1 <= len(name) <= _HEADER_NAME_CHARACTERS and name.isprintable(),
    f"printable text of 1 to {_HEADER_NAME_CHARACTERS} characters",
)


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

    former_keys: ClassVar[Mapping[str, FormerKey]] = {
        "plane": FormerKey(
            why="there is one data plane now, so there is nothing to choose: librdkafka's own "
            "interface moves all messages but those of transactions and share groups. Leave the "
            "key out",
            stood_for="fast",
        )
    }

    topic: KafkaTopic = Field(default_factory=KafkaTopic)
    producer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka producer property (`acks`, `linger.ms`, `batch.size` ...)."""
    consumer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka consumer property."""
    keys: Literal["none", "producer", "sequence", "uniform", "zipf"] = "none"
    """Message key: none, the producer's number, the sequence number, or one of `key_count` numbers:
    `uniform` takes all equally often, `zipf` key k so often that it is (k + 1) to the power of
    `key_exponent` times rarer than key 0. The topic partition follows from the key."""
    key_count: int = Field(1000, ge=1, le=10_000_000)
    """With `keys` uniform or zipf: how many there are."""
    key_exponent: Annotated[float, Field(gt=0, le=10)] = 1.0
    """With `keys: zipf`: how uneven they are."""
    headers: dict[Annotated[str, AfterValidator(_header_name)], PropertyValue] = Field(
        default_factory=dict, max_length=100
    )
    """Headers of every message, the values as UTF-8 text, all of them together at most 64 KiB. They
    are no part of `message.bytes`, nor of any size in the result. Headers of a data set come on
    top, and win where they have the same name. A message with headers costs its producer a call of
    its own."""
    group: Literal["consumer", "share"] = "consumer"
    """How consumers divide a topic: by topic partitions, as members of a consumer group, or message
    by message, as members of a share group (Kafka 4.2 and later). Messages of a share group are
    acknowledged as they are taken; what it leaves behind is not known. Of `consumer` a share group
    takes only properties that its client knows."""
    transaction_messages: int = Field(0, ge=0, le=10_000_000)
    """Messages per transaction of a producer; 0 turns transactions off. A message is confirmed when
    its transaction is committed, and consumers read committed messages only."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.group == "share" and self.transaction_messages:
            problem = "does not go with group: share, which reads what is not committed as well"
            yield Conflict(("transaction_messages", "group"), problem)

    @field_validator("headers")
    @classmethod
    def _headers_are_small(cls, headers: ClientProperties) -> ClientProperties:
        return few_bytes(headers)

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


_MQTT_TEXT_BYTES = 65535
_MQTT_WILDCARDS = "+#"


# What MQTT can carry as text: topics, filters and client ids.
_mqtt_text = checked(
    lambda text: text and "\0" not in text and byte_length(text) <= _MQTT_TEXT_BYTES,
    f"1 to {_MQTT_TEXT_BYTES} bytes of text without NUL",
)


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
    (receive maximum). The lower limit of a version 5 broker wins; one of 3.1.1 closes the
    connection: Mosquitto, unless configured otherwise, above 20 at QoS 2."""
    clean_session: bool = True
    """`false`: the broker keeps a consumer's subscriptions and unacknowledged messages while its
    connection is lost. Sessions end with the run. Producers have none."""
    session_expiry_seconds: int = Field(300, ge=1, le=2**32 - 2)
    """Version 5 with `clean_session: false`: for how long the broker keeps a session."""
    keep_alive_seconds: int = Field(30, ge=0, le=65535)
    """A connection without traffic sends PINGREQ, so that the broker receives something within this
    time; 0 turns that off."""
    user_properties: dict[
        Annotated[str, AfterValidator(_mqtt_text), Field(max_length=255)], PropertyValue
    ] = Field(default_factory=dict, max_length=100)
    """Version 5: user properties of every message, which are its headers; all of them together at
    most 64 KiB. They are no part of `message.bytes`, nor of any size in the result. Headers of a
    data set come on top, and win where they have the same name."""
    client_id_prefix: Annotated[str, AfterValidator(_mqtt_text), Field(max_length=200)] = "bench"
    """What client identifiers begin with; the run, the role and the member's number follow."""

    @field_validator("user_properties")
    @classmethod
    def _user_properties_are_text(cls, properties: ClientProperties) -> ClientProperties:
        if any("\0" in value_text(value) for value in properties.values()):
            raise ValueError("allowed: text without NUL")
        return few_bytes(properties)

    def conflicts(self) -> Iterator[Conflict]:
        if self.user_properties and self.version != "5":
            problem = f"version {self.version} has none; version: 5 has"
            yield Conflict(("user_properties", "version"), problem)


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]{0,8000}")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization"})


# The name of a header.
field_name = checked(_TOKEN.fullmatch, "letters, digits and !#$%&'*+.^_`|~-, at most 200")
_field_value = checked(_FIELD_VALUE.fullmatch, "one line of text")


def _own_field_name(value: str) -> str:
    if value.lower() in _OURS:
        raise ValueError("is set by bench-spark; a login belongs to the broker file")
    return field_name(value)


def _uri(*schemes: str, **allowed: bool) -> AfterValidator:
    """A check of a URI; `allowed` as of `uri_problem`."""

    def check(value: str) -> str:
        if problem := uri_problem(value, schemes, allows_port_0=True, **allowed):
            raise ValueError(problem)
        return value

    return AfterValidator(check)


class Http(Section):
    """HTTP only; other protocols ignore it."""

    method: Annotated[str, AfterValidator(field_name)] = "POST"
    """Method of a producer's requests, each of which carries one message. They go to the path of
    the broker file's `uri`, in which `%d` stands for the destination's number."""
    content_type: Annotated[str, AfterValidator(_field_value)] = "application/octet-stream"
    """What requests say of their bodies; empty: nothing."""
    headers: dict[
        Annotated[str, AfterValidator(_own_field_name)],
        Annotated[str, AfterValidator(_field_value)],
    ] = Field(default_factory=dict, max_length=100)
    """More headers of every request."""
    in_flight: int = Field(1, ge=1, le=100_000)
    """Requests without an answer per producer. More than 1 is pipelining: the next request is sent
    before the last one was answered, which not every server takes. Without it, more producers
    are what makes more load."""
    answer: Literal["none", "body", "header"] = "none"
    """What of an answer holds the ID that the system gave the message (identity carrier
    `acknowledgement`): nothing, the body, or the header `answer_header`."""
    answer_header: Annotated[str, AfterValidator(field_name)] | None = None
    """With `answer: header`: its name."""
    consumer_uri: Annotated[str, _uri("http", "https", allows_query=True)] | None = None
    """Where consumers listen, `http://HOST:PORT/PATH` with port 0 for any free one, `%d` in the
    path for the destination's number. Unset: the `uri` of the broker file, which is then their own
    address and not that of a server."""
    status: int = Field(200, ge=200, le=599)
    """What consumers answer to each message that they take."""

    def conflicts(self) -> Iterator[Conflict]:
        if (self.answer == "header") != (self.answer_header is not None):
            missing = "missing; answer: header needs it"
            problem = missing if self.answer == "header" else f"excludes answer: {self.answer}"
            yield Conflict(("answer_header", "answer"), problem)


class Tcp(Section):
    """TCP only; other protocols ignore it."""

    framing: Literal["length", "line"] = "length"
    """Where a message ends. `length`: each begins with its size. `line`: each ends with a line feed
    (byte 10), which none may contain; only data of one's own, with an ID as text, can be so."""
    length_bytes: Literal[1, 2, 4, 8] = 4
    """With `framing: length`: of how many bytes the size is, which does not count itself."""
    byte_order: Literal["big", "little"] = "big"
    """With `framing: length`: whether the size begins with its highest or its lowest byte."""
    consumer: Literal["listen", "connect"] = "listen"
    """Whether consumers wait for senders to connect to them, or connect to a server that
    sends. Producers always connect."""
    consumer_uri: Annotated[str, _uri("tcp", "tcps", needs_port=True)] | None = None
    """Where consumers listen, or what they connect to: `tcp://HOST:PORT`, for listening with port
    0 for any free one. Unset: the `uri` of the broker file."""
