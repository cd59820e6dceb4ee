"""The AMQP 0-9-1 transport: puts access, topology and a data plane together."""

from __future__ import annotations

from collections.abc import Sequence

from bench_spark.measure.clock import NowNs
from bench_spark.transports.amqp.fast_consumers import FastConsumers
from bench_spark.transports.amqp.fast_producers import FastProducers
from bench_spark.transports.amqp.opening import access_for
from bench_spark.transports.amqp.pika_consumers import PikaConsumers
from bench_spark.transports.amqp.pika_producers import PikaProducers
from bench_spark.transports.amqp.planes import chosen_plane
from bench_spark.transports.amqp.policies import RunPolicy
from bench_spark.transports.amqp.probe import probe
from bench_spark.transports.amqp.topology import Topology
from bench_spark.transports.base import (
    HEAD_ONLY,
    BrokerFacts,
    Consumers,
    Destination,
    Lane,
    Part,
    Producers,
    TransportContext,
)
from bench_spark.transports.sockets.gathering import is_gathered
from bench_spark.transports.sockets.reopening import ReopeningRule


class AmqpTransport:
    def __init__(self, context: TransportContext) -> None:
        self._amqp = context.scenario.amqp
        self._access = access_for(context)
        self._plane = chosen_plane(self._amqp)
        self._is_gathered = is_gathered(context.scenario, acknowledges=self._amqp.ack == "manual")
        self._topology = Topology(self._access, self._amqp, context.run_id)
        self._policy = RunPolicy(context, self._access) if self._amqp.policy else None
        seconds = context.scenario.reconnect_seconds
        self._rule = ReopeningRule(seconds, self._topology.restore) if seconds else None

    @property
    def confirms(self) -> bool:
        return self._amqp.confirms > 0 or self._amqp.producer_transaction > 0

    def probe(self) -> BrokerFacts:
        return probe(self._access, self._amqp, self._plane)

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        if self._policy is not None:
            self._policy.set()
        return self._topology.declare(destinations)

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        return self._topology.find(destinations)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        producers = FastProducers if self._plane.is_fast else PikaProducers
        return producers(self._access, self._amqp, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> Consumers:
        if not self._plane.is_fast:
            return PikaConsumers(self._access, self._amqp, lanes, now_ns, want, self._rule)
        return FastConsumers(
            self._access,
            self._amqp,
            lanes,
            now_ns,
            want,
            is_gathered=self._is_gathered,
            rule=self._rule,
        )

    def depths(self, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
        return self._topology.depths(destinations)

    def delete(self, destinations: Sequence[Destination]) -> None:
        try:
            self._topology.delete(destinations)
        finally:
            if self._policy is not None:
                self._policy.remove()

    def close(self) -> None:
        """Nothing stays open between calls."""
