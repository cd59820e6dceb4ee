"""One short-lived connection for requests that wait for their answer; a context manager."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bench_spark.errors import BenchError
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.packets import Login
from bench_spark.transports.mqtt.parsing import Message, Parser
from bench_spark.transports.mqtt.protocol import Access, MqttProtocol
from bench_spark.transports.mqtt.wire import Limits, MqttWire
from bench_spark.transports.sockets.line import close_gracefully
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import open_connections
from bench_spark.transports.sockets.runs import ReadBuffer

_IDENTIFIER = 1


class Control:
    def __init__(self, access: Access, login: Login) -> None:
        self._access = access
        self._version = login.version
        self._protocol = MqttProtocol(access, [login])
        self._loop = Loop()
        self._connection: MqttWire | None = None
        self._answers: list[tuple[int, bytes]] = []
        self.messages: list[Message] = []
        """What has arrived."""

    def __enter__(self) -> Control:
        try:
            [self._connection] = open_connections(self._protocol, 1, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._connection.on_packet = lambda kind, body: self._answers.append((kind, body))
        self._connection.begin(
            functools.partial(Parser, self._version, _Keeper(self), keeps_bodies=True)
        )
        return self

    def __exit__(self, *_: object) -> None:
        close_gracefully(self._loop, [self.connection])
        self._loop.close()

    @property
    def connection(self) -> MqttWire:
        assert self._connection is not None
        return self._connection

    @property
    def limits(self) -> Limits:
        return self.connection.limits

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """The QoS granted, or the reason for none."""
        request = packets.subscribe(self._version, _IDENTIFIER, [topic_filter], qos)
        self._ask(request, f"subscription to {topic_filter!r}", lambda: self._answers)
        _, codes = packets.read_suback(self._version, self._answers.pop()[1])
        # What is neither a QoS nor a reason is as good as a refusal.
        return codes[0] if codes and not 2 < codes[0] < packets.FAILED else packets.FAILED

    def publish(self, message: bytes, what: str) -> None:
        """Send a message without an identifier, and wait until the broker has dealt with it."""
        before = self.connection.pings_answered
        self._ask(message + packets.PINGREQ, what, lambda: self.connection.pings_answered > before)

    def wait_for_message(self, timeout_seconds: float) -> bool:
        return self._loop.run_until(lambda: self.messages or self._has_ended, timeout_seconds) and (
            not self._has_ended
        )

    def listen(self, seconds: float) -> None:
        """Take what arrives in that time."""
        self._loop.run_until(lambda: self._has_ended, seconds)

    @property
    def _has_ended(self) -> bool:
        return self.connection.failure is not None

    def _ask(self, request: bytes, what: str, is_answered: Callable[[], object]) -> None:
        self.connection.send(request)
        self._loop.run_until(lambda: is_answered() or self._has_ended, self._access.timeout_seconds)
        if not is_answered():
            raise self.refusal(what)

    def refusal(self, what: str) -> BenchError:
        return self._protocol.refusal(self.connection, self.connection.failure, what)


class _Keeper:
    """Keeps messages of QoS 0 as they come."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        return 0

    def on_message(self, message: Message, at_ns: int) -> None:
        self._control.messages.append(message)

    def on_ack(self, kind: int, identifier: int, code: int, at_ns: int) -> None:
        """Nothing is sent here that is acknowledged."""

    def on_read_end(self, at_ns: int) -> None:
        """Every packet was dealt with by itself."""
