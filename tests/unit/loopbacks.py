"""Loopback transports that watch, dawdle, break or share: real ones, with one thing changed. And
what loads of whole agents through them have in common.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import Load

from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.plan import Plan, make_plan
from bench_spark.transports.base import (
    BrokerFacts,
    Destination,
    Lane,
    Signal,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    Batch,
    Outcomes,
    Part,
    Received,
    nothing_received,
)
from bench_spark.transports.loopback import (
    DEFAULT_CAPACITY_MESSAGES,
    LoopbackConsumers,
    LoopbackProducers,
    LoopbackTransport,
)

LOOPBACK = Broker(kind="loopback")
BOTH_PHASES = ("warmup", "measure")


@dataclass
class Watch:
    """What passed through the transports of a test, and what they are to do about it."""

    capacity_messages: int = DEFAULT_CAPACITY_MESSAGES
    confirms: bool = False
    at: Callable[[str], None] = lambda step: None
    """Called at each step, by name; may raise."""
    delay: Callable[[], bool] = lambda: False
    """Whether to hold back deliveries for now."""
    alter: Callable[[Received], Received] = lambda received: received
    """Changes what is delivered."""
    signals: list[Signal] = field(default_factory=list)
    """To be given out once, by the producers."""
    batches: list[int] = field(default_factory=list)
    """Messages accepted at once, send by send."""
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)
    most_in_flight: Counter[int] = field(default_factory=Counter)
    """By producer."""
    most_in_flight_together: int = 0
    deleted: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def make(self, context: TransportContext) -> WatchedTransport:
        self.at("make")
        return WatchedTransport(self, context)

    def note_sent(self, producers: Sequence[int]) -> None:
        self.sent.update(producers)
        for producer in self.sent:
            flying = self.sent[producer] - self.received[producer]
            self.most_in_flight[producer] = max(self.most_in_flight[producer], flying)
        together = self.sent.total() - self.received.total()
        self.most_in_flight_together = max(self.most_in_flight_together, together)


class WatchedTransport(LoopbackTransport):
    """All calls under one lock, so that agents in several threads may share a destination."""

    def __init__(self, watch: Watch, context: TransportContext) -> None:
        self._watch = watch
        with watch.lock:
            super().__init__(
                context, capacity_messages=watch.capacity_messages, confirms=watch.confirms
            )

    def probe(self) -> BrokerFacts:
        self._watch.at("probe")
        return super().probe()

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        declared = super().declare(destinations)
        self._watch.at("declare")
        return declared

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> LoopbackProducers:
        self._watch.at("open_producers")
        return WatchedProducers(
            self._watch, self._broker, lanes, now_ns, self.capabilities.confirms
        )

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> LoopbackConsumers:
        self._watch.at("open_consumers")
        return WatchedConsumers(self._watch, self._broker, lanes, now_ns, want)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        self._watch.at("backlog")
        return super().backlog(subscriptions)

    def delete(self, destinations: Sequence[Destination]) -> None:
        self._watch.deleted += [one.name or "" for one in destinations if one.declared]
        super().delete(destinations)

    def close(self) -> None:
        with self._watch.lock:
            super().close()


class WatchedProducers(LoopbackProducers):
    def __init__(self, watch: Watch, *arguments: Any) -> None:
        self._watch = watch
        super().__init__(*arguments)

    def send(self, batch: Batch) -> int:
        self._watch.at("send")
        with self._watch.lock:
            accepted = super().send(batch)
            self._watch.batches.append(accepted)
            self._watch.note_sent(batch.envelope["producer"][:accepted].tolist())
        return accepted

    def outcomes(self) -> Outcomes:
        with self._watch.lock:
            return super().outcomes()

    def signals(self) -> list[Signal]:
        found, self._watch.signals = self._watch.signals, []
        return found

    def close(self) -> None:
        self._watch.at("close_producers")
        super().close()


class WatchedConsumers(LoopbackConsumers):
    def __init__(self, watch: Watch, *arguments: Any) -> None:
        self._watch = watch
        super().__init__(*arguments)

    def attach(self) -> None:
        self._watch.at("attach")
        with self._watch.lock:
            super().attach()

    def receive(self, timeout_seconds: float) -> Received:
        self._watch.at("receive")
        if self._watch.delay():
            return nothing_received()
        with self._watch.lock:
            received = super().receive(timeout_seconds)
            self._watch.received.update(received.envelope["producer"].tolist())
        return self._watch.alter(received) if len(received) else received

    def close(self) -> None:
        with self._watch.lock:
            super().close()


def breaking_at(wanted: str, error: Exception) -> Callable[[str], None]:
    """What raises that error when a transport reaches that step."""

    def at(step: str) -> None:
        if step == wanted:
            raise error

    return at


def plan(run_id: str = "run-1", **keys: Any) -> Plan:
    defaults = {"phases": {"warmup_seconds": 0.2, "measure_seconds": 0.5, "drain_seconds": 5}}
    return make_plan(Scenario.model_validate(defaults | keys), run_id)


def pairs(count: int) -> dict[str, int]:
    return {"producers": count, "consumers": count, "destinations": count}


def sent(load: Load, phase: str = "measure") -> int:
    return load.total(PRODUCER, "sent", phase)


def assert_all_arrived(load: Load) -> None:
    assert load.control.failures == []
    assert [result.failure for result in load.results] == [None] * len(load.results)
    for phase in BOTH_PHASES:
        assert sent(load, phase) == load.total(CONSUMER, "received", phase)
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.sent == accounts.received_once == sent(load)
    assert load.histogram("latency").count == sent(load)
