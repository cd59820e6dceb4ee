"""Lanes of MQTT whose broker is the other end of a socket pair, read side by side or one by one."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench_spark.core.envelope import envelope_bytes
from bench_spark.transports.base import HEAD_ONLY, Received
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.deliveries import Deliveries, Unreleased
from bench_spark.transports.mqtt.parsing import Parser
from bench_spark.transports.mqtt.together import Together
from bench_spark.transports.mqtt.wire import MqttWire, read_buffer
from bench_spark.transports.sockets import generations
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.crowd import Crowd
from bench_spark.transports.sockets.loop import Loop

TOPICS = (b"bench/run/0", b"bench/run/1", b"other")
CONNACK = {"3.1.1": b"\x20\x02\x00\x00", "5": b"\x20\x03\x00\x00\x00"}


def publish(
    version: str, topic: bytes, payload: bytes, qos: int = 0, identifier: int = 0, flags: int = 0
) -> bytes:
    """Written without the module under test."""
    body = struct.pack(">H", len(topic)) + topic
    if qos:
        body += struct.pack(">H", identifier)
    if version == "5":
        body += b"\x00"
    return packets.packet(0x30 | qos << 1 | flags, body + payload)


@dataclass
class Lane:
    wire: MqttWire
    broker: socket.socket
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    said: list[tuple[str, int]] = field(default_factory=list)
    """PUBCOMPs and PUBRECs that the lane would send."""
    failures: list[str] = field(default_factory=list)


class Lanes:
    """Consumer lanes on one loop, each with its broker at the other end of a pair of sockets.

    Lanes with an even and with an odd number have routes of their own.
    """

    def __init__(self, stack: ExitStack, count: int, version: str, is_crowd: bool) -> None:
        self.version = version
        self.loop = Loop()
        stack.callback(self.loop.close)
        self.arrivals = Arrivals(HEAD_ONLY)
        self.together = Together(self.arrivals, [(f"filter-{one % 2}",) for one in range(count)])
        self._clock = itertools.count(1)
        self._buffer = read_buffer()
        self._crowd = Crowd(self._buffer, self.together.decode)
        if is_crowd:
            self.loop.first_servant = self._crowd
        self.lanes = [self._open(stack, number) for number in range(count)]
        self.loop.pump()

    def _open(self, stack: ExitStack, number: int) -> Lane:
        # TCP, because the wire sets its options.
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
        near.setblocking(False)
        login = packets.Login(self.version, f"client-{number}", None, None, 0)
        wire = MqttWire(near, self.loop, lambda: next(self._clock), self._buffer, login)
        lane = Lane(wire, far)
        far.recv(1000)
        far.sendall(CONNACK[self.version])
        assert self.loop.run_until(lambda: wire.is_open, 5)
        mark = generations.mark(number % 3)
        routes = {topic: place + number % 2 for place, topic in enumerate(TOPICS)}
        receiver = Deliveries(
            number,
            routes.get,
            self.arrivals,
            Unreleased(),
            lambda ids: lane.said.extend(("PUBCOMP", one) for one in ids.tolist()),
            lambda ids: lane.said.extend(("PUBREC", one) for one in ids.tolist()),
            mark,
            lambda likeness, route: self.together.learn(number, likeness, route),
        )
        wire.on_packet = lambda kind, body: lane.packets.append((kind, body))
        wire.on_end = lambda failure: lane.failures.append(str(failure))
        wire.begin(lambda on_packet: Parser(self.version, receiver, on_packet))
        self.together.mark(number, mark)
        wire.join(self._crowd, number)
        return lane

    def hear(self, parts: Sequence[bytes]) -> None:
        """All lanes are sent their part before any of them is read."""
        self.send(parts)
        self.loop.pump()
        # What was longer than one turn.
        while select.select([self.loop.descriptor], [], [], 0)[0]:
            self.loop.pump()

    def send(self, parts: Sequence[bytes]) -> None:
        waiting = []
        for lane, part in zip(self.lanes, parts, strict=True):
            if part and not lane.failures:
                lane.broker.sendall(part)
                waiting.append(lane.wire)
        for wire in waiting:
            select.select([wire], [], [], 5)


@contextmanager
def opened(count: int, version: str = "3.1.1", is_crowd: bool = True) -> Iterator[Lanes]:
    with ExitStack() as stack:
        yield Lanes(stack, count, version, is_crowd)


def by_lane(received: Received, lanes: int) -> list[list[tuple[Any, ...]]]:
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(lanes)]
    for lane, *rest, head in zip(
        received.lane.tolist(),
        received.route.tolist(),
        received.size.tolist(),
        received.redelivered.tolist(),
        received.tag.tolist(),
        envelope_bytes(received.head),
        strict=True,
    ):
        rows[lane].append((*rest, head.tobytes()))
    return rows
