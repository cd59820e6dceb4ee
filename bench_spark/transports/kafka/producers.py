"""Producers: lanes over a few clients of librdkafka; batches in, delivery reports out.

**Sending.** One call of `produce_batch` hands over the messages of a batch that have the same
client and topic; those with headers need a call each. Where a batch has several clients or topics,
its messages are grouped by them if all are certain to be taken; if the client's queue may get full
they go in order, run by run, so that what was accepted is always a prefix.

**Delivery reports** are events in a client's queue, of as many messages as were in a request. Their
time is taken as the event is taken from the queue. No thread is needed for that: librdkafka writes
to the wakeup's pipe when its queue stops being empty. Only the question whether a cluster is still
there blocks; a thread asks it while there is doubt.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from bench_spark.core.clock import NowNs
from bench_spark.process import watched
from bench_spark.transports.base import Lane, Producers, Signal
from bench_spark.transports.batches import I64, Batch, Headers, Outcomes, common_payload_bytes
from bench_spark.transports.kafka.client_pool import ClientPool, Health, Wakeup
from bench_spark.transports.kafka.kernels import (
    GROUP_DTYPE,
    Records,
    group_by_target,
)
from bench_spark.transports.kafka.librdkafka import (
    ANY_PARTITION,
    COPY_PAYLOAD,
    EVENT_DELIVERY_REPORTS,
    EVENT_ERROR,
    EVENT_LOG,
    MESSAGE_DTYPE,
    PRODUCER,
    PURGE_IN_FLIGHT,
    PURGE_QUEUE,
    NativeClient,
    kafka_error,
    reason_of,
    text_of,
)
from bench_spark.transports.kafka.message_block import (
    MOST_ROWS,
    HeaderArguments,
    KeptEnvelopes,
    KeyRule,
    Keys,
    ProduceBlock,
    with_common_headers,
)
from bench_spark.transports.kafka.message_reader import MOST_ADDRESSES, DeliveryReports
from bench_spark.transports.kafka.settings import Properties

MOST_CLIENTS = 4
"""Lanes share this many clients: a client batches better the more it has to send, and a thousand of
them would be some three thousand threads."""

_MOST_EVENTS = 200
_MOST_REPORTS = 20_000
"""What is taken from a client's queue before the agent gets its turn again."""

_FLUSH_STEP_MS = 10
_CLOSE_SECONDS = 1.0
_THREAD_END_SECONDS = 3.0
_DESTROY_SECONDS = 2.0
_LOOK_UP_SECONDS = 0.1


@dataclass(frozen=True)
class ProducerTerms:
    """What producers are made from besides their lanes, with transactions or without."""

    properties: Properties
    address: str
    now_ns: NowNs
    reconnect_seconds: float
    confirms: bool
    keys: KeyRule
    headers: Headers
    """Of every message."""


# -- one client ----------------------------------------------------------------------------------


class ProducerClient:
    """A client of librdkafka, with the delivery reports of what it was given."""

    def __init__(
        self, properties: Properties, now_ns: NowNs, reports: DeliveryReports, health: Health
    ) -> None:
        self.health = health
        self._reports = reports
        self._now_ns = now_ns
        self._wakeup = health.wakeup
        self._native = NativeClient(PRODUCER, properties, _wanted_events)
        self._library = self._native.library
        self._queue = self._native.queue
        descriptor = self._wakeup.write_descriptor
        self._library.queue_io_event_enable(self._queue, descriptor, b"!", 1)
        self._topics: dict[str, int] = {}
        self._most_messages = int(properties["queue.buffering.max.messages"]) or np.iinfo(int).max
        self._most_bytes = 1024 * int(properties["queue.buffering.max.kbytes"])
        self._largest_bytes = 0
        self._examining = threading.Lock()
        self._is_examined = False
        self._examiner: threading.Thread | None = None
        self._is_ending = threading.Event()

    def connect(self, timeout_seconds: float) -> None:
        """Learn the cluster's topics, so that the first message does not wait for them."""
        self._native.list_topics(timeout=timeout_seconds)

    def topic(self, name: str) -> int:
        if name not in self._topics:
            made = self._library.topic_new(self._native.handle, name.encode(), None)
            self._topics[name] = made
        return self._topics[name]

    # -- sending ---------------------------------------------------------------------------------

    def has_room_for(self, messages: int, largest_bytes: int) -> bool:
        """Whether so many more are certain to be taken."""
        self._largest_bytes = max(self._largest_bytes, largest_bytes)
        waiting = self._library.outq_len(self._native.handle) + messages
        return bool(
            waiting <= self._most_messages and waiting * self._largest_bytes <= self._most_bytes
        )

    def produce(self, topic: int, address: int, count: int) -> int:
        """How many were taken; the `error` of each says why the others were not."""
        taken = self._library.produce_batch(topic, ANY_PARTITION, COPY_PAYLOAD, address, count)
        return int(taken)

    def produce_with_headers(self, topic: int, laid: Records, headers: Sequence[Headers]) -> int:
        """The same for messages that have headers, which takes a call for each; it ends with the
        first for which there is no room."""
        arguments = HeaderArguments(topic, laid, headers)
        produce, handle = self._library.produceva, self._native.handle
        taken = 0
        for place, (address, count) in enumerate(
            zip(arguments.addresses, arguments.counts, strict=True)
        ):
            error = produce(handle, address, count)
            if not error:
                taken += 1
                continue
            code = self._library.error_code(error)
            self._library.error_destroy(error)
            laid["error"][place] = code
            if code == KafkaError._QUEUE_FULL:
                laid["error"][place:] = code
                break
        return taken

    # -- listening -------------------------------------------------------------------------------

    def serve(self) -> None:
        """Take what waits in the queue, without waiting for more."""
        library, reports = self._library, self._reports
        most = len(reports) + _MOST_REPORTS
        for _ in range(_MOST_EVENTS):
            event = library.queue_poll(self._queue, 0)
            if not event:
                break
            if library.event_type(event) == EVENT_DELIVERY_REPORTS:
                at_ns, count = self._now_ns(), MOST_ADDRESSES
                while count == MOST_ADDRESSES:
                    count = library.event_message_array(event, reports.address, MOST_ADDRESSES)
                    reports.read(count, at_ns, self.health)
            else:
                self._handle_other_event(event)
            library.event_destroy(event)
            if len(reports) >= most:
                self._wakeup.wake()  # There may be more, which librdkafka has signalled already.
                break
        else:
            self._wakeup.wake()
        if self.health.is_doubtful:
            self._start_examination()

    def _handle_other_event(self, event: int) -> None:
        """An error or a line of the log."""
        kind = self._library.event_type(event)
        if kind == EVENT_ERROR:
            words = text_of(self._library.event_error_string(event))
            error = kafka_error(self._library.event_error(event), words)
            if error.code() == KafkaError._FATAL:
                self.health.lost_for_good(reason_of(error))
            else:
                self.health.on_error(error)
        elif kind == EVENT_LOG:
            facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            into = (ctypes.byref(facility), ctypes.byref(line), ctypes.byref(level))
            if self._library.event_log(event, *into) == 0:
                self._native.log(level.value, facility.value, line.value)

    # -- whether the cluster is there ------------------------------------------------------------

    def _start_examination(self) -> None:
        with self._examining:
            if self._is_examined or self._is_ending.is_set():
                return
            self._is_examined = True
            self._examiner = threading.Thread(target=watched(self._examine), daemon=True)
            self._examiner.start()

    def _examine(self) -> None:
        while not self._is_ending.is_set():
            with self._examining:
                if not self.health.is_doubtful:
                    self._is_examined = False
                    return
            if self.health.needs_examination:
                self.health.examine(self._native)
            else:
                self._is_ending.wait(_LOOK_UP_SECONDS)

    # -- the end ---------------------------------------------------------------------------------

    def flush(self, deadline: float) -> None:
        """Send at once what waits for more to go with it, and wait until all has its report."""
        while True:
            # It does not serve the queue, in which every message stays until its report is taken.
            self._library.flush(self._native.handle, _FLUSH_STEP_MS)
            self.serve()
            is_empty = not self._library.outq_len(self._native.handle)
            if is_empty or time.monotonic() >= deadline:
                return

    def stop_examining(self) -> None:
        """Whether the cluster is there; a question under way takes up to two seconds."""
        self._is_ending.set()

    def close(self) -> bool:
        """Give up what is still unsent; whether nobody can wake the agent any more."""
        if self._examiner is not None:
            self._examiner.join(_THREAD_END_SECONDS)
        if not self.health.is_lost:
            self.flush(time.monotonic() + _CLOSE_SECONDS)
        self._library.purge(self._native.handle, PURGE_QUEUE | PURGE_IN_FLIGHT)
        self.flush(time.monotonic() + _CLOSE_SECONDS)
        self._library.queue_io_event_enable(self._queue, -1, None, 0)
        if self._examiner is not None and self._examiner.is_alive():
            return False  # It still uses the client, and wakes the agent with what it finds out.
        for topic in self._topics.values():
            self._library.topic_destroy(topic)
        self._native.destroy_within(_DESTROY_SECONDS)
        return True


def _wanted_events(library: Any, configuration: int) -> None:
    library.conf_set_events(configuration, EVENT_DELIVERY_REPORTS | EVENT_ERROR | EVENT_LOG)


# -- all of an agent -----------------------------------------------------------------------------


class KafkaProducers(ClientPool[ProducerClient], Producers):
    """See `bench_spark.transports.base.Producers`. The lane of number n has the client n modulo
    their count."""

    def __init__(self, lanes: Sequence[Lane], terms: ProducerTerms) -> None:
        super().__init__(terms.address)
        self._now_ns = terms.now_ns
        self._confirms = terms.confirms
        self._headers = terms.headers
        self._accepted = 0
        self._settled = 0
        self._kept = KeptEnvelopes(has_reports=terms.confirms)
        self._reports = DeliveryReports(self._kept)
        self._block = ProduceBlock(Keys(terms.keys, lanes), self._kept)
        count = min(len(lanes), MOST_CLIENTS)
        self._clients = [
            self._made_client(range(first, len(lanes), count), terms, self._wakeup)
            for first in range(count)
        ]
        self._targets: list[tuple[ProducerClient, int]] = []
        """The clients and topics that messages may be for."""
        self._target_of = self._numbered_targets(lanes)
        self._groups: Records = np.zeros(len(self._targets), GROUP_DTYPE)
        self._grouped: Records = np.zeros(MOST_ROWS, MESSAGE_DTYPE)
        self._grouped_address: int = self._grouped.ctypes.data

    def _made_client(
        self, lanes: Sequence[int], terms: ProducerTerms, wakeup: Wakeup
    ) -> ProducerClient:
        health = Health(lanes, terms.address, terms.now_ns, wakeup, terms.reconnect_seconds)
        return ProducerClient(terms.properties, terms.now_ns, self._reports, health)

    def _numbered_targets(self, lanes: Sequence[Lane]) -> I64:
        """By lane and route: which of the targets."""
        number_of: dict[tuple[int, str], int] = {}
        numbers = np.zeros((len(lanes), max(len(lane.destinations) for lane in lanes)), np.int64)
        for lane_number, lane in enumerate(lanes):
            client_number = lane_number % len(self._clients)
            client = self._clients[client_number]
            for route, destination in enumerate(lane.destinations):
                target = (client_number, str(destination.name))
                if target not in number_of:
                    number_of[target] = len(self._targets)
                    self._targets.append((client, client.topic(target[1])))
                numbers[lane_number, route] = number_of[target]
        return numbers

    def connect(self, timeout_seconds: float) -> None:
        with self._connecting():
            for client in self._clients:
                client.connect(timeout_seconds)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        batch = with_common_headers(batch, self._headers)
        is_certain = len(self._targets) > 1 and self._is_room_certain(batch)
        accepted = 0
        while accepted < len(batch):
            laid = self._block.lay_out(batch, accepted)
            if len(self._targets) == 1:
                taken = self._send_to(0, laid, self._block.address, batch)
            elif is_certain:
                taken = self._send_grouped(laid, batch)
            else:
                taken = self._send_in_order(laid, batch)
            accepted += taken
            if taken < len(laid):
                break
        self._accepted += accepted
        return accepted

    def _is_room_certain(self, batch: Batch) -> bool:
        longest = common_payload_bytes(batch.payload)
        if longest is None:
            longest = max(map(len, batch.payload))
        return all(
            client.has_room_for(len(batch), batch.envelope_bytes + longest)
            for client in self._clients
        )

    def _targets_of(self, laid: Records, batch: Batch) -> I64:
        first = int(laid["offset"][0])
        places = slice(first, first + len(laid))
        return self._target_of[batch.lane[places], batch.route[places]]

    def _send_grouped(self, laid: Records, batch: Batch) -> int:
        groups = self._groups
        found = group_by_target(laid, self._targets_of(laid, batch), groups, self._grouped)
        for target in groups["target"][:found].tolist():
            end, count = int(groups["end"][target]), int(groups["count"][target])
            rows = self._grouped[end - count : end]
            address = self._grouped_address + (end - count) * MESSAGE_DTYPE.itemsize
            taken = self._send_to(target, rows, address, batch)
            if taken < count:
                # Should the library have less room than it said, the agent cannot send again what
                # lies between others that were taken.
                self._refuse(batch, rows["offset"][taken:])
        return len(laid)

    def _send_in_order(self, laid: Records, batch: Batch) -> int:
        targets = self._targets_of(laid, batch)
        ends = [*(np.flatnonzero(np.diff(targets)) + 1).tolist(), len(laid)]
        first = 0
        for end in ends:
            address = self._block.address + first * MESSAGE_DTYPE.itemsize
            taken = self._send_to(int(targets[first]), laid[first:end], address, batch)
            if taken < end - first:
                self._forget(laid[end:])
                return first + taken
            first = end
        return first

    def _send_to(self, target: int, laid: Records, address: int, batch: Batch) -> int:
        """Messages of one client and topic; how many were accepted."""
        client, topic = self._targets[target]
        if batch.headers is None:
            produced = client.produce(topic, address, len(laid))
        else:
            headers = [batch.headers[place] for place in laid["offset"].tolist()]
            produced = client.produce_with_headers(topic, laid, headers)
        if produced == len(laid):
            return produced
        error = laid["error"]
        self._forget(laid[error != 0])
        is_full = error == KafkaError._QUEUE_FULL
        taken = int(is_full.argmax()) if is_full.any() else len(laid)
        self._refuse(batch, laid["offset"][:taken][error[:taken] != 0])
        return taken

    def _forget(self, laid: Records) -> None:
        """Messages that were laid out, and are not sent after all."""
        self._kept.forget(laid["opaque"])

    def _refuse(self, batch: Batch, places: I64) -> None:
        if len(places):
            self._reports.refuse(batch, places, self._now_ns())
            self._wakeup.wake()

    def commit(self) -> None:
        """Nothing to end: transactions are made in `transactions.py`."""

    # -- what became of it -----------------------------------------------------------------------

    def _serve(self) -> None:
        if not self._is_closed:
            self._wakeup.clear()
            for client in self._clients:
                client.serve()

    def outcomes(self) -> Outcomes:
        self._serve()
        outcomes = self._reports.take()
        self._settled += len(outcomes)
        return outcomes

    def in_flight(self) -> int:
        return self._accepted - self._settled if self._confirms else 0

    def flush(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        for client in self._clients:
            client.flush(deadline)
        self._wakeup.wake()

    def signals(self) -> list[Signal]:
        self._serve()
        if len(self._reports):
            self._wakeup.wake()  # The descriptor spoke for them, and was cleared.
        return super().signals()

    def _close_clients(self) -> bool:
        for client in self._clients:
            client.stop_examining()
        are_silent = [client.close() for client in self._clients]
        return all(are_silent)
