"""Lanes on sockets: opened together, reopened when they are lost, closed in order.

`SocketProducers` and `SocketConsumers` are what an agent drives, whatever the protocol. A protocol
gives them a `Sender` or a `Receiver`: what is asked of the broker, decoded and written.

Batches are divided among lanes: a lane takes whole messages only, and what its socket does not take
at once is kept, at most one write's worth, until which has gone it takes no more.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, Protocol

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerUnreachable
from bench_spark.transports.base import Consumers, Lane, Producers, Signal, SignalKind
from bench_spark.transports.batches import (
    I64,
    Batch,
    Outcomes,
    Received,
    common_payload_bytes,
    nothing_received,
)
from bench_spark.transports.sockets.buffers import Arrivals, by_lane, is_of_one_lane
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.messages import WRITE_BYTES
from bench_spark.transports.sockets.opening import (
    ConnectionT,
    Connector,
    OpenLane,
    Reopener,
    ReopeningRule,
    close_gracefully,
    open_connections,
)


class Decoded(Protocol):
    """What decoders have written and nobody has taken yet."""

    def __bool__(self) -> bool: ...


class OutcomeSource(Decoded, Protocol):
    def take(self) -> Outcomes: ...


class Role(ABC, Generic[ConnectionT]):
    """What both senders and receivers do with their lanes."""

    request = "connecting"
    """What `begin` asks the broker for, for messages to people."""
    lanes: Lanes[ConnectionT]
    """Its lanes set it, before the first of them is equipped."""
    decoded: Decoded

    @abstractmethod
    def equip(self, lane: OpenLane[ConnectionT]) -> None:
        """Give a new connection what decodes that which arrives on it. Nothing of the lane's
        earlier generations may be used any more."""

    def begin(self, lane: OpenLane[ConnectionT]) -> None:
        """Ask the broker for what the lane needs: count it in `unanswered`, and pass each answer to
        `Lanes.answered`. By default a connection that is open is ready."""

    def abandon(self, lane: OpenLane[ConnectionT]) -> None:
        """The lane is gone: settle what was still open on it."""

    def replaces(self, lane: OpenLane[ConnectionT], reason: Exception) -> bool:
        """Whether the role itself gets another connection in place of one that has ended."""
        return False

    def before_close(self) -> None:
        """Say the last words to the broker."""

    def after_close(self) -> None:
        """All connections have ended."""


class Sender(Role[ConnectionT]):
    """What a protocol does for producers."""

    decoded: OutcomeSource

    @abstractmethod
    def room(self, lane: OpenLane[ConnectionT]) -> int:
        """How many messages the broker lets the lane send now, whatever its socket takes."""

    @abstractmethod
    def write(self, lane: OpenLane[ConnectionT], batch: Batch) -> None:
        """Hand these messages to the lane's socket."""

    def commit(self) -> None:
        """End the open transaction; by default there are none."""

    def in_flight(self) -> int:
        return 0

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        return {}


class Receiver(Role[ConnectionT]):
    """What a protocol does for consumers."""

    decoded: Arrivals
    acknowledges = False
    """Whether `acknowledge` is to be called."""
    unreported = 0
    """Messages acknowledged since it was called last."""

    def acknowledge(self, received: Received) -> int:
        """See `bench_spark.transports.base.Consumers`."""
        return 0

    def be_idle(self) -> None:
        """Nothing has come since the last time."""

    @abstractmethod
    def detach(self) -> bool:
        """See `bench_spark.transports.base.Consumers`."""


class Lanes(Generic[ConnectionT]):
    """The lanes of one role, on a loop of their own."""

    def __init__(
        self,
        protocol: Connector[ConnectionT],
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None,
        role: Role[ConnectionT],
    ) -> None:
        """Without a rule a lost lane stays lost."""
        self.protocol = protocol
        self.now_ns = now_ns
        self._rule = rule
        self._role = role
        self._decoded = role.decoded
        self.signals: list[Signal] = []
        """Not taken yet."""
        self.is_closing = False
        self.has_closed_in_order = True
        self.held: frozenset[int] = frozenset()
        """Numbers of lanes that are not read."""
        self._reopener: Reopener[ConnectionT] | None = None
        self.loop = Loop()
        self.open = [OpenLane[ConnectionT](number, lane) for number, lane in enumerate(lanes)]
        self.generations: I64 = np.zeros(len(lanes), np.int64)
        """By lane, as its own `generation`."""
        role.lanes = self
        try:
            opened = open_connections(
                protocol, len(lanes), self.loop, now_ns, protocol.access.on_opened
            )
            protocol.ready_all(opened, self.loop)
            # Nothing is read between these steps, so nothing can arrive that nobody expects.
            for lane, connection in zip(self.open, opened, strict=True):
                self.install(lane, connection)
        except BaseException:
            self._close_loop()
            raise
        if protocol.gathering is not None:
            self.loop.add(protocol.gathering)

    # -- for the agent -----------------------------------------------------------------------------

    def wake_if_more(self) -> None:
        """Whoever serves the sockets decodes whatever is there, asked for or not. What the caller
        did not take must keep the descriptor readable, or it would lie here till the next read."""
        if self.signals or self._decoded:
            self.loop.wake()

    def take_signals(self) -> list[Signal]:
        self.loop.pump()
        signals, self.signals = self.signals, []
        self.wake_if_more()
        return signals

    def hold(self, numbers: Collection[int]) -> None:
        for number in self.held.symmetric_difference(numbers):
            if not self.open[number].is_lost:
                self.open[number].connection.hold(number in numbers)
        self.held = frozenset(numbers)

    def close(self) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        if self._reopener is not None:
            self._reopener.close()
        self._role.before_close()
        connections = [lane.connection for lane in self.open]
        self.has_closed_in_order = close_gracefully(self.loop, connections)
        for lane in self.open:
            self._role.abandon(lane)
        self._close_loop()
        self._role.after_close()

    def _close_loop(self) -> None:
        self.loop.close()
        if self.protocol.gathering is not None:
            self.protocol.gathering.close()

    # -- opening, losing, reopening ----------------------------------------------------------------

    def install(self, lane: OpenLane[ConnectionT], connection: ConnectionT) -> None:
        """Give the lane its connection."""
        # A new connection is read, whatever became of the last one.
        self.held -= {lane.number}
        lane.connection = connection
        self._role.equip(lane)
        connection.on_end = functools.partial(self._ended, lane, connection)
        if connection.failure is not None:
            self._ended(lane, connection, connection.failure)

    def begin(self) -> None:
        """Make all lanes ready, and from then on reopen those that are lost."""
        for lane in self.open:
            self._role.begin(lane)
        self._await_answers(self._role.request)
        if self._rule is not None:
            self._reopener = Reopener(
                self.protocol,
                self._rule,
                self.loop,
                self.now_ns,
                self._begin_again,
                self._give_up,
            )

    def _begin_again(self, lane: OpenLane[ConnectionT], connection: ConnectionT) -> None:
        lane.generation += 1
        self.generations[lane.number] = lane.generation
        lane.unanswered = 0
        lane.end = None
        self.install(lane, connection)
        self._role.begin(lane)
        if not lane.unanswered:
            self._reopened(lane)

    def answered(self, lane: OpenLane[ConnectionT]) -> None:
        lane.unanswered -= 1
        if not lane.unanswered and lane.is_lost:
            self._reopened(lane)

    def _reopened(self, lane: OpenLane[ConnectionT]) -> None:
        # It may have been lost again before it had begun.
        if self._reopener is not None and self._reopener.is_beginning(lane):
            self._reopener.done(lane)
            lane.is_lost = False
            self.signals.append(
                Signal(SignalKind.REOPENED, self.now_ns(), lane.number, lane.generation)
            )

    def _give_up(self, lane: OpenLane[ConnectionT], why: str) -> None:
        self.signals.append(
            Signal(SignalKind.LOST, self.now_ns(), lane.number, lane.generation, reason=why)
        )

    def _ended(
        self, lane: OpenLane[ConnectionT], connection: ConnectionT, reason: Exception
    ) -> None:
        is_present = connection is lane.connection  # and not one of an earlier generation
        if is_present and (self.is_closing or not self._role.replaces(lane, reason)):
            self.lose(lane, reason)

    def lose(self, lane: OpenLane[ConnectionT], reason: Exception) -> None:
        lane.end = lane.end or reason
        protocol, connection = self.protocol, lane.connection
        may_pass = protocol.may_pass(connection, reason)
        self.lose_because(lane, protocol.describe_end(connection, reason), may_pass)

    def lose_because(self, lane: OpenLane[ConnectionT], why: str, may_pass: bool = False) -> None:
        if self.is_closing:
            return
        if self._reopener is not None and self._reopener.is_beginning(lane):
            self._reopener.failed(lane, why, is_final=not may_pass)
            return
        if lane.is_lost:
            return
        lane.is_lost = True
        is_reopening = may_pass and self._reopener is not None
        self.signals.append(
            Signal(
                SignalKind.LOST,
                self.now_ns(),
                lane.number,
                lane.generation,
                reason=why,
                is_reopening=is_reopening,
            )
        )
        self._role.abandon(lane)
        if lane.connection.is_open:
            lane.connection.close()
        if self._reopener is not None and is_reopening:
            self._reopener.add(lane, why)

    def _await_answers(self, what: str) -> None:
        """Wait until the broker has answered all requests; raise what it said instead."""
        access = self.protocol.access

        def count_unanswered() -> int:
            # One lane lost is enough to know how this ends.
            if any(lane.is_lost for lane in self.open):
                return 0
            return sum(lane.unanswered for lane in self.open)

        self.loop.run_down(count_unanswered, access.timeout_seconds)
        for lane in self.open:
            if lane.is_lost:
                raise self.protocol.refusal(lane.connection, lane.end, what)
        if count_unanswered():
            raise BrokerUnreachable(
                f"{access.address}: {what}: no answer within {access.timeout_seconds:g} s"
            )

    def ask_all(self, ask: Callable[[OpenLane[ConnectionT]], None], seconds: float) -> bool:
        """Ask the broker for something on all lanes that are open, as in `Role.begin`; whether it
        has answered, with at most so many seconds between two answers."""
        asked = [lane for lane in self.open if not lane.is_lost and lane.connection.is_open]
        for lane in asked:
            ask(lane)
        return self.loop.run_down(
            lambda: sum(lane.unanswered for lane in asked if not lane.is_lost), seconds
        )


# -- producers -------------------------------------------------------------------------------------


class SocketProducers(Producers, Generic[ConnectionT]):
    """See `bench_spark.transports.base.Producers`."""

    def __init__(
        self,
        sender: Sender[ConnectionT],
        protocol: Connector[ConnectionT],
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._sender = sender
        self._settled = sender.decoded
        self._lanes = Lanes(protocol, lanes, now_ns, rule, sender)
        self._open = self._lanes.open
        try:
            self._lanes.begin()
        except BaseException:
            self._lanes.close()
            raise

    @property
    def descriptor(self) -> int:
        return self._lanes.loop.descriptor

    def send(self, batch: Batch) -> int:
        numbers = batch.lane
        count = len(numbers)
        if self._lanes.is_closing or not count:
            return 0
        if len(self._open) > 1 and not is_of_one_lane(numbers):
            return self._send_by_lane(batch)
        lane = self._open[numbers.item(0)]
        room = self._room(lane)
        if room < count or (count > 1 and not batch.fits(WRITE_BYTES)):
            return self._send_in_portions(lane, batch, room)
        self._sender.write(lane, batch)
        return count

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        # Without trying to write: a socket that has room again is written to by the loop.
        return {
            number
            for number in lanes
            if self._open[number].connection.unsent or self._sender.room(self._open[number]) <= 0
        }

    def commit(self) -> None:
        self._sender.commit()

    def in_flight(self) -> int:
        return self._sender.in_flight()

    def outcomes(self) -> Outcomes:
        lanes = self._lanes
        lanes.loop.pump()
        if lanes.signals:
            lanes.loop.wake()
        return self._settled.take()

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        return self._sender.answers_by_status

    def signals(self) -> list[Signal]:
        return self._lanes.take_signals()

    def flush(self, timeout_seconds: float) -> None:
        """Write what still waits for its socket."""
        self._lanes.loop.run_until(
            lambda: not any(lane.connection.unsent for lane in self._open), timeout_seconds
        )
        self._lanes.wake_if_more()

    def close(self) -> None:
        self._lanes.close()
        self.has_closed_in_order = self._lanes.has_closed_in_order

    # -- dividing a batch among lanes --------------------------------------------------------------

    def _room(self, lane: OpenLane[ConnectionT]) -> int:
        """How many messages the lane takes now."""
        room = self._sender.room(lane)
        if room <= 0 or not lane.connection.unsent:
            return room
        # Again: a write that failed has ended the lane.
        return self._sender.room(lane) if lane.connection.flush() else 0

    def _send_in_portions(self, lane: OpenLane[ConnectionT], batch: Batch, room: int) -> int:
        if room <= 0:
            return 0
        accepted, count, portions = 0, len(batch), _Portions(batch)
        while room > 0 and accepted < count:
            end = portions.end(accepted, min(count, accepted + room))
            self._sender.write(lane, batch.part(accepted, end))
            accepted = end
            room = 0 if accepted == count else self._room(lane)
        return accepted

    def _send_by_lane(self, batch: Batch) -> int:
        """Accepted is a prefix of the batch: it ends where the first lane has no more room."""
        if self._room(self._open[batch.lane[0]]) <= 0:
            return 0  # before the work of grouping: full lanes are tried again and again
        groups = by_lane(batch.lane)
        portions = _Portions(batch, groups.order)
        accepted = len(batch)
        for number, start, end in groups:
            room = max(0, min(portions.end(start, end) - start, self._room(self._open[number])))
            if end - start > room:
                accepted = min(accepted, int(groups.order[start + room]))
        if not accepted:
            return 0
        ordered = batch.at(groups.order)
        for number, start, end in groups:
            if accepted < len(batch):
                end = start + int(groups.order[start:end].searchsorted(accepted))
            if end > start:
                self._sender.write(self._open[number], ordered.part(start, end))
        return accepted


class _Portions:
    """How many messages go into one write: of a size as many as fit, and always one."""

    def __init__(self, batch: Batch, order: I64 | None = None) -> None:
        """`order` in which the batch is written."""
        payload_bytes = common_payload_bytes(batch.payload)
        self._most = 0
        self._ends: I64 | None = None
        if payload_bytes is not None:
            self._most = max(1, WRITE_BYTES // max(1, batch.envelope_bytes + payload_bytes))
        else:
            lengths = map(len, batch.payload)
            sizes = np.fromiter(lengths, np.int64, len(batch.payload)) + batch.envelope_bytes
            self._ends = np.cumsum(sizes if order is None else sizes[order])

    def end(self, start: int, limit: int) -> int:
        """Where the write that begins with this message ends, at most at `limit`."""
        if self._ends is None:
            return min(limit, start + self._most)
        before = int(self._ends[start - 1]) if start else 0
        end = int(self._ends.searchsorted(before + WRITE_BYTES, side="right"))
        return min(limit, max(start + 1, end))


# -- consumers -------------------------------------------------------------------------------------


class SocketConsumers(Consumers, Generic[ConnectionT]):
    """See `bench_spark.transports.base.Consumers`."""

    def __init__(
        self,
        receiver: Receiver[ConnectionT],
        protocol: Connector[ConnectionT],
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._receiver = receiver
        self._arrivals = receiver.decoded
        self._lanes = Lanes(protocol, lanes, now_ns, rule, receiver)

    @property
    def descriptor(self) -> int:
        return self._lanes.loop.descriptor

    def attach(self) -> None:
        self._lanes.begin()
        self._lanes.wake_if_more()

    def detach(self) -> bool:
        is_complete = self._receiver.detach()
        self._lanes.wake_if_more()
        return is_complete

    def hold(self, lanes: Collection[int]) -> None:
        self._lanes.hold(lanes)

    def receive(self, timeout_seconds: float) -> Received:
        lanes, arrivals = self._lanes, self._arrivals
        if lanes.is_closing:
            return nothing_received()
        lanes.loop.pump()
        if not arrivals.count:
            self._receiver.be_idle()
            if timeout_seconds > 0:
                lanes.loop.run_until(lambda: arrivals or lanes.signals, timeout_seconds)
        if lanes.signals:
            lanes.loop.wake()
        return arrivals.take()

    def acknowledge(self, received: Received) -> int:
        """Also reports what was acknowledged on its own since the last call."""
        receiver = self._receiver
        if not receiver.acknowledges:
            return 0
        acknowledged, receiver.unreported = receiver.unreported, 0
        if not self._lanes.is_closing and len(received.rows):
            acknowledged += receiver.acknowledge(received)
        return acknowledged

    def signals(self) -> list[Signal]:
        return self._lanes.take_signals()

    def close(self) -> None:
        self._lanes.close()
