"""Consuming by pika's own channel methods: slow, plain, and the reference for faster planes.

Python runs per message here; columns are put together from what pika's callbacks brought.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pika.spec

from bench_spark.core.envelope import leading_envelopes
from bench_spark.transports.amqp.acknowledging import AcknowledgingLanes, consumer_tag
from bench_spark.transports.amqp.lanes import LaneTerms
from bench_spark.transports.amqp.message_headers import header_bytes
from bench_spark.transports.amqp.pika_lanes import PikaLane, PikaLanes
from bench_spark.transports.amqp.transactions import U64
from bench_spark.transports.base import Headers, Part, Received, nothing_received
from bench_spark.transports.sockets import generations
from bench_spark.transports.sockets.arrivals import NO_HEADERS


class PikaConsumers(AcknowledgingLanes[PikaLane], PikaLanes):
    def __init__(self, terms: LaneTerms, want: frozenset[Part]) -> None:
        super().__init__(terms)
        self._wants_bodies = Part.BODY in want
        self._wants_headers = Part.HEADERS in want
        self._rows: list[tuple[int, int, int, int, bool, bytes, Headers]] = []
        self._acks: dict[int, _AckGroup] = {}
        """By lane."""

    def _begin(self, lane: PikaLane) -> None:
        self._acks[lane.number] = _AckGroup()
        if self._amqp.consumer_transaction:
            self._begin_transactions(lane)
            lane.unanswered += 1
            lane.channel.tx_select(callback=functools.partial(self._answered, lane))
        lane.channel.add_on_cancel_callback(functools.partial(self._on_cancel, lane))
        if self._amqp.ack == "manual":
            lane.channel.basic_qos(prefetch_count=self._amqp.effective_prefetch, callback=_ignore)
        lane.unanswered += len(lane.lane.destinations)
        for route, destination in enumerate(lane.lane.destinations):
            lane.channel.basic_consume(
                destination.name or "",
                functools.partial(self._on_message, lane, route),
                auto_ack=self._amqp.ack == "auto",
                consumer_tag=consumer_tag(lane.lane, route),
                arguments=dict(self._amqp.consumer_arguments),
                callback=functools.partial(self._answered, lane),
            )

    def _cancel(self, lane: PikaLane, route: int) -> None:
        # pika's basic_cancel drops what still arrives, and the broker has forgotten it already.
        tag = consumer_tag(lane.lane, route)
        lane.channel._rpc(
            pika.spec.Basic.Cancel(consumer_tag=tag),
            functools.partial(self._answered, lane),
            [(pika.spec.Basic.CancelOk, {"consumer_tag": tag})],
        )

    # -- receiving ---------------------------------------------------------------------------------

    def _take(self) -> Received:
        rows, self._rows = self._rows, []
        if not rows:
            return nothing_received()
        received_ns, lane, route, tags, redelivered, bodies, headers = zip(*rows, strict=True)
        return Received.of_columns(
            received_ns=np.array(received_ns, np.int64),
            lane=np.array(lane, np.uint32),
            route=np.array(route, np.uint16),
            head=leading_envelopes(bodies),
            size=np.fromiter(map(len, bodies), np.uint32, len(bodies)),
            redelivered=np.array(redelivered, np.bool_),
            bodies=bodies if self._wants_bodies else None,
            headers=headers if self._wants_headers else None,
            tag=np.array(tags, np.uint64),
        )

    def _has_news(self) -> bool:
        return bool(self._rows)

    def _on_message(
        self,
        lane: PikaLane,
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
                method.delivery_tag + generations.mark(lane.generation),
                method.redelivered,
                body,
                header_bytes(properties.headers) if self._wants_headers else NO_HEADERS,
            )
        )

    def _on_cancel(self, lane: PikaLane, frame: Any) -> None:
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
        own_tags: dict[int, list[int]] = {}
        touched: set[int] = set()
        tags = received.tag.tolist()
        for number, tag in zip(received.lane.tolist(), tags, strict=True):
            lane, group = self._opened[number], self._acks[number]
            own_tag = generations.own_tag(tag, lane.generation)
            if lane.is_lost or own_tag is None:
                continue
            touched.add(number)
            if self._amqp.consumer_transaction:
                own_tags.setdefault(number, []).append(own_tag)
                continue
            group.add(own_tag, now_seconds)
            if group.count >= every:
                acknowledged += self._send_ack(lane, group)
        for number, tags in own_tags.items():
            self._acknowledge_in_transaction(
                self._opened[number], np.array(tags, np.uint64), now_seconds
            )
        for number in touched:
            self._opened[number].connection.flush()
        return acknowledged

    def _send_transaction(self, lane: PikaLane, tags: U64) -> None:
        for tag in tags.tolist():
            lane.channel.basic_ack(tag, multiple=self._amqp.ack_every > 1)
        lane.channel.tx_commit(callback=functools.partial(self._committed, lane))
        lane.connection.flush()

    def _send_ack(self, lane: PikaLane, group: _AckGroup) -> int:
        lane.channel.basic_ack(group.last_tag, multiple=self._amqp.ack_every > 1)
        return group.clear()

    def _acknowledge_groups(self, older_than: float) -> None:
        for number, group in self._acks.items():
            lane = self._opened[number]
            if group.count and group.added_seconds <= older_than and not lane.is_lost:
                self._acknowledged_unreported += self._send_ack(lane, group)
                lane.connection.flush()


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


def _ignore(_frame: Any) -> None:
    """The answer to basic.qos: consume-ok comes behind it and is waited for."""
