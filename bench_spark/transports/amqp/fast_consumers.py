"""Consuming in batches: messages are decoded by column, acknowledgements written by block."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pika.spec

from bench_spark.transports.amqp.acknowledging import AcknowledgingLanes, consumer_tag
from bench_spark.transports.amqp.acks import U64, AckFrames
from bench_spark.transports.amqp.deliveries import Deliveries
from bench_spark.transports.amqp.fast_lanes import FastLane, FastLanes
from bench_spark.transports.amqp.frames import method_frame
from bench_spark.transports.amqp.lanes import LaneTerms
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.base import Part, Received
from bench_spark.transports.sockets import generations
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.grouping import by_lane, is_of_one_lane


class FastConsumers(AcknowledgingLanes[FastLane], FastLanes):
    def __init__(
        self, terms: LaneTerms, want: frozenset[Part], *, is_gathered: bool = False
    ) -> None:
        self._gathering = Gathering() if is_gathered else None
        self._arrivals = Arrivals(want, terms.most_bytes)
        self._acks: dict[int, _AckGroup] = {}
        """By lane."""
        try:
            super().__init__(terms)
        except BaseException:
            self._close_gathering()
            raise
        if self._gathering is not None:
            self._loop.add(self._gathering)

    def _make_parser(self, lane: FastLane, on_method: Callable[[Any], None]) -> Parser:
        handover, destinations = lane.handover, lane.lane.destinations
        routes = {
            consumer_tag(lane.lane, route).encode(): route for route in range(len(destinations))
        }
        tag_mark = generations.mark(lane.generation)
        receiver = Deliveries(lane.number, handover.channel, routes, self._arrivals, tag_mark)
        keeps_bodies = self._arrivals.wants_bodies
        return Parser(
            handover.channel,
            handover.frame_max,
            receiver,
            on_method,
            keeps_bodies,
            self._arrivals.most_bytes,
        )

    def _begin(self, lane: FastLane) -> None:
        spec = pika.spec.Basic
        is_auto = self._amqp.ack == "auto"
        every = self._amqp.ack_every
        frames = AckFrames(lane.handover.channel, multiple=every > 1)
        self._acks[lane.number] = _AckGroup(frames, every)
        if self._amqp.consumer_transaction:
            self._begin_transactions(lane)
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        if not is_auto:
            lane.connection.send_method(spec.Qos(prefetch_count=self._amqp.effective_prefetch))
        lane.unanswered += len(lane.lane.destinations)
        for route, destination in enumerate(lane.lane.destinations):
            tag = consumer_tag(lane.lane, route)
            lane.connection.send_method(
                spec.Consume(
                    queue=destination.name or "",
                    consumer_tag=tag,
                    no_ack=is_auto,
                    arguments=dict(self._amqp.consumer_arguments),
                )
            )

    def _cancel(self, lane: FastLane, route: int) -> None:
        tag = consumer_tag(lane.lane, route)
        lane.connection.send_method(pika.spec.Basic.Cancel(consumer_tag=tag))

    def _on_method(self, lane: FastLane, method: Any) -> None:
        spec = pika.spec
        if isinstance(method, spec.Basic.ConsumeOk | spec.Basic.CancelOk | spec.Tx.SelectOk):
            self._answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            self._committed(lane)
        elif isinstance(method, pika.spec.Basic.Cancel):
            route = int(method.consumer_tag.rpartition("-")[2])
            queue = lane.lane.destinations[route].name
            self._lose_because(lane, f"consumer of {queue!r} cancelled by the broker")

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self, received: Received) -> int:
        """Also reports what was acknowledged on its own since the last call (idle remainders)."""
        acknowledged, self._acknowledged_unreported = self._acknowledged_unreported, 0
        if self._amqp.ack == "auto" or self._is_closing or not len(received):
            return acknowledged
        now_seconds = time.monotonic()
        if is_of_one_lane(received.lane):
            number = int(received.lane[0])
            return acknowledged + self._acknowledge_on(number, received.tag, now_seconds)
        groups = by_lane(received.lane)
        tags = received.tag[groups.order]
        for number, start, end in groups:
            acknowledged += self._acknowledge_on(number, tags[start:end], now_seconds)
        return acknowledged

    def _acknowledge_on(self, number: int, tags: U64, now_seconds: float) -> int:
        lane, group = self._opened[number], self._acks[number]
        tags = generations.own_tags(tags, lane.generation)
        if lane.is_lost or not len(tags):
            return 0
        if self._amqp.consumer_transaction:
            self._acknowledge_in_transaction(lane, tags, now_seconds)
            return 0
        before = group.count + len(tags)
        frames = group.add(tags, now_seconds)
        if frames:
            lane.connection.send(frames)
        return before - group.count

    def _send_transaction(self, lane: FastLane, tags: U64) -> None:
        commit = method_frame(lane.handover.channel, pika.spec.Tx.Commit())
        lane.connection.send(self._acks[lane.number].frames.of(tags) + commit)

    def _acknowledge_groups(self, older_than: float) -> None:
        for number, group in self._acks.items():
            lane = self._opened[number]
            if group.count and group.added_seconds <= older_than and not lane.is_lost:
                self._acknowledged_unreported += group.count
                lane.connection.send(group.close())

    def close(self) -> None:
        super().close()
        self._close_gathering()

    def _close_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.close()


class _AckGroup:
    """Messages of one lane that wait to be acknowledged together."""

    def __init__(self, frames: AckFrames, every: int) -> None:
        self.frames = frames
        self._every = every
        self._last_tag: U64 = np.zeros(1, np.uint64)
        self.count = 0
        self.added_seconds = 0.0

    def add(self, tags: U64, now_seconds: float) -> bytes:
        """One acknowledgement for each group that is full now."""
        full = tags[self._every - self.count - 1 :: self._every]
        self.count = (self.count + len(tags)) % self._every
        self._last_tag = tags[-1:].copy()  # rows are good until the next receive
        self.added_seconds = now_seconds
        return self.frames.of(full) if len(full) else b""

    def close(self) -> bytes:
        """The acknowledgement of a group that is not full."""
        self.count = 0
        return self.frames.of(self._last_tag)
