"""Producers: logical lanes over a few librdkafka clients.

`send` calls `produce` once per message, with positional arguments. In four runs each, on a busy
machine, it cost the calling thread 2.2-3.0 us a message and `produce_batch`, which wants a dict per
message and searches it six times, 2.4-3.8 us: no clear difference. It keeps the order over lanes
and topics, so that "accepted" is a prefix without further ado.

**Delivery reports** cost a Python call per message in confluent-kafka, whatever is done in it. The
call appends a tuple; columns are made of thousands at a time. The report's time is read in the
call: that is the time `Message.latency()` counts to, on the agent's own clock.

**Who serves them.** librdkafka hands reports over inside `poll`. While the load is high, the
agent's thread polls after each `send`: leaving it all to a second thread, which fights for the
interpreter's lock, took 11-21 % more CPU in those runs. While it is low, a thread blocks in
`poll`, so that a confirmation is seen when it arrives and not at the next send. That thread stands
back for as long as the agent's own polls find reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench_spark.errors import BrokerUnreachable, ConfigurationError
from bench_spark.measure.clock import NowNs
from bench_spark.measure.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import (
    Batch,
    Lane,
    OutcomeKind,
    Outcomes,
    Signal,
    no_outcomes,
)
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.columns import bodies_of, heads_of
from bench_spark.transports.kafka.health import Health, reason_of
from bench_spark.transports.kafka.key_choice import KeyRule
from bench_spark.transports.kafka.quiet_log import QuietLog
from bench_spark.transports.kafka.settings import Properties

MOST_CLIENTS = 4
"""Lanes share this many clients: a client batches better the more it has to send, and a thousand of
them would be some three thousand threads."""

_ANY_PARTITION = -1
_POLL_SECONDS = 0.1
_STAND_BACK_SECONDS = 0.002
_CLOSE_SECONDS = 1.0
_THREAD_END_SECONDS = 3.0

_NEVER_WRITTEN = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors after which the message is certainly not in the log. After any other (a time-out, a broken
connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND) it may be."""

_Report = tuple[int, int, KafkaError | None, Message]
"""Time, lane, error, message: what is kept of a delivery report until it is asked for."""
_Sender = tuple[Callable[..., None], str, Callable[[Any, Any], None]]
"""A bound `produce`, a topic, and what to call with the report."""


def outcome_kind(error: KafkaError | None, *, was_interrupted: bool) -> OutcomeKind:
    """What a delivery report says about the message."""
    if error is None:
        return OutcomeKind.CONFIRMED
    if error.code() == KafkaError._PURGE_QUEUE:
        # Taken out of the queue by ourselves. After an interruption it may wait there for a second
        # try while the first one has reached the log.
        return OutcomeKind.UNKNOWN if was_interrupted else OutcomeKind.REFUSED
    return OutcomeKind.REFUSED if error.code() in _NEVER_WRITTEN else OutcomeKind.UNKNOWN


def bodies_to_send(batch: Batch) -> list[bytes]:
    heads = np.ascontiguousarray(batch.head).tobytes()
    starts = range(0, len(heads), ENVELOPE_BYTES)
    width, tail = batch.head_bytes, batch.tail
    if isinstance(tail, bytes):
        return [heads[start : start + width] + tail for start in starts]
    if not width:
        return list(tail)
    return [heads[start : start + width] + own for start, own in zip(starts, tail, strict=True)]


class Keys:
    """The keys of messages, by the rule of `kafka.keys`."""

    def __init__(self, rule: KeyRule, lanes: Sequence[Lane]) -> None:
        self._rule = rule
        self._of_member = [str(lane.member).encode() for lane in lanes]

    def of(self, batch: Batch) -> Iterable[bytes | None]:
        if batch.keys is not None:
            return batch.keys
        if self._rule.kind == "producer":
            return map(self._of_member.__getitem__, batch.lane.tolist())
        if self._rule.is_numbered:
            return [b"%d" % number for number in self._rule.numbers(batch.head).tolist()]
        return repeat(None)


class _Client:
    """One librdkafka producer, the lanes it serves, and the thread that waits for its reports."""

    def __init__(self, properties: Properties, health: Health, now_ns: NowNs, bell: Bell) -> None:
        self.health = health
        self.reports: list[_Report] = []
        self._now_ns = now_ns
        self._bell = bell
        self._polls_with_reports = 0
        self._is_ending = threading.Event()
        try:
            self.producer = Producer(
                properties | {"error_cb": self.health.on_error}, logger=QuietLog()
            )
        except KafkaException as error:
            raise ConfigurationError(f"kafka.producer: {error.args[0].str()}") from None
        self._thread = threading.Thread(target=self._wait_for_reports, daemon=True)

    def connect(self, timeout_seconds: float) -> None:
        """Learn the cluster's topics, so that the first message does not wait for them."""
        self.producer.list_topics(timeout=timeout_seconds)
        self._thread.start()

    def on_delivery(self, lane: int) -> Callable[[KafkaError | None, Message], None]:
        append, now_ns = self.reports.append, self._now_ns

        def keep(error: KafkaError | None, message: Message) -> None:
            append((now_ns(), lane, error, message))

        return keep

    def on_delivery_of(self, lane: int, head: bytes) -> Callable[[KafkaError | None, Any], None]:
        """The same for one message, whose body does not hold its head."""
        append, now_ns = self.reports.append, self._now_ns

        def keep(error: KafkaError | None, _message: Message) -> None:
            append((now_ns(), lane, error, Message(value=head)))

        return keep

    def serve(self) -> None:
        """Collect the reports that wait, without waiting for more."""
        if self._poll(0):
            self._polls_with_reports += 1

    def take_reports(self) -> list[_Report]:
        # Two steps, because the other thread may append in between: only what was copied goes.
        taken = self.reports[:]
        del self.reports[: len(taken)]
        if self.health.is_lost and taken and taken[-1][2] is None:
            self.health.alive(taken[-1][0])
        return taken

    def _wait_for_reports(self) -> None:
        seen = 0
        while not self._is_ending.is_set():
            if self.health.needs_examination:
                self.health.examine(self.producer)
            if self._polls_with_reports != seen:
                seen = self._polls_with_reports
                self._is_ending.wait(_STAND_BACK_SECONDS)
            else:
                self._poll(_POLL_SECONDS)

    def _poll(self, seconds: float) -> bool:
        """Whether there are reports to take."""
        try:
            self.producer.poll(seconds)
        except KafkaException as error:  # a fatal error ends the client for good
            self.health.lost_for_good(reason_of(error.args[0]))
        if not self.reports:
            return False
        self._bell.ring()
        return True

    def close(self) -> bool:
        """Give up what is still unsent; whether the thread has ended."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join(_THREAD_END_SECONDS)
        try:
            if not self.health.is_lost:
                self.producer.flush(_CLOSE_SECONDS)
            self.producer.purge()
            self.producer.flush(_CLOSE_SECONDS)
        except KafkaException as error:
            self.health.lost_for_good(reason_of(error.args[0]))
        if not len(self.producer):
            self.producer.close()
        return not self._thread.is_alive()


class KafkaProducers:
    """See `bench_spark.transports.base.Producers`."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        properties: Properties,
        *,
        keys: KeyRule,
        confirms: bool,
        address: str,
        now_ns: NowNs,
        reconnect_seconds: float,
    ) -> None:
        self._address = address
        self._keys = Keys(keys, lanes)
        self._confirms = confirms
        self._now_ns = now_ns
        self._bell = Bell()
        self._accepted = 0
        self._settled = 0
        self._is_closed = False
        self._refused_at_once: list[_Report] = []
        count = min(len(lanes), MOST_CLIENTS)
        healths = [
            Health(range(first, len(lanes), count), address, now_ns, self._bell, reconnect_seconds)
            for first in range(count)
        ]
        self._clients = [_Client(properties, health, now_ns, self._bell) for health in healths]
        self._senders = [
            self._senders_of(self._clients[number % count], number, lane)
            for number, lane in enumerate(lanes)
        ]

    @staticmethod
    def _senders_of(client: _Client, number: int, lane: Lane) -> list[_Sender]:
        report = client.on_delivery(number)
        return [
            (client.producer.produce, str(destination.name), report)
            for destination in lane.destinations
        ]

    def connect(self, timeout_seconds: float) -> None:
        try:
            for client in self._clients:
                client.connect(timeout_seconds)
        except KafkaException as error:
            self.close()
            raise BrokerUnreachable(f"{self._address}: {reason_of(error.args[0])}") from None

    @property
    def clients(self) -> int:
        """How many librdkafka clients, each with a connection per broker, carry the lanes."""
        return len(self._clients)

    @property
    def descriptor(self) -> int:
        return self._bell.descriptor

    # -- sending ---------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        is_plain = batch.head_bytes >= ENVELOPE_BYTES and batch.headers is None
        accepted = self._send_plain(batch) if is_plain else self._send_each(batch)
        self._accepted += accepted
        for client in self._clients:
            client.serve()
        return accepted

    def _send_plain(self, batch: Batch) -> int:
        accepted = 0
        messages = zip(
            self._senders_for(batch), bodies_to_send(batch), self._keys.of(batch), strict=False
        )
        for (produce, topic, report), body, key in messages:
            try:
                produce(topic, body, key, _ANY_PARTITION, report)
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
            client = self._clients[lane % len(self._clients)]
            report = client.on_delivery_of(lane, heads[start : start + ENVELOPE_BYTES])
            try:
                produce(topic, body, key, _ANY_PARTITION, report, headers=own)
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

    def commit(self) -> None:
        """Nothing to end: transactions are made in `transactional.py`."""

    # -- what became of it -----------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        reports, self._refused_at_once = self._refused_at_once, []
        if not self._is_closed:
            self._bell.hush()
            for client in self._clients:
                client.serve()
        for client in self._clients:
            reports += client.take_reports()
        if not reports:
            return no_outcomes()
        self._settled += len(reports)
        return self._columns(reports)

    def _columns(self, reports: list[_Report]) -> Outcomes:
        at_ns, lanes, errors, messages = zip(*reports, strict=True)
        bodies, size = bodies_of(messages)
        kind = np.zeros(len(reports), dtype=np.uint8)
        if any(errors):
            was_interrupted = any(client.health.was_interrupted for client in self._clients)
            kind[:] = [outcome_kind(error, was_interrupted=was_interrupted) for error in errors]
        return Outcomes(
            at_ns=np.array(at_ns, dtype=np.int64),
            lane=np.array(lanes, dtype=np.uint32),
            kind=kind,
            head=heads_of(bodies, int(size.min())),
        )

    def in_flight(self) -> int:
        return self._accepted - self._settled if self._confirms else 0

    def flush(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        for client in self._clients:
            try:
                client.producer.flush(max(0.0, deadline - time.monotonic()))
            except KafkaException as error:
                client.health.lost_for_good(reason_of(error.args[0]))
        self._bell.ring()

    def signals(self) -> list[Signal]:
        return [signal for client in self._clients for signal in client.health.take_signals()]

    def close(self) -> None:
        """Ends within a few seconds even if no broker answers: what is unsent then has the outcome
        UNKNOWN (or REFUSED), which `outcomes` still gives afterwards."""
        if self._is_closed:
            return
        self._is_closed = True
        have_ended = [client.close() for client in self._clients]
        if all(have_ended):
            self._bell.close()
