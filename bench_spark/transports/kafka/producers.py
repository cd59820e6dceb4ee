"""Producers: logical lanes over a few librdkafka clients.

`send` calls `produce` once per message, with positional arguments. In four runs each, on a busy
machine, it cost the calling thread 2.2-3.0 us a message and `produce_batch`, which wants a dict per
message and searches it six times, 2.4-3.8 us: no clear difference. It keeps the order over lanes
and topics, so that "accepted" is a prefix without further ado.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import (
    Batch,
    Lane,
    Outcomes,
    no_outcomes,
)
from bench_spark.transports.kafka.columns import bodies_of, heads_of
from bench_spark.transports.kafka.common_headers import with_common_headers
from bench_spark.transports.kafka.confluent_producer import ConfluentProducer, Report
from bench_spark.transports.kafka.health import reason_of
from bench_spark.transports.kafka.outcome_kinds import outcome_kind
from bench_spark.transports.kafka.shared_clients import ProducerTerms, SharedClients
from bench_spark.transports.kafka.single_messages import ANY_PARTITION, Keys, bodies_to_send

_Sender = tuple[Callable[..., None], str, Callable[[Any, Any], None]]
"""A bound `produce`, a topic, and what to call with the report."""


class KafkaProducers(SharedClients[ConfluentProducer]):
    """See `bench_spark.transports.base.Producers`."""

    def __init__(self, lanes: Sequence[Lane], terms: ProducerTerms) -> None:
        super().__init__(lanes, terms, partial(ConfluentProducer, terms.properties, terms.now_ns))
        self._keys = Keys(terms.keys, lanes)
        self._refused_at_once: list[Report] = []
        self._senders = [
            self._senders_of(self._crew[number % len(self._crew)], number, lane)
            for number, lane in enumerate(lanes)
        ]

    @staticmethod
    def _senders_of(client: ConfluentProducer, number: int, lane: Lane) -> list[_Sender]:
        report = client.on_delivery(number)
        return [
            (client.producer.produce, str(destination.name), report)
            for destination in lane.destinations
        ]

    # -- sending ---------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        batch = with_common_headers(batch, self._headers)
        is_plain = batch.head_bytes >= ENVELOPE_BYTES and batch.headers is None
        accepted = self._send_plain(batch) if is_plain else self._send_each(batch)
        self._accepted += accepted
        for client in self._crew:
            client.serve()
        return accepted

    def _send_plain(self, batch: Batch) -> int:
        accepted = 0
        messages = zip(
            self._senders_for(batch), bodies_to_send(batch), self._keys.of(batch), strict=False
        )
        for (produce, topic, report), body, key in messages:
            try:
                produce(topic, body, key, ANY_PARTITION, report)
            except BufferError:
                break
            except KafkaException as error:
                self._refuse(batch, accepted, error.args[0])
            accepted += 1
        return accepted

    def _send_each(self, batch: Batch) -> int:
        """Messages with headers of their own, or without their heads in their bodies."""
        accepted = 0
        heads = np.ascontiguousarray(batch.head).tobytes()
        headers = repeat(None) if batch.headers is None else batch.headers
        messages = zip(
            batch.lane.tolist(),
            self._senders_for(batch),
            bodies_to_send(batch),
            self._keys.of(batch),
            headers,
            strict=False,
        )
        for lane, (produce, topic, _), body, key, own in messages:
            start = accepted * ENVELOPE_BYTES
            client = self._crew[lane % len(self._crew)]
            report = client.on_delivery_of(lane, heads[start : start + ENVELOPE_BYTES])
            try:
                produce(topic, body, key, ANY_PARTITION, report, headers=own)
            except BufferError:
                break
            except KafkaException as error:
                self._refuse(batch, accepted, error.args[0])
            accepted += 1
        return accepted

    def _senders_for(self, batch: Batch) -> Iterable[_Sender]:
        senders = self._senders
        if len(senders) == 1 and len(senders[0]) == 1:
            return repeat(senders[0][0])
        return [
            senders[lane][route]
            for lane, route in zip(batch.lane.tolist(), batch.route.tolist(), strict=True)
        ]

    def _refuse(self, batch: Batch, index: int, error: KafkaError) -> None:
        """A message that the library itself will not take: its outcome is known at once."""
        lane = int(batch.lane[index])
        head = Message(value=batch.head[index : index + 1].tobytes())
        self._refused_at_once.append((self._now_ns(), lane, error, head))
        self._bell.ring()

    # -- what became of it -----------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        reports, self._refused_at_once = self._refused_at_once, []
        if not self._is_closed:
            self._bell.hush()
            for client in self._crew:
                client.serve()
        for client in self._crew:
            reports += client.take_reports()
        if not reports:
            return no_outcomes()
        self._settled += len(reports)
        return self._columns(reports)

    def _columns(self, reports: list[Report]) -> Outcomes:
        at_ns, lanes, errors, messages = zip(*reports, strict=True)
        bodies, size = bodies_of(messages)
        kind = np.zeros(len(reports), dtype=np.uint8)
        if any(errors):
            was_interrupted = any(client.health.was_interrupted for client in self._crew)
            kind[:] = [outcome_kind(error, was_interrupted=was_interrupted) for error in errors]
        return Outcomes.of_columns(
            at_ns=np.array(at_ns, dtype=np.int64),
            lane=np.array(lanes, dtype=np.uint32),
            kind=kind,
            head=heads_of(bodies, int(size.min())),
        )

    def flush(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        for client in self._crew:
            try:
                client.producer.flush(max(0.0, deadline - time.monotonic()))
            except KafkaException as error:
                client.health.lost_for_good(reason_of(error.args[0]))
        self._bell.ring()

    def _let_go(self) -> bool:
        have_ended = [client.close() for client in self._crew]
        return all(have_ended)
