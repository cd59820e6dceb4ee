"""The section `amqp` of a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bench_spark.scenario.fields import ClientProperties, Conflict, Section, WireName, refuse


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

    @model_validator(mode="after")
    def _one_name(self) -> AmqpQueue:
        if self.server_named and self.name is not None:
            refuse([Conflict(("server_named", "name"), "excludes name; give one of the two")])
        return self

    @property
    def type(self) -> str:
        """As the argument `x-queue-type` says."""
        return str(self.arguments.get("x-queue-type", "classic"))

    @property
    def is_stream(self) -> bool:
        return self.type == "stream"

    @model_validator(mode="after")
    def _replicated_types_are_durable(self) -> AmqpQueue:
        if self.type in ("quorum", "stream") and (not self.durable or self.auto_delete):
            problem = f"x-queue-type: {self.type} needs durable: true and no auto_delete"
            refuse([Conflict(("arguments", "durable", "auto_delete"), problem)])
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

    removed_keys: ClassVar[Mapping[str, str]] = {
        "plane": "there is one data plane now, so there is nothing to choose; pika opens "
        "connections and asks the broker, and messages never pass through it. Leave the key out"
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

    @model_validator(mode="after")
    def _prefetch_covers_acks(self) -> Amqp:
        if self.ack == "manual" and self.prefetch and self.prefetch < self.ack_every:
            below = f"{self.prefetch} is below ack_every, which is {self.ack_every}"
            refuse([Conflict(("prefetch", "ack_every"), f"{below}: nothing would be acknowledged")])
        return self

    @model_validator(mode="after")
    def _streams_are_acknowledged(self) -> Amqp:
        """Acknowledgements are a stream's flow control: it insists on them and on a prefetch."""
        if self.queue.is_stream and (self.ack == "auto" or self.prefetch == 0):
            problem = "x-queue-type: stream needs ack: manual and a prefetch"
            refuse([Conflict(("queue.arguments", "ack", "prefetch"), problem)])
        if self.queue.is_stream and self.consumer_transaction:
            problem = "does not go with x-queue-type: stream, which forgets no message"
            refuse([Conflict(("consumer_transaction", "queue.arguments"), problem)])
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
