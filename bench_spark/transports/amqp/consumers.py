"""Consumers: deliveries are decoded into rows, acknowledgements written many at once, and committed
where that is asked."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.deliveries import (
    U64,
    AckFrames,
    AckTransactions,
    ConsumerTags,
    Deliveries,
)
from bench_spark.transports.amqp.frames import Parser, method_frame
from bench_spark.transports.base import Lane
from bench_spark.transports.batches import Received
from bench_spark.transports.sockets.buffers import (
    Arrivals,
    by_lane,
    generation_mark,
    is_of_one_lane,
    own_tags,
)
from bench_spark.transports.sockets.lanes import Receiver
from bench_spark.transports.sockets.opening import OpenLane

IDLE_SECONDS = 1.0
"""Acknowledgements that are not enough for a group, or for a transaction, go out anyway after this
long without a message."""
DETACH_SECONDS = 5.0
"""How long to wait for each consumer's cancellation: the broker first sends what it has pushed."""
COMMIT_SECONDS = 2.0
"""How long to wait, when all is over, for the broker to commit what was acknowledged last."""


class AmqpReceiver(Receiver[AmqpConnection]):
    def __init__(self, amqp: Amqp, arrivals: Arrivals) -> None:
        self.request = "tx.select, basic.consume" if amqp.consumer_transaction else "basic.consume"
        self.decoded = arrivals
        self.acknowledges = amqp.ack == "manual"
        self._amqp = amqp
        self._acks: dict[int, _AckGroup] = {}
        """By lane."""
        self._transactions: dict[int, AckTransactions] = {}
        """By lane, where acknowledgements are committed."""
        self._idle_check_seconds = 0.0

    # -- opening -----------------------------------------------------------------------------------

    def equip(self, lane: OpenLane[AmqpConnection]) -> None:
        connection, arrivals = lane.connection, self.decoded
        framing, tag_mark = connection.framing, generation_mark(lane.generation)
        receiver = Deliveries(lane.number, framing, consumer_tags(lane.lane), arrivals, tag_mark)
        parser = Parser(framing, receiver, connection.on_any_method, arrivals.most_bytes)
        connection.begin(parser, functools.partial(self._on_method, lane))

    def begin(self, lane: OpenLane[AmqpConnection]) -> None:
        spec = pika.spec.Basic
        is_auto = self._amqp.ack == "auto"
        every = self._amqp.ack_every
        frames = AckFrames(lane.connection.framing.channel, multiple=every > 1)
        self._acks[lane.number] = _AckGroup(frames, every)
        if self._amqp.consumer_transaction:
            self._transactions[lane.number] = AckTransactions(
                self._amqp.consumer_transaction, every
            )
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        if not is_auto:
            lane.connection.send_method(spec.Qos(prefetch_count=self._amqp.effective_prefetch))
        tags = consumer_tags(lane.lane)
        lane.unanswered += tags.routes
        for route, destination in enumerate(lane.lane.destinations):
            lane.connection.send_method(
                spec.Consume(
                    queue=destination.name or "",
                    consumer_tag=tags.of(route),
                    no_ack=is_auto,
                    arguments=dict(self._amqp.consumer_arguments),
                )
            )

    def _on_method(self, lane: OpenLane[AmqpConnection], method: Any) -> None:
        spec = pika.spec
        if isinstance(method, spec.Basic.ConsumeOk | spec.Basic.CancelOk | spec.Tx.SelectOk):
            self.lanes.answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            self.unreported += self._transactions[lane.number].committed()
            self._commit(lane)
        elif isinstance(method, pika.spec.Basic.Cancel):
            route = int(method.consumer_tag.rpartition("-")[2])
            queue = lane.lane.destinations[route].name
            self.lanes.lose_because(lane, f"consumer of {queue!r} cancelled by the broker")

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self, received: Received) -> int:
        now_seconds = time.monotonic()
        if is_of_one_lane(received.lane):
            return self._acknowledge_on(int(received.lane[0]), received.tag, now_seconds)
        groups = by_lane(received.lane)
        tags = received.tag[groups.order]
        acknowledged = 0
        for number, start, end in groups:
            acknowledged += self._acknowledge_on(number, tags[start:end], now_seconds)
        return acknowledged

    def _acknowledge_on(self, number: int, tags: U64, now_seconds: float) -> int:
        lane, group = self.lanes.open[number], self._acks[number]
        tags = own_tags(tags, lane.generation)
        if lane.is_lost or not len(tags):
            return 0
        if self._amqp.consumer_transaction:
            # What this makes the broker acknowledge is reported when it has said so.
            self._transactions[number].add(tags, now_seconds)
            self._commit(lane)
            return 0
        before = group.count + len(tags)
        frames = group.add(tags, now_seconds)
        if frames:
            lane.connection.send(frames)
        return before - group.count

    def _commit(self, lane: OpenLane[AmqpConnection], is_partial: bool = False) -> None:
        tags = self._transactions[lane.number].begin(is_partial)
        if len(tags):
            commit = method_frame(lane.connection.framing.channel, pika.spec.Tx.Commit())
            lane.connection.send(bytes(self._acks[lane.number].frames.of(tags)) + commit)

    def be_idle(self) -> None:
        now_seconds = time.monotonic()
        can_be_partial = self._amqp.ack_every > 1 or self._amqp.consumer_transaction > 1
        if can_be_partial and now_seconds >= self._idle_check_seconds:
            self._idle_check_seconds = now_seconds + IDLE_SECONDS / 4
            self._acknowledge_rest(older_than=now_seconds - IDLE_SECONDS)

    def _acknowledge_rest(self, older_than: float) -> None:
        """Acknowledge what waits for its group or transaction, where nothing was added since."""
        if not self._amqp.consumer_transaction:
            for number, group in self._acks.items():
                lane = self.lanes.open[number]
                if group.count and group.added_seconds <= older_than and not lane.is_lost:
                    self.unreported += group.count
                    lane.connection.send(group.close())
            return
        for number, transactions in self._transactions.items():
            lane = self.lanes.open[number]
            is_idle = transactions.added_seconds <= older_than
            if transactions.waiting and is_idle and not lane.is_lost:
                self._commit(lane, is_partial=True)

    # -- the end -----------------------------------------------------------------------------------

    def detach(self) -> bool:
        self.lanes.hold(())
        have_all_answered = self.lanes.ask_all(self._cancel, DETACH_SECONDS)
        # What was on its way to be acknowledged is still in its queue.
        return have_all_answered or self.acknowledges

    def _cancel(self, lane: OpenLane[AmqpConnection]) -> None:
        tags = consumer_tags(lane.lane)
        lane.unanswered += tags.routes
        for route in range(tags.routes):
            lane.connection.send_method(pika.spec.Basic.Cancel(consumer_tag=tags.of(route)))

    def before_close(self) -> None:
        self.lanes.hold(())
        # A commit may be under way, and the rest can only be acknowledged behind it.
        self._await_commits()
        self._acknowledge_rest(older_than=time.monotonic())
        self._await_commits()

    def _await_commits(self) -> None:
        def is_done() -> bool:
            return not any(
                transactions.is_committing and self.lanes.open[number].connection.is_open
                for number, transactions in self._transactions.items()
            )

        self.lanes.loop.run_until(is_done, COMMIT_SECONDS)


class _AckGroup:
    """Messages of one lane that wait to be acknowledged together."""

    def __init__(self, frames: AckFrames, every: int) -> None:
        self.frames = frames
        self._every = every
        self._last_tag: U64 = np.zeros(1, np.uint64)
        self.count = 0
        self.added_seconds = 0.0

    def add(self, tags: U64, now_seconds: float) -> memoryview | None:
        """One acknowledgement for each group that is full now."""
        first = self._every - self.count - 1
        self.count = (self.count + len(tags)) % self._every
        # Copied: tags are the transport's own until the next receive.
        self._last_tag[0] = tags[-1]
        self.added_seconds = now_seconds
        return self.frames.of(tags, first, self._every) if first < len(tags) else None

    def close(self) -> memoryview:
        """The acknowledgement of a group that is not full."""
        self.count = 0
        return self.frames.of(self._last_tag)


def consumer_tags(lane: Lane) -> ConsumerTags:
    return ConsumerTags(f"bench-{lane.member}-".encode(), len(lane.destinations))
