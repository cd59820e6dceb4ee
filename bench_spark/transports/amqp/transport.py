"""The AMQP 0-9-1 transport: puts access, topology, producers and consumers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench_spark.core.clock import NowNs
from bench_spark.transports.amqp import KIND
from bench_spark.transports.amqp.connection import AmqpProtocol, access_for
from bench_spark.transports.amqp.consumers import AmqpReceiver
from bench_spark.transports.amqp.control import probe
from bench_spark.transports.amqp.management import RunPolicy
from bench_spark.transports.amqp.producers import AmqpSender
from bench_spark.transports.amqp.topology import Topology, layout_for
from bench_spark.transports.base import (
    BrokerFacts,
    Consumers,
    Destination,
    Lane,
    Producers,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.sockets.buffers import Arrivals
from bench_spark.transports.sockets.lanes import SocketConsumers, SocketProducers
from bench_spark.transports.sockets.loop import Gathering, is_gathered
from bench_spark.transports.sockets.opening import ReopeningRule


class AmqpTransport:
    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
        self._layout = layout_for(context.scenario, context.run_id)
        self._amqp = self._layout.amqp
        self._access = access_for(context)
        self._is_gathered = is_gathered(context.scenario, acknowledges=self._amqp.ack == "manual")
        self._topology = Topology(self._access, self._layout)
        self._policy = RunPolicy(context, self._access) if self._amqp.policy else None
        self._most_bytes = context.scenario.most_arriving_bytes
        seconds = context.scenario.reconnect_seconds
        self._consumer_rule = ReopeningRule(seconds, self._topology.restore) if seconds else None
        self._producer_rule = ReopeningRule(seconds, self._restore_behind) if seconds else None
        self._queues: tuple[Destination, ...] = ()
        """That this agent has declared behind destinations that are no queues themselves."""

    def probe(self) -> BrokerFacts:
        return probe(self._access, self._amqp)

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        if self._policy is not None:
            self._policy.set()
        if self._layout.wiring.is_plain:
            return self._topology.declare(destinations)
        self._queues = self._topology.declare(self._layout.queues_behind(destinations))
        wiring = self._layout.wiring
        made = {wiring.group_of_subscription(one.index) for one in self._queues if one.declared}
        return tuple(
            self._layout.named(one, wiring.group_of_destination(one.index) in made)
            for one in destinations
        )

    def _restore_behind(self, destinations: Sequence[Destination]) -> None:
        self._topology.restore(self._layout.queues_behind(destinations))

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        return self._topology.find(destinations)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        protocol = AmqpProtocol(self._access)
        sender = AmqpSender(self._amqp)
        return SocketProducers(sender, protocol, lanes, now_ns, self._producer_rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> Consumers:
        protocol = AmqpProtocol(self._access, Gathering() if self._is_gathered else None)
        receiver = AmqpReceiver(self._amqp, Arrivals(want, self._most_bytes))
        own = self._layout.consumer_lanes(lanes)
        return SocketConsumers(receiver, protocol, own, now_ns, self._consumer_rule)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        if self._layout.wiring.is_plain:
            queues = [one.destinations[0] for one in subscriptions]
        else:
            queues = [self._layout.queue(one.index, is_declared=True) for one in subscriptions]
        return self._topology.depths(queues)

    def delete(self, destinations: Sequence[Destination]) -> None:
        if not self._layout.wiring.is_plain:
            destinations = self._queues_to_delete(destinations)
        try:
            self._topology.delete(destinations)
        finally:
            if self._policy is not None:
                self._policy.remove()

    def _queues_to_delete(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Those that were made, unless their destinations are to be kept: these are not marked as
        declared any more."""
        wiring = self._layout.wiring
        ours = {wiring.group_of_destination(one.index) for one in destinations if one.declared}
        return tuple(
            replace(one, declared=one.declared and wiring.group_of_subscription(one.index) in ours)
            for one in self._queues
        )

    def close(self) -> None:
        """Nothing stays open between calls."""
