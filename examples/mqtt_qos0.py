"""MQTT 3.1.1 at QoS 0 for bench-spark: no acknowledgements, no TLS."""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import ENVELOPE_BYTES, byte_rows_of, envelopes_from_bytes
from bench_spark.errors import BrokerUnreachable, LoginRefused
from bench_spark.transports.base import (
    BrokerFacts,
    Capabilities,
    Consumers,
    Destination,
    Lane,
    Producers,
    Signal,
    SignalKind,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    Batch,
    Outcomes,
    Part,
    Received,
    no_outcomes,
    nothing_received,
)

CONNECT, CONNACK, PUBLISH, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x82, 0x90
MOST_UNSENT_BYTES = 1 << 20


def packet(kind: int, *fields: bytes) -> bytes:
    """Kind, length (seven bits to a byte, the lowest first), fields."""
    body = b"".join(fields)
    length, rest = bytearray(), len(body)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([kind, *length, rest]) + body


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


class Connection:
    """One lane: logged in, and non-blocking from then on."""

    def __init__(self, context: TransportContext, topics: Sequence[str] = ()) -> None:
        self.topics = list(topics)
        self.unsent = bytearray()
        self._inbound = bytearray()
        broker, login = context.broker, context.credentials
        self.address = f"{broker.host}:{broker.port}"
        user = [text(login.username)] if login.username else []
        if user and login.password:
            user.append(text(login.password.get_secret_value()))
        flags = 0x02 | (0x80 if user else 0) | (0x40 if len(user) > 1 else 0)
        # Protocol level 4 is MQTT 3.1.1; no keep-alive; no client id: the broker chooses one.
        hello = packet(CONNECT, text("MQTT"), bytes([4, flags, 0, 0]), text(""), *user)
        self._timeout_seconds = broker.connect_timeout_seconds
        try:
            self.socket = socket.create_connection(
                (broker.host, broker.port), self._timeout_seconds
            )
        except OSError as error:
            raise BrokerUnreachable(f"{self.address}: {error}") from error
        # Else the kernel holds small packets back, and that delay would be measured.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind, answer = self.ask(hello)
        if kind != CONNACK:
            raise BrokerUnreachable(f"{self.address}: no answer in MQTT's protocol")
        if answer[1]:
            raise LoginRefused(f"{self.address}: the broker refused the login, code {answer[1]}")

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send and wait for the answer: only before the load starts."""
        try:
            self.socket.settimeout(self._timeout_seconds)
            self.socket.sendall(request)
            while not (found := self.packets()):
                pass  # half a packet: recv waits for the rest
        except OSError as error:
            raise BrokerUnreachable(f"{self.address}: {error}") from error
        self.socket.setblocking(False)
        return found[0]

    def packets(self) -> list[tuple[int, bytes]]:
        """The whole packets among what has arrived."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._inbound += data
        found = []
        while (cut := self._first_packet()) is not None:
            start, end = cut
            found.append((self._inbound[0], bytes(self._inbound[start:end])))
            del self._inbound[:end]
        return found

    def _first_packet(self) -> tuple[int, int] | None:
        length = 0
        for place, digit in enumerate(self._inbound[1:5]):
            length |= (digit & 127) << 7 * place
            if digit < 128:
                end = place + 2 + length
                return (place + 2, end) if len(self._inbound) >= end else None
        return None

    def flush(self) -> None:
        """Write what the socket takes now."""
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass  # the rest follows when there is room again


class Lanes:
    """What both ends share: connections, one descriptor for all of them, and signals."""

    def __init__(self, context: TransportContext, lanes: Sequence[Lane], now_ns: NowNs) -> None:
        self._now_ns = now_ns
        self._selector = selectors.EpollSelector()
        self._lost: list[Signal] = []
        self._connections = [
            Connection(context, [one.name or "" for one in lane.destinations]) for lane in lanes
        ]

    @property
    def descriptor(self) -> int:
        return self._selector.fileno()

    def signals(self) -> list[Signal]:
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.socket.close()

    def _lose(self, lane: int, error: OSError) -> None:
        connection = self._connections[lane]
        connection.unsent.clear()
        if connection.socket in self._selector.get_map():
            self._selector.unregister(connection.socket)
        reason = f"{connection.address}: {error}"
        self._lost.append(Signal(SignalKind.LOST, self._now_ns(), lane, reason=reason))


class MqttProducers(Lanes, Producers):
    def send(self, batch: Batch) -> int:
        accepted = 0
        envelopes = byte_rows_of(batch.envelope)[:, : batch.envelope_bytes]
        for lane, route, envelope in zip(batch.lane, batch.route, envelopes, strict=True):
            connection = self._connections[lane]
            if len(connection.unsent) > MOST_UNSENT_BYTES:
                break
            payload = batch.payload if isinstance(batch.payload, bytes) else batch.payload[accepted]
            topic = text(connection.topics[route])
            connection.unsent += packet(PUBLISH, topic, envelope.tobytes(), payload)
            accepted += 1
        self._write()
        return accepted

    def _write(self) -> None:
        for lane, connection in enumerate(self._connections):
            try:
                connection.flush()
            except OSError as error:
                self._lose(lane, error)
            is_watched = connection.socket in self._selector.get_map()
            if connection.unsent and not is_watched:
                self._selector.register(connection.socket, selectors.EVENT_WRITE)
            elif is_watched and not connection.unsent:
                self._selector.unregister(connection.socket)

    def outcomes(self) -> Outcomes:
        """QoS 0 has none; but the agent calls this when a full socket has room again."""
        self._write()
        return no_outcomes()

    def in_flight(self) -> int:
        return 0

    def commit(self) -> None:
        """There are no transactions."""

    def flush(self, timeout_seconds: float) -> None:
        deadline_ns = self._now_ns() + int(timeout_seconds * 1e9)
        while any(one.unsent for one in self._connections) and self._now_ns() < deadline_ns:
            self._selector.select(0.01)
            self._write()


class MqttConsumers(Lanes, Consumers):
    def __init__(
        self, context: TransportContext, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part]
    ) -> None:
        super().__init__(context, lanes, now_ns)
        self._group = context.run_id
        self._want = want

    def attach(self) -> None:
        for lane, connection in enumerate(self._connections):
            # A shared subscription: consumers of one topic divide its messages among them.
            wanted = [text(f"$share/{self._group}/{topic}") + b"\0" for topic in connection.topics]
            kind, answer = connection.ask(packet(SUBSCRIBE, b"\0\1", *wanted))
            if kind != SUBACK or 0x80 in answer[2:]:
                raise LoginRefused(f"{connection.address}: the broker refused a subscription")
            self._selector.register(connection.socket, selectors.EVENT_READ, lane)

    def detach(self) -> bool:
        """A short way: what is on its way now is not waited for."""
        return False

    def receive(self, timeout_seconds: float) -> Received:
        lanes, routes, bodies, times = [], [], [], []
        for key, _ in self._selector.select(timeout_seconds):
            received_ns = self._now_ns()
            connection = self._connections[key.data]
            try:
                packets = connection.packets()
            except OSError as error:
                self._lose(key.data, error)
                continue
            for kind, content in packets:
                if kind & 0xF0 == PUBLISH:
                    end = 2 + struct.unpack_from(">H", content)[0]
                    lanes.append(key.data)
                    routes.append(connection.topics.index(content[2:end].decode()))
                    bodies.append(content[end:])
                    times.append(received_ns)
        if not bodies:
            return nothing_received()
        envelopes = b"".join(body[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0") for body in bodies)
        return Received.of_columns(
            received_ns=np.array(times, np.int64),
            lane=np.array(lanes, np.uint32),
            route=np.array(routes, np.uint16),
            envelope=envelopes_from_bytes(
                np.frombuffer(envelopes, np.uint8).reshape(-1, ENVELOPE_BYTES)
            ),
            size=np.array([len(body) for body in bodies], np.uint32),
            redelivered=np.zeros(len(bodies), np.bool_),
            bodies=bodies if Part.BODY in self._want else None,
        )

    def acknowledge(self, received: Received) -> int:
        return 0  # QoS 0: there is nothing to acknowledge


class MqttTransport:
    capabilities = Capabilities()  # bodies, and nothing else: no confirms, no headers, no keys

    def __init__(self, context: TransportContext) -> None:
        self._context = context

    def probe(self) -> BrokerFacts:
        Connection(self._context).socket.close()
        return BrokerFacts(product="MQTT broker", version="unknown", client_library="mqtt_qos0")

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Topics need no making, so none is `declared`, and none will be deleted."""
        return tuple(
            replace(one, name=f"bench/{self._context.run_id}/{one.index}") for one in destinations
        )

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Every topic is there, as far as anybody can tell."""
        return self.declare(destinations)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> MqttProducers:
        return MqttProducers(self._context, lanes, now_ns)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> MqttConsumers:
        return MqttConsumers(self._context, lanes, now_ns, want)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """A topic stores nothing at QoS 0: what did not arrive is lost."""
        return tuple(0 for _ in subscriptions)

    def delete(self, destinations: Sequence[Destination]) -> None:
        """Nothing was made."""

    def close(self) -> None:
        """Nothing stays open between calls."""
