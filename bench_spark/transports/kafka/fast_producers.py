"""Producers of the fast plane: batches in, delivery reports out, by librdkafka's own interface.

**Sending.** One call of `produce_batch` hands over the messages of a batch that have the same
client and topic; those with headers need a call each. Where a batch has several clients or topics,
its messages are sorted by them if all are certain to be taken; if the client's queue may get full
they go in order, run by run, so that what was accepted is always a prefix.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from confluent_kafka import KafkaError

from bench_spark.transports.base import (
    I64,
    Batch,
    Lane,
    OutcomeKind,
    Outcomes,
    Signal,
    common_tail_bytes,
    joined_outcomes,
)
from bench_spark.transports.kafka.common_headers import with_common_headers
from bench_spark.transports.kafka.native_producer import NativeProducer
from bench_spark.transports.kafka.outbox import Keyring, Outbox
from bench_spark.transports.kafka.shared_clients import ProducerTerms, SharedClients
from bench_spark.transports.kafka.unsettled import Unsettled


class FastProducers(SharedClients[NativeProducer]):
    """See `bench_spark.transports.base.Producers`."""

    def __init__(self, lanes: Sequence[Lane], terms: ProducerTerms) -> None:
        self._unsettled = Unsettled(has_reports=terms.confirms)
        super().__init__(
            lanes,
            terms,
            partial(NativeProducer, terms.properties, terms.now_ns, self._unsettled),
        )
        self._outbox = Outbox(Keyring(terms.keys, lanes), self._unsettled)
        self._parts: list[Outcomes] = []
        """Outcomes that nobody has asked for yet."""
        self._targets: list[tuple[NativeProducer, int]] = []
        """The clients and topics that messages may be for."""
        self._target_of = self._numbered_targets(lanes)

    def _numbered_targets(self, lanes: Sequence[Lane]) -> I64:
        """By lane and route: which of the targets."""
        number_of: dict[tuple[int, str], int] = {}
        numbers = np.zeros((len(lanes), max(len(lane.destinations) for lane in lanes)), np.int64)
        for lane_number, lane in enumerate(lanes):
            client_number = lane_number % len(self._crew)
            client = self._crew[client_number]
            for route, destination in enumerate(lane.destinations):
                target = (client_number, str(destination.name))
                if target not in number_of:
                    number_of[target] = len(self._targets)
                    self._targets.append((client, client.topic(target[1])))
                numbers[lane_number, route] = number_of[target]
        return numbers

    # -- sending ---------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        batch = with_common_headers(batch, self._headers)
        is_simple = len(self._targets) == 1
        accepted = self._send_to(0, batch) if is_simple else self._send_to_many(batch)
        self._accepted += accepted
        return accepted

    def _send_to_many(self, batch: Batch) -> int:
        numbers = self._target_of[batch.lane, batch.route]
        if self._is_room_certain(batch):
            order = np.argsort(numbers, kind="stable")
            for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
                part = batch.at(places)
                taken = self._send_to(int(numbers[places[0]]), part)
                # Should the library have less room than it said, the agent cannot send again what
                # lies between others that were taken.
                self._refuse(part.at(np.arange(taken, len(part))))
            return len(batch)
        accepted = 0
        for places in np.split(np.arange(len(batch)), np.flatnonzero(np.diff(numbers)) + 1):
            taken = self._send_to(int(numbers[places[0]]), batch.at(places))
            accepted += taken
            if taken < len(places):
                break
        return accepted

    def _is_room_certain(self, batch: Batch) -> bool:
        longest = common_tail_bytes(batch.tail)
        if longest is None:
            longest = max(map(len, batch.tail))
        return all(
            client.has_room_for(len(batch), batch.head_bytes + longest) for client in self._crew
        )

    def _send_to(self, target: int, batch: Batch) -> int:
        """Messages of one client and topic; how many were accepted."""
        client, topic = self._targets[target]
        accepted = 0
        while accepted < len(batch):
            rest = batch.starting_at(accepted)
            laid = self._outbox.lay_out(rest)
            if rest.headers is None:
                produced = client.produce(topic, laid)
            else:
                produced = client.produce_with_headers(topic, laid, rest.headers[: len(laid)])
            if produced == len(laid):
                accepted += len(laid)
                continue
            error = laid["error"]
            self._unsettled.forget(laid["opaque"][error != 0])
            is_full = error == KafkaError._QUEUE_FULL
            taken = int(is_full.argmax()) if is_full.any() else len(laid)
            self._refuse(rest.at(np.flatnonzero(error[:taken])))
            accepted += taken
            if taken < len(laid):
                break
        return accepted

    def _refuse(self, batch: Batch) -> None:
        """Messages that the library itself will not take: their outcome is known at once."""
        if len(batch):
            self._parts.append(
                Outcomes.of_columns(
                    at_ns=np.full(len(batch), self._now_ns(), dtype=np.int64),
                    lane=batch.lane.copy(),
                    kind=np.full(len(batch), OutcomeKind.REFUSED, dtype=np.uint8),
                    head=batch.head.copy(),
                )
            )
            self._bell.ring()

    # -- what became of it -----------------------------------------------------------------------

    def _serve(self) -> None:
        if self._is_closed:
            return
        self._bell.hush()
        for client in self._crew:
            part = client.serve()
            if part is not None:
                self._parts.append(part)

    def outcomes(self) -> Outcomes:
        self._serve()
        parts, self._parts = self._parts, []
        self._settled += sum(map(len, parts))
        return joined_outcomes(parts)

    def flush(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        for client in self._crew:
            self._parts += client.flush(deadline)
        self._bell.ring()

    def signals(self) -> list[Signal]:
        self._serve()
        if self._parts:
            self._bell.ring()  # The descriptor spoke for them, and was hushed.
        return super().signals()

    def _let_go(self) -> bool:
        for client in self._crew:
            client.stop_asking()
        is_silent = True
        for client in self._crew:
            parts, has_ended = client.close()
            self._parts += parts
            is_silent = is_silent and has_ended
        return is_silent
