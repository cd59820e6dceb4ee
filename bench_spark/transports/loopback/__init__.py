"""A transport without a broker: what this process sends, it receives.

It serves tests, and it measures the ceiling of the harness itself: no socket, no copy of a body, no
Python per message. Each process has its own loopback "broker" per run, so a destination must have
both its ends in one agent (`placement: paired`).

A subscription is a bounded queue of chunks; a full one refuses, which is back-pressure. Its
messages go in turn to the lanes that serve it. A destination leads to the queues of all
subscriptions of its group: without a topology that is one, and has its name. In a run without
consumers it is a sink, which takes everything and keeps nothing.

memory.py          messages in queues, and what wakes those who wait for them
clients.py         producers and consumers, which put messages into queues and take them out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import bench_spark
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import (
    BrokerFacts,
    Capabilities,
    Destination,
    Lane,
    Subscription,
    Transport,
    TransportContext,
    TransportKind,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.loopback.clients import LoopbackConsumers, LoopbackProducers
from bench_spark.transports.loopback.memory import MemoryBroker, Queue

__all__ = [
    "DEFAULT_CAPACITY_MESSAGES",
    "KIND",
    "LoopbackConsumers",
    "LoopbackProducers",
    "LoopbackTransport",
]

DEFAULT_CAPACITY_MESSAGES = 65536
"""Per destination."""

CAPABILITIES = Capabilities(parts=frozenset(Part), topologies=True, pausable=True)

_BROKERS: dict[str, MemoryBroker] = {}
"""By run id: transports of one run in one process meet here."""


class LoopbackTransport:
    def __init__(
        self,
        context: TransportContext,
        *,
        capacity_messages: int = DEFAULT_CAPACITY_MESSAGES,
        confirms: bool = False,
    ) -> None:
        self._run_id = context.run_id
        self._capacity_messages = capacity_messages
        self._has_consumers = context.scenario.consumers > 0
        self.capabilities = replace(CAPABILITIES, confirms=confirms)
        self._wiring = context.scenario.wiring
        self._broker = _BROKERS.setdefault(context.run_id, MemoryBroker(self._wiring))
        self._broker.users += 1
        self._is_closed = False

    def probe(self) -> BrokerFacts:
        return BrokerFacts(
            product="loopback",
            version=bench_spark.__version__,
            capabilities=frozenset({"confirms"}),
        )

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        if self._wiring.is_plain:
            return tuple(self._declare(destination) for destination in destinations)
        for queue in self._broker.subscribed_to(destinations):
            self._declare(queue)
        return tuple(
            replace(one, name=f"loopback-{one.index}", declared=True) for one in destinations
        )

    def _declare(self, destination: Destination) -> Destination:
        name = destination.name or f"loopback-{destination.index}"
        existed = name in self._broker.queues
        queue = Queue(name, self._capacity_messages, is_sink=not self._has_consumers)
        self._broker.queues.setdefault(name, queue)
        return replace(destination, name=name, declared=not existed)

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        named = (replace(one, name=one.name or f"loopback-{one.index}") for one in destinations)
        return tuple(replace(one, name=self._broker.find(one).name) for one in named)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> LoopbackProducers:
        return LoopbackProducers(self._broker, lanes, now_ns, self.capabilities.confirms)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> LoopbackConsumers:
        return LoopbackConsumers(self._broker, lanes, now_ns, want)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        if self._wiring.is_plain:
            behind = [one.destinations[0] for one in subscriptions]
        else:
            behind = [self._broker.subscribed(one.index) for one in subscriptions]
        queues = (self._broker.queues.get(one.name or "") for one in behind)
        return tuple(None if queue is None else queue.depth for queue in queues)

    def delete(self, destinations: Sequence[Destination]) -> None:
        made = destinations
        if not self._wiring.is_plain:
            made = self._broker.subscribed_to([one for one in destinations if one.declared])
        for destination in made:
            if destination.declared:
                self._broker.queues.pop(destination.name or "", None)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._broker.users -= 1
            if not self._broker.users:
                _BROKERS.pop(self._run_id, None)


class _Loopback(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        return LoopbackTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        return CAPABILITIES

    def check(self, scenario: Scenario, broker: Broker) -> None:
        if scenario.only_consumes:
            raise ConfigurationError(
                "producers: 0 does not go with kind loopback: nothing is there before a run"
            )
        if scenario.placement == "split":
            raise ConfigurationError(
                "placement: kind loopback works inside one process; use paired"
            )

    def connections(self, scenario: Scenario, producers: int, consumers: int) -> int:
        return 0


KIND = _Loopback()
