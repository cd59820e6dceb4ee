"""What the tests of transports share: making one, sending messages, collecting them again."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_SECONDS, eventually
from restartable import kill

from bench_spark import brokers
from bench_spark.brokers import BrokerStatus
from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.core.clock import Clock
from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    TIMESTAMP_BYTES,
    Envelopes,
    empty_envelopes,
    run_tag,
)
from bench_spark.errors import EnvironmentNotReady
from bench_spark.transports.base import (
    Consumers,
    Destination,
    Lane,
    Producers,
    Signal,
    SignalKind,
    Transport,
    TransportContext,
    alone,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Batch, Headers, Outcomes, Part, Received
from bench_spark.transports.loopback import LoopbackTransport
from bench_spark.transports.registry import make_transport

CLOCK = Clock.local()

_run_numbers = itertools.count()
_consumer_uri: ContextVar[str | None] = ContextVar("consumer_uri", default=None)
_mqtt_version: ContextVar[str] = ContextVar("mqtt_version", default="3.1.1")


@contextmanager
def mqtt_version(name: str) -> Iterator[None]:
    """Transports opened meanwhile use this version if they speak MQTT."""
    token = _mqtt_version.set(name)
    try:
        yield
    finally:
        _mqtt_version.reset(token)


@contextmanager
def consumer_uri(uri: str) -> Iterator[None]:
    """Consumers of HTTP and TCP opened meanwhile listen here."""
    token = _consumer_uri.set(uri)
    try:
        yield
    finally:
        _consumer_uri.reset(token)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def open_transport(broker: Broker, run_id: str | None = None, **scenario: Any) -> Transport:
    return make_transport(_context(broker, run_id, scenario))


def left_in(transport: Transport, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
    return transport.backlog(alone(destinations))


def open_confirming(broker: Broker, in_flight: int = 50, **scenario: Any) -> Transport:
    """A transport that gives every message an outcome, in this protocol's way."""
    if broker.kind == "loopback":
        return LoopbackTransport(_context(broker, None, scenario), confirms=True)
    if broker.kind == "amqp":
        scenario["amqp"] = {"confirms": in_flight}
    if broker.kind == "mqtt":
        scenario["mqtt"] = {"qos": 1, "in_flight": in_flight}
    return open_transport(broker, **scenario)


def transport_scenario(broker: Broker, **scenario: Any) -> Scenario:
    """What `open_transport` makes its transport from."""
    return _context(broker, None, scenario).scenario


def _context(broker: Broker, run_id: str | None, scenario: dict[str, Any]) -> TransportContext:
    if broker.kind in ("http", "tcp"):
        scenario[broker.kind] = {
            "consumer_uri": _consumer_uri.get(),
            **scenario.get(broker.kind, {}),
        }
    # Larger than any body of these tests: what is more than twice as large is refused.
    scenario.setdefault("message", {"bytes": 400_000})
    scenario["mqtt"] = {"version": _mqtt_version.get(), **scenario.get("mqtt", {})}
    return TransportContext(
        run_id=run_id or f"contract-{time.time_ns()}-{next(_run_numbers)}",
        scenario=Scenario.model_validate(scenario),
        broker=broker,
        credentials=resolve_credentials(broker),
    )


@contextmanager
def declared(transport: Transport, count: int = 1) -> Iterator[tuple[Destination, ...]]:
    """Destinations that are gone afterwards."""
    destinations = transport.declare([Destination(index) for index in range(count)])
    try:
        yield destinations
    finally:
        transport.delete(destinations)
        transport.close()


@contextmanager
def producing(transport: Transport, *lanes: Sequence[Destination]) -> Iterator[Producers]:
    producers = transport.open_producers(numbered(lanes), CLOCK.now_ns)
    try:
        yield producers
    finally:
        producers.close()


@contextmanager
def consuming(
    transport: Transport, *lanes: Sequence[Destination], want: frozenset[Part] = ENVELOPE_ONLY
) -> Iterator[Consumers]:
    consumers = transport.open_consumers(numbered(lanes), CLOCK.now_ns, want)
    try:
        consumers.attach()
        yield consumers
    finally:
        consumers.close()


@contextmanager
def exchanging(
    transport: Transport,
    producer_lanes: int = 1,
    consumer_lanes: int = 1,
    want: frozenset[Part] = ENVELOPE_ONLY,
) -> Iterator[tuple[Producers, Consumers]]:
    """Both ends of one destination."""
    with (
        declared(transport) as made,
        consuming(transport, *[made] * consumer_lanes, want=want) as consumers,
        producing(transport, *[made] * producer_lanes) as producers,
    ):
        yield producers, consumers


def numbered(lanes: Sequence[Sequence[Destination]]) -> list[Lane]:
    return [Lane(member, tuple(destinations)) for member, destinations in enumerate(lanes)]


def envelopes(count: int, producer: int | Sequence[int] = 0, first: int = 0) -> Envelopes:
    """Envelopes with every field set, numbered from `first`."""
    made = empty_envelopes(count)
    made["sent_ns"] = CLOCK.now_ns()
    made["intended_ns"] = made["sent_ns"] - 1
    made["sequence"] = np.arange(first, first + count)
    made["producer"] = producer
    made["run_tag"] = run_tag("contract")
    return made


def batch(
    made: Envelopes,
    lane: int | Sequence[int] = 0,
    route: int | Sequence[int] = 0,
    body_bytes: int = 64,
    payloads: Sequence[bytes] | None = None,
) -> Batch:
    """One batch; the payload is shared unless `payloads` are given."""
    envelope_bytes = ENVELOPE_BYTES if body_bytes >= ENVELOPE_BYTES else TIMESTAMP_BYTES
    return Batch(
        lane=np.broadcast_to(np.asarray(lane, np.uint32), len(made)).copy(),
        envelope=made,
        payload=bytes(body_bytes - envelope_bytes) if payloads is None else payloads,
        route=np.broadcast_to(np.asarray(route, np.uint16), len(made)).copy(),
        envelope_bytes=envelope_bytes,
    )


def whole(
    bodies: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
    headers: Sequence[Headers] | None = None,
    lane: int | Sequence[int] = 0,
) -> Batch:
    """Messages that are all somebody's data: nothing of their envelopes is in them."""
    made = batch(envelopes(len(bodies), lane), lane, payloads=bodies)
    return replace(made, envelope_bytes=0, keys=keys, headers=headers)


def column(parts: list[Received], name: str) -> list[Any]:
    """Of what was collected: `bodies`, `keys` or `headers`."""
    return [one for part in parts for one in getattr(part, name)]


@dataclass
class Settled:
    """Outcomes collected while sending."""

    parts: list[Outcomes]

    @property
    def kinds(self) -> list[int]:
        return [int(kind) for part in self.parts for kind in part.kind]

    @property
    def envelopes(self) -> Envelopes:
        return np.concatenate([part.envelope for part in self.parts] or [empty_envelopes(0)])


def send_all(producers: Producers, whole: Batch, expected_outcomes: int = 0) -> Settled:
    """Send until all is accepted, then wait for that many outcomes."""
    settled = Settled([])
    deadline = time.monotonic() + PATIENCE_SECONDS
    rest = whole
    while len(rest) or len(settled.kinds) < expected_outcomes:
        assert time.monotonic() < deadline, f"{len(rest)} unsent, outcomes {settled.kinds}"
        if len(rest):
            rest = rest.starting_at(producers.send(rest))
        outcomes = producers.outcomes()
        if len(outcomes):
            settled.parts.append(replace(outcomes, rows=outcomes.rows.copy()))
    producers.flush(PATIENCE_SECONDS)
    return settled


def collect(
    consumers: Consumers, count: int, acknowledge: bool = True, extra_seconds: float = 0.1
) -> list[Received]:
    """Receive that many messages, and a moment longer to see that no more come."""
    parts: list[Received] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen = 0
    while seen < count and time.monotonic() < deadline:
        seen += receive_into(parts, consumers, 0.05, acknowledge)
    moment = time.monotonic() + extra_seconds
    while time.monotonic() < moment:
        seen += receive_into(parts, consumers, 0.02, acknowledge)
    assert seen == count
    return parts


def receive_into(
    parts: list[Received], consumers: Consumers, timeout_seconds: float, acknowledge: bool
) -> int:
    received = consumers.receive(timeout_seconds)
    if len(received):
        bodies = None if received.bodies is None else [bytes(body) for body in received.bodies]
        # Rows and bodies are the transport's own until the next receive.
        parts.append(replace(received.kept(), bodies=bodies))
        if acknowledge:
            consumers.acknowledge(received)
    return len(received)


def joined(parts: list[Received], column: str) -> Any:
    return np.concatenate([getattr(part, column) for part in parts])


@contextmanager
def running(name: str) -> Iterator[BrokerStatus]:
    """A broker of one's own; the test is skipped where it is not installed."""
    try:
        with brokers.embedded(name) as started:
            yield started[name]
            kill(started[name])
    except EnvironmentNotReady as missing:
        pytest.skip(str(missing))


def signals_until(kind: SignalKind, *sides: Producers | Consumers) -> list[Signal]:
    """All signals of these until each has given one of this kind."""
    found: dict[int, list[Signal]] = {number: [] for number in range(len(sides))}

    def is_told() -> bool:
        for number, side in enumerate(sides):
            found[number] += side.signals()
        return all(any(one.kind is kind for one in told) for told in found.values())

    assert eventually(is_told), found
    return [one for told in found.values() for one in told]
