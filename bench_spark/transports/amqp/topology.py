"""Queues, and the exchange before them: their names, how they are made, counted and deleted; and
what AMQP 0-9-1 can never do.

Without a topology, and in a straight run, a destination *is* a queue, addressed by its name or by
the keys of `amqp.routing_key`. Where several destinations share a queue, or several queues a
destination, a destination is a routing key of an exchange, and every subscription is a queue
bound to the keys of its group. That exchange is the run's own unless the scenario names one: a
fanout exchange where every message goes to all queues, else a direct one.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pika import spec

from bench_spark.config.fields import ClientProperties
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp, AmqpExchange
from bench_spark.config.topologies import Wiring
from bench_spark.errors import BrokerRefused, ConfigurationError, PreflightError
from bench_spark.transports.amqp.connection import AmqpAccess
from bench_spark.transports.amqp.control import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    ControlConnection,
    Refused,
)
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.sockets.opening import BeyondRestoring

NUMBER_MARK = "%d"


def queue_name(amqp: Amqp, run_id: str, index: int) -> str:
    """The name to declare; empty asks the broker to choose one."""
    if amqp.queue.server_named:
        return ""
    if amqp.queue.name is None:
        return f"bench-{run_id}-{index}"
    return _numbered(amqp, amqp.queue.name, index)


def routing_key(amqp: Amqp, index: int, resolved_queue: str) -> str:
    """The key of every message; with several keys, what they begin with."""
    if amqp.routing_key is None:
        return resolved_queue
    return _numbered(amqp, amqp.routing_key, index)


def routing_keys(amqp: Amqp, index: int, resolved_queue: str) -> tuple[str, ...]:
    """All keys that messages for this destination have: of equal length, ending in a number."""
    key = routing_key(amqp, index, resolved_queue)
    if amqp.routing_keys == 1:
        return (key,)
    digits = key_digits(amqp)
    return tuple(f"{key}.{number:0{digits}d}" for number in range(amqp.routing_keys))


def key_digits(amqp: Amqp) -> int:
    """How many digits the number at the end of each of several routing keys has."""
    return len(str(amqp.routing_keys - 1))


def binding_keys(amqp: Amqp, index: int, resolved_queue: str) -> tuple[str, ...]:
    """The keys by which the destination's queue is bound to the exchange."""
    if amqp.binding_key is not None:
        return (_numbered(amqp, amqp.binding_key, index),)
    if amqp.exchange.type == "direct":
        return routing_keys(amqp, index, resolved_queue)
    key = routing_key(amqp, index, resolved_queue)
    is_pattern = amqp.exchange.type == "topic" and amqp.routing_keys > 1
    return (f"{key}.*" if is_pattern else key,)


def binding_arguments(amqp: Amqp, index: int) -> ClientProperties:
    return _all_numbered(amqp, amqp.exchange.binding_arguments, index)


def message_headers(amqp: Amqp, index: int) -> ClientProperties:
    return _all_numbered(amqp, amqp.headers, index)


def _numbered(amqp: Amqp, text: str, index: int) -> str:
    return text.replace(NUMBER_MARK, str(amqp.queue.first_number + index))


def _all_numbered(amqp: Amqp, values: ClientProperties, index: int) -> ClientProperties:
    return {
        key: _numbered(amqp, value, index) if isinstance(value, str) else value
        for key, value in values.items()
    }


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for what no AMQP 0-9-1 broker could do with this scenario."""
    amqp = scenario.amqp
    for section, values in (
        ("amqp.queue.arguments", amqp.queue.arguments),
        ("amqp.exchange.binding_arguments", amqp.exchange.binding_arguments),
        ("amqp.headers", amqp.headers),
        ("amqp.consumer_arguments", amqp.consumer_arguments),
    ):
        _refuse_fractions(section, values)
    if amqp.queue.is_stream:
        _refuse_sharing_a_stream(scenario)
    if scenario.only_consumes and amqp.queue.name is None:
        raise ConfigurationError(
            "amqp.queue.name: missing; a run without producers consumes from queues that are there "
            "already, and needs their name"
        )
    if scenario.topology is not None:
        _refuse_topology(scenario)
    elif has_several_destinations(scenario):
        _refuse_shared_names(amqp)


def _refuse_sharing_a_stream(scenario: Scenario) -> None:
    wiring = scenario.wiring
    if wiring.is_plain and scenario.consumers > scenario.destinations:
        raise ConfigurationError(
            "amqp.queue.arguments: x-queue-type: stream gives each of its consumers all messages, "
            f"but consumers: {scenario.consumers} is more than destinations: "
            f"{scenario.destinations}; use as many destinations, or topology: fan-out"
        )
    if scenario.topology == "round-robin":
        raise ConfigurationError(
            "amqp.queue.arguments: x-queue-type: stream gives each of its consumers all messages; "
            "topology round-robin shares them out"
        )


def _refuse_topology(scenario: Scenario) -> None:
    """What a topology leaves no choice about."""
    amqp, topology = scenario.amqp, scenario.topology
    if scenario.wiring.is_plain:
        if has_several_destinations(scenario):
            _refuse_shared_names(amqp)
        return
    if amqp.queue.server_named:
        raise ConfigurationError(
            f"amqp.queue.server_named: does not go with topology {topology}, in which everybody "
            "must know the queues' names"
        )
    if amqp.exchange.type == "headers":
        raise ConfigurationError(
            f"amqp.exchange.type: headers does not go with topology {topology}, in which "
            "destinations are routing keys; allowed: direct, topic, fanout"
        )
    if amqp.exchange.name and amqp.exchange.type == "fanout" and topology == "fan-in":
        raise ConfigurationError(
            "amqp.exchange.type: fanout copies every message to all consumers; topology fan-in "
            "needs direct or topic"
        )
    if scenario.destinations > 1 and topology != "fan-out":
        _refuse_keys_without_number(amqp)


def _refuse_fractions(section: str, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if isinstance(value, float):
            raise ConfigurationError(
                f"{section}.{key}: {value} is a fraction; AMQP clients send whole numbers, text "
                "and booleans only"
            )


def has_several_destinations(scenario: Scenario) -> bool:
    is_multiplied = scenario.load.scope == "per_agent" and scenario.agents != 1
    return scenario.destinations > 1 or is_multiplied


def _refuse_shared_names(amqp: Amqp) -> None:
    if amqp.queue.name is not None and NUMBER_MARK not in amqp.queue.name:
        raise ConfigurationError(
            "amqp.queue.name: with several destinations the name needs a %d for their number"
        )
    if amqp.exchange.name:
        _refuse_copying(amqp)


def _refuse_copying(amqp: Amqp) -> None:
    """A message belongs to one destination: an exchange must be able to tell which."""
    if amqp.exchange.type == "fanout":
        raise ConfigurationError(
            "amqp.exchange.type: fanout copies every message to all destinations; it needs "
            "destinations: 1"
        )
    if amqp.exchange.type == "headers":
        for section, values in (
            ("amqp.exchange.binding_arguments", amqp.exchange.binding_arguments),
            ("amqp.headers", amqp.headers),
        ):
            if not _has_mark(values.values()):
                raise ConfigurationError(
                    f"{section}: with several destinations a value needs a %d for their number, "
                    "else every message is copied to all of them"
                )
        return
    _refuse_keys_without_number(amqp)


def _refuse_keys_without_number(amqp: Amqp) -> None:
    for name, key in (("routing_key", amqp.routing_key), ("binding_key", amqp.binding_key)):
        if key is not None and NUMBER_MARK not in key:
            raise ConfigurationError(
                f"amqp.{name}: with several destinations the key needs a %d for their number, else "
                "every message is copied to all of them"
            )


def _has_mark(values: Iterable[object]) -> bool:
    return any(isinstance(value, str) and NUMBER_MARK in value for value in values)


@dataclass(frozen=True)
class QueueLayout:
    amqp: Amqp
    """As it is used: with the exchange that the topology needs."""
    run_id: str
    wiring: Wiring

    def queues_behind(self, destinations: Iterable[Destination]) -> list[Destination]:
        """The queues that get what is published to these, whose numbers and names are the queues'
        own. They were declared by this run if the destinations were."""
        if self.wiring.is_plain:
            return list(destinations)
        declared = {
            self.wiring.group_of_destination(one.index): one.declared for one in destinations
        }
        return [
            self.queue(index, is_declared)
            for group, is_declared in declared.items()
            for index in self.wiring.subscriptions_of_group(group)
        ]

    def queue(self, subscription: int, is_declared: bool) -> Destination:
        name = queue_name(self.amqp, self.run_id, subscription)
        return Destination(subscription, name, is_declared)

    def consumer_lanes(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Lanes that receive from queues."""
        if self.wiring.is_plain:
            return list(lanes)
        return [
            replace(
                lane,
                destinations=tuple(
                    self.queue(index, _are_ours(lane)) for index in lane.subscriptions
                ),
            )
            for lane in lanes
        ]

    def named(self, destination: Destination, is_declared: bool) -> Destination:
        """A destination that is a routing key."""
        name = f"{self.run_id}.topic-{destination.index}"
        return replace(destination, name=name, declared=is_declared)

    def bindings(self, queue: Destination) -> Iterator[dict[str, Any]]:
        """What binds a queue to the exchange, if there is one."""
        if not self.amqp.exchange.name:
            return
        for key, arguments in self._keys(queue):
            yield {
                "queue": queue.name,
                "exchange": self.amqp.exchange.name,
                "routing_key": key,
                "arguments": arguments,
            }

    def _keys(self, queue: Destination) -> Iterator[tuple[str, ClientProperties]]:
        if self.wiring.is_plain:
            for key in binding_keys(self.amqp, queue.index, queue.name or ""):
                yield key, binding_arguments(self.amqp, queue.index)
            return
        if self.amqp.exchange.type == "fanout":
            yield "", {}  # it looks at no key: one binding is enough
            return
        group = self.wiring.group_of_subscription(queue.index)
        for index in self.wiring.destinations_of_group(group):
            topic = self.named(Destination(index), is_declared=False)
            for key in binding_keys(self.amqp, index, topic.name or ""):
                yield key, {}


def layout_for(scenario: Scenario, run_id: str) -> QueueLayout:
    wiring, amqp = scenario.wiring, scenario.amqp
    if not wiring.is_plain and not amqp.exchange.name:
        kind = "fanout" if scenario.topology == "fan-out" else "direct"
        exchange = AmqpExchange(name=f"bench-{run_id}", type=kind)
        amqp = amqp.model_copy(update={"exchange": exchange})
    return QueueLayout(amqp, run_id, wiring)


def _are_ours(lane: Lane) -> bool:
    return all(destination.declared for destination in lane.destinations)


_DECLARED_SETTINGS = {"durable", "auto_delete", "arguments"}

BUSY_BROKER_SECONDS = 30.0
"""How long counting or deleting a queue may take: a queue deals with all that it was sent first,
and thousands of connections that end keep a broker busy."""


BETWEEN_COUNTS_SECONDS = 0.1


class Topology:
    """Queues, and the exchange before them, as the scenario asks; remembers what it made.

    Destinations here are queues, whatever a topology makes of the scenario's.

    An exchange of ours is declared auto-delete: it goes with the last queue bound to it, whichever
    agent's that is. Queues and exchanges that were there before are used and left alone.
    """

    def __init__(self, access: AmqpAccess, layout: QueueLayout) -> None:
        self._access = access
        self._layout = layout
        self._amqp = layout.amqp
        self._run_id = layout.run_id
        self._made_exchange = False
        self._lock = threading.Lock()
        """Restoring happens in a thread, and must not undo the deleting."""
        self._is_deleting = False

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        declared: list[Destination] = []
        with ControlConnection(self._access) as control:
            try:
                self._declare_exchange(control)
                for destination in destinations:
                    declared.append(self._declare_queue(control, destination))
                    self._bind(control, declared[-1])
            except Refused as refused:
                self._delete(control, declared)
                raise refused.error from refused
        return tuple(declared)

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Queues that must be there: nothing is declared, bound or marked for deletion."""
        with ControlConnection(self._access) as control:
            try:
                return tuple(self._find_queue(control, destination) for destination in destinations)
            except Refused as refused:
                raise refused.error from refused

    def depths(self, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
        """Messages left in each queue, once two counts agree.

        RabbitMQ answers the question before it has put what it was sent into the queue: under load
        the first count may be far too low. A stream keeps what was received, so its count says
        nothing of what was not.
        """
        unknown: tuple[int | None, ...] = tuple(None for _ in destinations)
        if self._amqp.queue.is_stream:
            return unknown
        deadline = time.monotonic() + BUSY_BROKER_SECONDS
        try:
            with ControlConnection(self._access, BUSY_BROKER_SECONDS) as control:
                counted, before = unknown, None
                while counted != before and time.monotonic() < deadline:
                    if before is not None:
                        time.sleep(BETWEEN_COUNTS_SECONDS)
                    before, counted = counted, tuple(_depth(control, one) for one in destinations)
                return tuple(
                    now if now == then else None
                    for now, then in zip(counted, before or unknown, strict=True)
                )
        except PreflightError:
            # A broker that is gone has taken the answer with it.
            return unknown

    def restore(self, destinations: Sequence[Destination]) -> None:
        """Make again what a broker has forgotten, in a restart or with its last consumer.

        Only what this run had made; what it found there is bound again where that was undone.
        Raises BeyondRestoring where that cannot be.
        """
        is_ours = any(one.declared for one in destinations)
        with self._lock:
            if self._is_deleting or not (is_ours or self._amqp.exchange.name):
                return
            with ControlConnection(self._access) as control:
                try:
                    self._declare_exchange(control)
                    for destination in destinations:
                        if destination.declared:
                            self._restore_queue(control, destination)
                        self._bind(control, destination)
                except Refused as refused:
                    if refused.is_passing:
                        raise refused.error from refused
                    raise BeyondRestoring(str(refused.error)) from refused

    def delete(self, destinations: Sequence[Destination]) -> None:
        self._is_deleting = True
        with self._lock, ControlConnection(self._access, BUSY_BROKER_SECONDS) as control:
            try:
                self._delete(control, destinations)
            except Refused as refused:
                raise refused.error from refused

    def _declare_exchange(self, control: ControlConnection) -> None:
        exchange = self._amqp.exchange
        if not exchange.name:
            return
        what = f"exchange.declare {exchange.name!r}"
        # Qpid Broker-J compares the type even when only asked whether the exchange exists.
        request = functools.partial(
            spec.Exchange.Declare, exchange=exchange.name, type=exchange.type
        )
        if control.exists(request(), what) is None:
            control.ask(request(durable=exchange.durable, auto_delete=True), what)
            self._made_exchange = True
        elif not exchange.name.startswith("amq."):
            self._check_exchange(control, what, request)

    def _check_exchange(
        self, control: ControlConnection, what: str, request: Callable[..., Any]
    ) -> None:
        """Declaring again what exists is AMQP's way to ask whether it is what we think."""
        durable = self._amqp.exchange.durable
        try:
            control.ask(request(durable=durable, auto_delete=True), what)
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            control.ask(request(durable=durable, auto_delete=False), what)

    def _declare_queue(self, control: ControlConnection, destination: Destination) -> Destination:
        queue = self._amqp.queue
        name = queue_name(self._amqp, self._run_id, destination.index)
        what = f"queue.declare {name!r}"
        existed = queue.name is not None and (
            control.exists(spec.Queue.Declare(queue=name), what) is not None
        )
        if existed and not _DECLARED_SETTINGS & queue.model_fields_set:
            return replace(destination, name=name)
        # Declaring again what exists, with settings that the scenario insists on, changes nothing
        # and is AMQP's way to ask whether it has them.
        request = spec.Queue.Declare(
            queue=name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=dict(queue.arguments),
        )
        answer = control.ask(request, what)
        return replace(destination, name=answer.queue, declared=not existed)

    def _find_queue(self, control: ControlConnection, destination: Destination) -> Destination:
        name = queue_name(self._amqp, self._run_id, destination.index)
        if control.exists(spec.Queue.Declare(queue=name), f"queue.declare {name!r}") is None:
            raise BrokerRefused(
                f"{self._access.address}: there is no queue {name!r} (amqp.queue.name), and a run "
                "without producers makes none"
            )
        return replace(destination, name=name)

    def _restore_queue(self, control: ControlConnection, destination: Destination) -> None:
        if not self._amqp.queue.server_named:
            self._declare_queue(control, destination)
            return
        what = f"queue.declare {destination.name!r}"
        if control.exists(spec.Queue.Declare(queue=destination.name), what) is None:
            raise BeyondRestoring(
                f"{self._access.address}: queue {destination.name!r} is gone; the broker chose its "
                "name (amqp.queue.server_named), so it cannot be declared again"
            )

    def _bind(self, control: ControlConnection, destination: Destination) -> None:
        for binding in self._layout.bindings(destination):
            control.ask(spec.Queue.Bind(**binding), f"queue.bind {destination.name!r}")

    def _delete(self, control: ControlConnection, destinations: Sequence[Destination]) -> None:
        for destination in destinations:
            what = f"{destination.name!r}"
            if destination.declared:
                _tolerate_missing(control, spec.Queue.Delete(queue=destination.name), what)
            elif self._made_exchange:
                for binding in self._layout.bindings(destination):
                    _tolerate_missing(control, spec.Queue.Unbind(**binding), what)
        if self._made_exchange:
            self._delete_exchange(control)
            self._made_exchange = False

    def _delete_exchange(self, control: ControlConnection) -> None:
        """For brokers that keep an auto-delete exchange, and for one that nothing was bound to."""
        name = self._amqp.exchange.name
        try:
            request = spec.Exchange.Delete(exchange=name, if_unused=True)
            control.ask(request, f"exchange.delete {name!r}")
        except Refused as refused:
            # Gone already; or another agent's queue is still bound to it, and it goes with that.
            if refused.code not in (NOT_FOUND, PRECONDITION_FAILED):
                raise


def _depth(control: ControlConnection, destination: Destination) -> int | None:
    if not destination.name:
        return None
    try:
        request = spec.Queue.Declare(queue=destination.name)
        answer = control.exists(request, f"depth of {destination.name!r}")
    except Refused:
        return None  # locked or forbidden: unknown
    return None if answer is None else int(answer.message_count)


def _tolerate_missing(control: ControlConnection, request: Any, what: str) -> None:
    try:
        control.ask(request, f"{request.NAME.lower()} {what}")
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
