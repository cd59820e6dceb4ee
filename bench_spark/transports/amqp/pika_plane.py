"""The data plane on pika's own channel methods: slow, plain, and the reference for faster ones.

One connection and one channel per lane, all on one loop. Python runs per message here; columns are
taken apart on the way in and put together on the way out.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pika

from bench_spark.errors import BrokerUnreachable
from bench_spark.measure.clock import NowNs
from bench_spark.measure.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    Envelopes,
    empty_envelopes,
    envelope_bytes,
)
from bench_spark.scenario.models import Amqp
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.confirms import ConfirmLedger
from bench_spark.transports.amqp.connection import AmqpConnection, describe_end
from bench_spark.transports.amqp.control import close_gracefully
from bench_spark.transports.amqp.loop import Loop
from bench_spark.transports.amqp.opening import Access, open_channels, open_connections, refusal
from bench_spark.transports.base import (
    Batch,
    Lane,
    OutcomeKind,
    Outcomes,
    Part,
    Received,
    Signal,
    SignalKind,
    no_outcomes,
    nothing_received,
)

UNSENT_LIMIT_BYTES = 64 * 1024
"""A lane that has this much waiting for its socket takes no more messages."""

IDLE_SECONDS = 0.1
"""A group of acknowledgements that is not full after this long without a message is sent anyway."""

_TRANSIENT, _PERSISTENT = 1, 2


class _PikaLane:
    """One connection with its channel; what both ends have in common."""

    def __init__(self, number: int, lane: Lane, connection: AmqpConnection, channel: Any) -> None:
        self.number = number
        self.lane = lane
        self.connection = connection
        self.channel = channel
        self.is_lost = False
        self.end: Exception | None = None


class _PikaLanes:
    """Opening, losing and closing lanes."""

    def __init__(self, access: Access, lanes: Sequence[Lane], now_ns: NowNs) -> None:
        self._access = access
        self._now_ns = now_ns
        self._signals: list[Signal] = []
        self._is_closing = False
        self._loop = Loop()
        try:
            connections = open_connections(access, len(lanes), self._loop, now_ns)
            channels = open_channels(access, connections, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._opened = [
            _PikaLane(number, *parts)
            for number, parts in enumerate(zip(lanes, connections, channels, strict=True))
        ]
        for lane in self._opened:
            lane.connection.on_end = functools.partial(self._lose, lane)
            lane.channel.add_on_close_callback(functools.partial(self._on_channel_end, lane))

    @property
    def descriptor(self) -> int:
        return self._loop.descriptor

    def signals(self) -> list[Signal]:
        self._pump()
        signals, self._signals = self._signals, []
        return signals

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.silence()
        self._before_goodbye()
        close_gracefully(self._loop, [lane.connection for lane in self._opened])
        for lane in self._opened:
            self._abandon(lane)
        self._loop.close()

    def _before_goodbye(self) -> None:
        """Last words of a subclass to the broker."""

    def _abandon(self, lane: _PikaLane) -> None:
        """The lane is gone: settle what was still open on it."""

    def _pump(self) -> None:
        if not self._loop.is_closed:
            self._loop.pump()

    def _on_channel_end(self, lane: _PikaLane, _channel: Any, reason: Exception) -> None:
        self._lose(lane, reason)

    def _lose(self, lane: _PikaLane, reason: Exception) -> None:
        self._lose_because(lane, describe_end(lane.connection, reason), reason)

    def _lose_because(self, lane: _PikaLane, why: str, reason: Exception | None = None) -> None:
        lane.end = lane.end or reason
        if lane.is_lost or self._is_closing:
            return
        lane.is_lost = True
        self._signals.append(Signal(SignalKind.LOST, self._now_ns(), lane.number, reason=why))
        self._abandon(lane)
        if lane.connection.is_open:
            lane.connection.close()

    def _await_answers(self, wanted: int, answers: list[Any], what: str) -> None:
        """Wait until the broker has answered all requests; raise what it said instead."""

        def is_settled() -> bool:
            return len(answers) >= wanted or any(lane.is_lost for lane in self._opened)

        self._loop.run_until(is_settled, self._access.timeout_seconds)
        for lane in self._opened:
            if lane.is_lost:
                raise refusal(self._access, lane.connection, lane.end, what)
        if len(answers) < wanted:
            raise BrokerUnreachable(
                f"{self._access.address}: {what}: no answer within "
                f"{self._access.timeout_seconds:g} s"
            )


class _Outbox:
    """What a producer lane knows besides its connection."""

    def __init__(self, keys: list[str], confirms: int) -> None:
        self.keys = keys
        self.ledger = ConfirmLedger(confirms) if confirms else None
        self.taken: list[int] = []
        """Places in the batch being sent that this lane has taken so far."""
        self.is_blocked = False
        self.returned: Counter[bytes] = Counter()
        """Heads that came back unroutable and are still to be acknowledged."""


class PikaProducers(_PikaLanes):
    def __init__(self, access: Access, amqp: Amqp, lanes: Sequence[Lane], now_ns: NowNs) -> None:
        super().__init__(access, lanes, now_ns)
        self._amqp = amqp
        self._properties = pika.BasicProperties(
            delivery_mode=_PERSISTENT if amqp.persistent else _TRANSIENT
        )
        self._head_bytes = ENVELOPE_BYTES
        self._settled: list[Outcomes] = []
        self._outboxes = [
            _Outbox(
                [naming.routing_key(amqp, one.index, one.name or "") for one in lane.destinations],
                amqp.confirms,
            )
            for lane in lanes
        ]
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        answers: list[Any] = []
        for lane, outbox in zip(self._opened, self._outboxes, strict=True):
            connection, channel = lane.connection, lane.channel
            connection.add_on_connection_blocked_callback(
                functools.partial(self._on_blocked, lane, outbox)
            )
            connection.add_on_connection_unblocked_callback(
                functools.partial(self._on_unblocked, lane, outbox)
            )
            channel.add_on_return_callback(functools.partial(self._on_return, lane, outbox))
            if outbox.ledger is not None:
                channel.confirm_delivery(
                    functools.partial(self._on_settled, lane, outbox.ledger),
                    callback=answers.append,
                )
        if self._amqp.confirms:
            self._await_answers(len(self._opened), answers, "confirm.select")

    # -- sending -----------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        heads = envelope_bytes(np.ascontiguousarray(batch.head)).tobytes()
        self._head_bytes = batch.head_bytes
        tails = itertools.repeat(batch.tail) if isinstance(batch.tail, bytes) else batch.tail
        touched: set[int] = set()
        accepted = 0
        # `tails` may have no end, so the shortest column decides.
        for number, route, tail in zip(
            batch.lane.tolist(), batch.route.tolist(), tails, strict=False
        ):
            lane, outbox = self._opened[number], self._outboxes[number]
            if not self._can_take(lane, outbox):
                break
            start = accepted * ENVELOPE_BYTES
            lane.channel.basic_publish(
                self._amqp.exchange.name,
                outbox.keys[route],
                heads[start : start + batch.head_bytes] + tail,
                self._properties,
                self._amqp.mandatory,
            )
            outbox.taken.append(accepted)
            touched.add(number)
            accepted += 1
        for number in touched:
            self._hand_over(batch, self._opened[number], self._outboxes[number])
        return accepted

    def _can_take(self, lane: _PikaLane, outbox: _Outbox) -> bool:
        if lane.is_lost or outbox.is_blocked or self._is_closing:
            return False
        if outbox.ledger is not None and outbox.ledger.room <= len(outbox.taken):
            return False
        connection = lane.connection
        # Bytes left over from an earlier batch mean that the socket is full; bytes of this batch
        # are collected up to the limit and written together.
        must_flush = not outbox.taken or connection.unsent_bytes >= UNSENT_LIMIT_BYTES
        return not must_flush or connection.unsent_bytes == 0 or connection.flush()

    def _hand_over(self, batch: Batch, lane: _PikaLane, outbox: _Outbox) -> None:
        # The ledger first: a write that fails abandons what the ledger holds.
        if outbox.ledger is not None:
            outbox.ledger.sent(batch.head[outbox.taken])
        outbox.taken.clear()
        lane.connection.flush()

    def commit(self) -> None:
        """No transaction is ever open here, so there is none to end."""

    def flush(self, timeout_seconds: float) -> None:
        self._loop.run_until(
            lambda: not any(lane.connection.unsent_bytes for lane in self._opened),
            timeout_seconds,
        )
        if self._settled or self._signals:
            self._loop.ring()

    # -- what became of it -------------------------------------------------------------------------

    def in_flight(self) -> int:
        return sum(outbox.ledger.open_count for outbox in self._outboxes if outbox.ledger)

    def outcomes(self) -> Outcomes:
        if not self._is_closing:
            self._loop.silence()
        self._pump()
        settled, self._settled = self._settled, []
        if not settled:
            return no_outcomes()
        return Outcomes(
            at_ns=np.concatenate([one.at_ns for one in settled]),
            lane=np.concatenate([one.lane for one in settled]),
            kind=np.concatenate([one.kind for one in settled]),
            head=np.concatenate([one.head for one in settled]),
        )

    def _settle(self, lane: _PikaLane, heads: Envelopes, kind: OutcomeKind, at_ns: int) -> None:
        if not len(heads):
            return
        outcomes = Outcomes(
            at_ns=np.full(len(heads), at_ns, np.int64),
            lane=np.full(len(heads), lane.number, np.uint32),
            kind=np.full(len(heads), kind, np.uint8),
            head=heads,
        )
        if self._outboxes[lane.number].returned:
            self._mark_returned(self._outboxes[lane.number], outcomes)
        self._settled.append(outcomes)

    def _mark_returned(self, outbox: _Outbox, outcomes: Outcomes) -> None:
        """A message returned as unroutable is acknowledged as well: it was returned, not stored."""
        for place, head in enumerate(envelope_bytes(outcomes.head)):
            key = head.tobytes()[: self._head_bytes]
            if outbox.returned[key] > 0:
                outbox.returned[key] -= 1
                outcomes.kind[place] = OutcomeKind.RETURNED
        outbox.returned = +outbox.returned

    def _on_settled(self, lane: _PikaLane, ledger: ConfirmLedger, frame: Any) -> None:
        is_nack = isinstance(frame.method, pika.spec.Basic.Nack)
        heads = ledger.settle(frame.method.delivery_tag, frame.method.multiple)
        self._settle(
            lane,
            heads,
            OutcomeKind.REFUSED if is_nack else OutcomeKind.CONFIRMED,
            lane.connection.read_ns,
        )

    def _on_return(
        self,
        lane: _PikaLane,
        outbox: _Outbox,
        _channel: Any,
        _method: Any,
        _properties: Any,
        body: bytes,
    ) -> None:
        head = body[: self._head_bytes]
        if outbox.ledger is not None:
            outbox.returned[head] += 1
        else:
            self._settle(lane, _heads_of([head]), OutcomeKind.RETURNED, lane.connection.read_ns)

    # -- what happened to lanes --------------------------------------------------------------------

    def _on_blocked(
        self, lane: _PikaLane, outbox: _Outbox, connection: AmqpConnection, frame: Any
    ) -> None:
        outbox.is_blocked = True
        self._signals.append(
            Signal(
                SignalKind.BLOCKED, connection.read_ns, lane.number, reason=str(frame.method.reason)
            )
        )

    def _on_unblocked(
        self, lane: _PikaLane, outbox: _Outbox, connection: AmqpConnection, _frame: Any
    ) -> None:
        outbox.is_blocked = False
        self._signals.append(Signal(SignalKind.UNBLOCKED, connection.read_ns, lane.number))

    def _abandon(self, lane: _PikaLane) -> None:
        ledger = self._outboxes[lane.number].ledger
        if ledger is not None:
            self._settle(lane, ledger.abandon(), OutcomeKind.UNKNOWN, self._now_ns())


class PikaConsumers(_PikaLanes):
    def __init__(
        self,
        access: Access,
        amqp: Amqp,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        want: frozenset[Part],
    ) -> None:
        super().__init__(access, lanes, now_ns)
        self._amqp = amqp
        self._want = want
        self._rows: list[tuple[int, int, int, int, bool, bytes, Any]] = []
        self._acks = [_AckGroup() for _ in lanes]
        self._acknowledged_unreported = 0

    def attach(self) -> None:
        answers: list[Any] = []
        for lane in self._opened:
            lane.channel.add_on_cancel_callback(functools.partial(self._on_cancel, lane))
            if self._amqp.ack == "manual":
                lane.channel.basic_qos(
                    prefetch_count=self._amqp.effective_prefetch, callback=_ignore
                )
            for route, destination in enumerate(lane.lane.destinations):
                lane.channel.basic_consume(
                    destination.name or "",
                    functools.partial(self._on_message, lane, route),
                    auto_ack=self._amqp.ack == "auto",
                    consumer_tag=f"bench-{lane.lane.member}-{route}",
                    callback=answers.append,
                )
        wanted = sum(len(lane.lane.destinations) for lane in self._opened)
        self._await_answers(wanted, answers, "basic.consume")
        if self._rows:
            self._loop.ring()

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self, timeout_seconds: float) -> Received:
        if self._is_closing:
            return nothing_received()
        self._loop.silence()
        self._loop.pump()
        if not self._rows:
            self._acknowledge_idle()
            if timeout_seconds > 0:
                self._loop.run_until(lambda: self._rows or self._signals, timeout_seconds)
        if not self._rows:
            return nothing_received()
        rows, self._rows = self._rows, []
        received_ns, lane, route, tags, redelivered, bodies, headers = zip(*rows, strict=True)
        return Received(
            received_ns=np.array(received_ns, np.int64),
            lane=np.array(lane, np.uint32),
            route=np.array(route, np.uint16),
            head=_heads_of(bodies),
            size=np.fromiter(map(len, bodies), np.uint32, len(bodies)),
            redelivered=np.array(redelivered, np.bool_),
            bodies=bodies if Part.BODY in self._want else None,
            headers=headers if Part.HEADERS in self._want else None,
            token=tags,
        )

    def _on_message(
        self,
        lane: _PikaLane,
        route: int,
        _channel: Any,
        method: Any,
        properties: Any,
        body: bytes,
    ) -> None:
        self._rows.append(
            (
                lane.connection.read_ns,
                lane.number,
                route,
                method.delivery_tag,
                method.redelivered,
                body,
                properties.headers,
            )
        )

    def _on_cancel(self, lane: _PikaLane, frame: Any) -> None:
        route = int(frame.method.consumer_tag.rpartition("-")[2])
        queue = lane.lane.destinations[route].name
        self._lose_because(lane, f"consumer of {queue!r} cancelled by the broker")

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self, received: Received) -> int:
        """Also reports what was acknowledged on its own since the last call (idle remainders)."""
        acknowledged, self._acknowledged_unreported = self._acknowledged_unreported, 0
        if self._amqp.ack == "auto" or self._is_closing:
            return acknowledged
        every = self._amqp.ack_every
        now_seconds = time.monotonic()
        touched: set[int] = set()
        for number, tag in zip(received.lane.tolist(), received.token or (), strict=True):
            lane, group = self._opened[number], self._acks[number]
            if lane.is_lost:
                continue
            group.add(tag, now_seconds)
            touched.add(number)
            if group.count >= every:
                acknowledged += self._send_ack(lane, group)
        for number in touched:
            self._opened[number].connection.flush()
        return acknowledged

    def _send_ack(self, lane: _PikaLane, group: _AckGroup) -> int:
        lane.channel.basic_ack(group.last_tag, multiple=self._amqp.ack_every > 1)
        return group.clear()

    def _acknowledge_idle(self) -> None:
        """Groups that nothing was added to for a while are as good as full."""
        if self._amqp.ack == "manual" and self._amqp.ack_every > 1:
            self._acknowledge_rest(older_than=time.monotonic() - IDLE_SECONDS)

    def _acknowledge_rest(self, older_than: float) -> None:
        for lane, group in zip(self._opened, self._acks, strict=True):
            if group.count and group.added_seconds <= older_than and not lane.is_lost:
                self._acknowledged_unreported += self._send_ack(lane, group)
                lane.connection.flush()

    def _before_goodbye(self) -> None:
        self._acknowledge_rest(older_than=time.monotonic())


class _AckGroup:
    """Messages of one lane that wait to be acknowledged together."""

    __slots__ = ("added_seconds", "count", "last_tag")

    def __init__(self) -> None:
        self.count = 0
        self.last_tag = 0
        self.added_seconds = 0.0

    def add(self, tag: int, now_seconds: float) -> None:
        self.count += 1
        self.last_tag = tag
        self.added_seconds = now_seconds

    def clear(self) -> int:
        count, self.count = self.count, 0
        return count


def _heads_of(bodies: Sequence[bytes]) -> Envelopes:
    """The first 32 bytes of each body, with zeros where a body is shorter."""
    if not bodies:
        return empty_envelopes(0)
    joined = bytearray().join(body[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0") for body in bodies)
    return np.frombuffer(joined, dtype=ENVELOPE_DTYPE)


def _ignore(_frame: Any) -> None:
    """The answer to basic.qos: consume-ok comes behind it and is waited for."""
