"""A transport without a broker: what this process sends, it receives.

It serves tests, and it measures the ceiling of the harness itself: no socket, no copy of a body, no
Python per message. Each process has its own loopback "broker" per run, so a destination must have
both its ends in one agent (`placement: paired`).

A subscription is a bounded queue of chunks; a full one refuses, which is back-pressure. Its
messages go in turn to the lanes that serve it. A destination leads to the queues of all
subscriptions of its group: without a topology that is one, and has its name. In a run without
consumers it is a sink, which takes everything and keeps nothing.

memory.py          messages in queues, and what wakes those who wait for them
producers.py, consumers.py
transport.py       the Transport made of all these
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import Capabilities, Transport, TransportContext, TransportKind
from bench_spark.transports.loopback.consumers import LoopbackConsumers
from bench_spark.transports.loopback.producers import LoopbackProducers
from bench_spark.transports.loopback.transport import (
    CAPABILITIES,
    DEFAULT_CAPACITY_MESSAGES,
    LoopbackTransport,
    refuse_impossible,
)

__all__ = [
    "DEFAULT_CAPACITY_MESSAGES",
    "KIND",
    "LoopbackConsumers",
    "LoopbackProducers",
    "LoopbackTransport",
]


class _Loopback(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        return LoopbackTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        return CAPABILITIES

    def check(self, scenario: Scenario, broker: Broker) -> None:
        refuse_impossible(scenario)

    def connections(self, scenario: Scenario, producers: int, consumers: int) -> int:
        return 0


KIND = _Loopback()
