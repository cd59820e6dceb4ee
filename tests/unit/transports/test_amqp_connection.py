"""A connection from its login on, with the broker's end in the test's hands."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pika.exceptions
import pika.frame
import pika.spec
import pytest

from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.transports.amqp.connection import (
    AmqpConnection,
    access_for,
    describe_end,
    read_buffer,
)
from bench_spark.transports.amqp.consumers import ConsumerTags, DeliveryDecoder
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    FrameParser,
    FrameTerms,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.base import TransportContext
from bench_spark.transports.batches import ENVELOPE_ONLY
from bench_spark.transports.sockets.buffers import Arrivals
from bench_spark.transports.sockets.loop import Loop

FRAME_MAX = 4096
FRAMING = FrameTerms(1, FRAME_MAX)
PATIENCE_SECONDS = 60.0
spec = pika.spec


LOGIN = (
    spec.Connection.Start(server_properties={"product": "a test"}, mechanisms="PLAIN"),
    spec.Connection.Tune(channel_max=10, frame_max=FRAME_MAX, heartbeat=60),
    spec.Connection.OpenOk(),
)


class Rig:
    """A connection on one end of a socket pair, logged in to the broker on the other."""

    def __init__(self, behind_login: bytes = b"", heartbeat_seconds: int = 0):
        ours, self.broker = socket.socketpair()
        ours.setblocking(False)
        self.broker.settimeout(PATIENCE_SECONDS)
        self.loop = Loop()
        self.arrivals = Arrivals(ENVELOPE_ONLY)
        self.methods: list[Any] = []
        self.ends: list[Exception] = []
        broker = Broker(kind="amqp", uri="amqp://anna:opensesame@broker.example/sales")
        scenario = Scenario.model_validate({"amqp": {"heartbeat_seconds": heartbeat_seconds}})
        context = TransportContext("run", scenario, broker, resolve_credentials(broker))
        self.wire = AmqpConnection(
            ours, self.loop, time.monotonic_ns, read_buffer(), access_for(context)
        )
        assert self._exactly(8) == b"AMQP\x00\x00\x09\x01"
        self.said: list[Any] = []
        for method in LOGIN:
            self.hear(method_frame(0, method))
            answers = {spec.Connection.Start: 1, spec.Connection.Tune: 2}.get(type(method), 0)
            self.said += [self.next_frame().method for _ in range(answers)]
        self.wire.open_channel()
        assert isinstance(self.next_frame().method, spec.Channel.Open)
        self.hear(method_frame(1, spec.Channel.OpenOk()) + behind_login)
        receiver = DeliveryDecoder(0, self.wire.framing, ConsumerTags(b"tag-", 1), self.arrivals)
        parser = FrameParser(self.wire.framing, receiver, self.wire.on_any_method)
        self.wire.begin(parser, self.methods.append)
        self.wire.on_end = self.ends.append
        self.loop.pump()

    def hear(self, data: bytes) -> None:
        self.broker.sendall(data)
        self.loop.pump(PATIENCE_SECONDS)

    def next_frame(self) -> Any:
        """What the broker reads next."""
        start = self._exactly(7)
        rest = self._exactly(int.from_bytes(start[3:7], "big") + 1)
        return pika.frame.decode_frame(start + rest)[1]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.broker.recv(count - len(data))
            assert piece, "hung up"
            data += piece
        return data


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.wire.abort("the test is over")
    made.loop.close()
    made.broker.close()


def delivery(tag: int) -> bytes:
    return b"".join(
        (
            method_frame(1, spec.Basic.Deliver("tag-0", tag, False, "", "key")),
            header_frame(1, 40, spec.BasicProperties()),
            body_frame(1, bytes(40)),
        )
    )


def test_the_login_says_who_we_are_and_takes_what_the_broker_allows(rig: Rig) -> None:
    start_ok, tune_ok, open_ = rig.said
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\0anna\0opensesame")
    assert start_ok.client_properties["connection_name"] == "bench-spark run"
    assert (tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat) == (10, FRAME_MAX, 0)
    assert open_.virtual_host == "sales"
    assert rig.wire.framing == FRAMING
    assert rig.wire.server_properties == {"product": "a test"}


def test_the_beginning_of_a_frame_behind_the_login_is_kept() -> None:
    whole = delivery(1)
    rig = Rig(behind_login=whole[:20])
    rig.hear(whole[20:])
    assert rig.arrivals.take().tag.tolist() == [1]
    rig.wire.send_method(spec.Basic.Qos(prefetch_count=5))
    assert rig.next_frame().method.prefetch_count == 5
    rig.wire.abort("done")


def test_a_full_socket_keeps_the_rest_and_finishes_it_in_order(rig: Rig) -> None:
    piece = bytes(range(256)) * 1024
    sent = b""
    while not rig.wire.unsent:
        rig.wire.send(piece)
        sent += piece
    kept = len(rig.wire.unsent)
    assert kept <= len(piece)
    assert not rig.wire.flush()
    rig.wire.send(b"the end")
    sent += b"the end"
    read = b""
    while len(read) < len(sent):
        rig.loop.pump()
        read += rig.broker.recv(1 << 20)
    assert read == sent
    assert len(rig.wire.unsent) == 0
    assert rig.wire.flush()


def test_close_ends_the_channel_then_the_connection(rig: Rig) -> None:
    rig.wire.close()
    assert not rig.wire.is_open
    assert isinstance(rig.next_frame().method, spec.Channel.Close)
    rig.hear(method_frame(1, spec.Channel.CloseOk()))
    assert isinstance(rig.next_frame().method, spec.Connection.Close)
    assert rig.wire.failure is None
    rig.hear(method_frame(0, spec.Connection.CloseOk()))
    assert isinstance(rig.wire.failure, pika.exceptions.ConnectionClosedByClient)
    assert rig.broker.recv(1) == b""


def test_a_connection_closed_by_the_broker_is_answered_and_told_in_its_words(rig: Rig) -> None:
    rig.hear(delivery(1) + method_frame(0, spec.Connection.Close(320, "CONNECTION_FORCED", 0, 0)))
    assert isinstance(rig.next_frame().method, spec.Connection.CloseOk)
    [end] = rig.ends
    expected = "connection closed by the broker: 320 CONNECTION_FORCED"
    assert describe_end(rig.wire, end) == expected
    assert rig.arrivals.take().tag.tolist() == [1]


def test_a_channel_closed_by_the_broker_is_answered_and_the_connection_lives(rig: Rig) -> None:
    rig.hear(method_frame(1, spec.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40)))
    assert isinstance(rig.next_frame().method, spec.Channel.CloseOk)
    [end] = rig.ends
    assert describe_end(rig.wire, end) == (
        "channel closed by the broker: 404 NOT_FOUND - no exchange"
    )
    assert rig.wire.is_open
    rig.wire.close()
    assert isinstance(rig.next_frame().method, spec.Connection.Close)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the broker sent a frame of kind 72"),
        (HEARTBEAT_FRAME[:-1] + b"x", "without its end mark"),
    ],
)
def test_what_is_no_amqp_ends_the_connection(rig: Rig, said: bytes, why: str) -> None:
    rig.hear(delivery(1) + said)
    [end] = rig.ends
    assert why in describe_end(rig.wire, end)
    assert rig.arrivals.take().tag.tolist() == [1]


def test_a_hang_up_is_lost_after_everything_that_came_before_it(rig: Rig) -> None:
    rig.broker.sendall(b"".join(delivery(tag) for tag in range(50)))
    rig.broker.close()
    rig.loop.pump(PATIENCE_SECONDS)
    rig.loop.pump(PATIENCE_SECONDS)
    assert rig.arrivals.take().tag.tolist() == list(range(50))
    [end] = rig.ends
    assert "closed by the peer" in describe_end(rig.wire, end)
    rig.wire.send(b"nobody listens")


def test_a_write_to_a_broker_that_has_gone_tells_its_reason(rig: Rig) -> None:
    rig.broker.sendall(method_frame(0, spec.Connection.Close(501, "FRAME_ERROR", 0, 0)))
    rig.broker.close()
    rig.wire.send(delivery(1))
    [end] = rig.ends
    assert "501 FRAME_ERROR" in describe_end(rig.wire, end)


def test_other_methods_are_passed_on(rig: Rig) -> None:
    rig.hear(method_frame(0, spec.Connection.Blocked("memory")) + HEARTBEAT_FRAME)
    [method] = rig.methods
    assert method.reason == "memory"
    assert rig.ends == []


def test_channel_flow_is_answered_and_passed_on(rig: Rig) -> None:
    rig.hear(method_frame(1, spec.Channel.Flow(False)))
    answer = rig.next_frame().method
    assert isinstance(answer, spec.Channel.FlowOk)
    assert answer.active is False
    assert [method.active for method in rig.methods] == [False]


def test_a_wire_that_is_held_leaves_what_arrives_in_the_socket(rig: Rig) -> None:
    rig.wire.hold(True)
    rig.broker.sendall(delivery(1))
    rig.loop.pump(0.05)
    assert not rig.arrivals
    rig.wire.send_method(spec.Basic.Ack(7))
    assert rig.next_frame().method.delivery_tag == 7, "writing goes on"
    rig.wire.hold(False)
    rig.loop.pump(PATIENCE_SECONDS)
    assert rig.arrivals.take().tag.tolist() == [1]


def test_a_full_socket_of_a_wire_that_is_held_is_written_but_not_read(rig: Rig) -> None:
    rig.wire.hold(True)
    rig.broker.sendall(delivery(1))
    sent = 0
    while not rig.wire.unsent:
        rig.wire.send(bytes(1 << 16))
        sent += 1 << 16
    read = 0
    while read < sent:
        rig.loop.pump()
        read += len(rig.broker.recv(1 << 20))
    assert not rig.arrivals


def test_a_broker_that_is_not_listened_to_is_not_silent() -> None:
    rig = Rig(heartbeat_seconds=1)
    rig.wire.hold(True)
    rig.loop.run_until(lambda: rig.ends, 3.0)
    assert rig.ends == []
    rig.wire.abort("done")


def test_an_idle_wire_sends_heartbeats_and_gives_up_a_broker_that_is_silent() -> None:
    rig = Rig(heartbeat_seconds=1)
    assert rig.loop.run_until(lambda: rig.ends, PATIENCE_SECONDS)
    assert "no sign of life" in describe_end(rig.wire, rig.ends[0])
    assert isinstance(rig.next_frame(), pika.frame.Heartbeat)
    rig.loop.close()


def test_a_broker_that_sends_heartbeats_is_alive() -> None:
    rig = Rig(heartbeat_seconds=1)
    until = time.monotonic() + 3.2
    while time.monotonic() < until:
        rig.broker.sendall(HEARTBEAT_FRAME)
        rig.loop.run_until(lambda: False, 0.4)
    assert rig.ends == []
    rig.wire.abort("done")
    rig.loop.close()
