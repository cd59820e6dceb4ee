"""A client of the plane `fast`, with the delivery reports of what it was given.

**Delivery reports** are events in the client's queue, of as many messages as were in a request. All
that wait are decoded together: the message's lane is the number that was sent along with it, its
head is read from the body (where that does not hold it: `unsettled.py`). Their time is taken as
each event is taken from the queue: the moment that the plane of confluent-kafka takes in its
callback.

**No thread** is needed for that: librdkafka writes to the bell's pipe when its queue stops being
empty. Only the question whether a cluster is still there blocks. A thread asks it while there is
doubt.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from bench_spark.core.clock import NowNs
from bench_spark.threads import watched
from bench_spark.transports.base import Headers, Outcomes
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.header_arguments import HeaderArguments
from bench_spark.transports.kafka.health import Health, reason_of
from bench_spark.transports.kafka.librdkafka import (
    ANY_PARTITION,
    COPY_PAYLOAD,
    EVENT_DELIVERY_REPORTS,
    EVENT_ERROR,
    EVENT_LOG,
    PRODUCER,
    PURGE_IN_FLIGHT,
    PURGE_QUEUE,
    kafka_error,
    text_of,
)
from bench_spark.transports.kafka.messages import Messages, Pointers
from bench_spark.transports.kafka.native_client import NativeClient
from bench_spark.transports.kafka.outcome_kinds import outcome_kind
from bench_spark.transports.kafka.settings import Properties
from bench_spark.transports.kafka.unsettled import Unsettled

_MOST_EVENTS = 200
_MOST_REPORTS = 20_000
"""What is taken from a client's queue before the agent gets its turn again."""

_FLUSH_STEP_MS = 10
_CLOSE_SECONDS = 1.0
_THREAD_END_SECONDS = 3.0
_DESTROY_SECONDS = 2.0
_LOOK_UP_SECONDS = 0.1


class NativeProducer:
    """See `SharedClient`."""

    def __init__(
        self,
        properties: Properties,
        now_ns: NowNs,
        unsettled: Unsettled,
        health: Health,
        bell: Bell,
    ) -> None:
        self.health = health
        self._unsettled = unsettled
        self._now_ns = now_ns
        self._bell = bell
        self._native = NativeClient(PRODUCER, properties, _listen)
        self._library = self._native.library
        self._queue = self._native.queue
        self._library.queue_io_event_enable(self._queue, bell.ringing_descriptor, b"!", 1)
        self._topics: dict[str, int] = {}
        self._pointers = Pointers(_MOST_REPORTS)
        self._most_messages = int(properties["queue.buffering.max.messages"]) or np.iinfo(int).max
        self._most_bytes = 1024 * int(properties["queue.buffering.max.kbytes"])
        self._largest_bytes = 0
        self._examining = threading.Lock()
        self._is_examined = False
        self._examiner: threading.Thread | None = None
        self._is_ending = threading.Event()

    def connect(self, timeout_seconds: float) -> None:
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

    def produce(self, topic: int, laid: Any) -> int:
        """How many were taken; the `error` of each tells about the others."""
        return int(
            self._library.produce_batch(
                topic, ANY_PARTITION, COPY_PAYLOAD, laid.ctypes.data, len(laid)
            )
        )

    def produce_with_headers(self, topic: int, laid: Any, headers: Sequence[Headers]) -> int:
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

    def serve(self) -> Outcomes | None:
        """Take what waits in the queue, without waiting for more; delivery reports are returned."""
        library, pointers = self._library, self._pointers
        reports: list[int] = []
        counts: list[int] = []
        times: list[int] = []
        filled = 0
        for _ in range(_MOST_EVENTS):
            event = library.queue_poll(self._queue, 0)
            if not event:
                break
            if library.event_type(event) != EVENT_DELIVERY_REPORTS:
                self._hear(event)
                continue
            times.append(self._now_ns())
            reports.append(event)
            count = library.event_message_count(event)
            pointers.make_room(filled + count)
            library.event_message_array(event, pointers.address_of(filled), count)
            counts.append(count)
            filled += count
            if filled >= _MOST_REPORTS:
                self._bell.ring()  # There may be more, of which librdkafka has told already.
                break
        else:
            self._bell.ring()
        outcomes = self._decoded(pointers.messages(filled), times, counts) if filled else None
        for event in reports:
            library.event_destroy(event)
        self._ask_if_in_doubt()
        return outcomes

    def _hear(self, event: int) -> None:
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
        self._library.event_destroy(event)

    def _decoded(self, messages: Messages, times: list[int], counts: list[int]) -> Outcomes:
        error = messages.error
        kind = np.zeros(len(messages), dtype=np.uint8)
        is_bad = error != 0
        if is_bad.any():
            for code in np.unique(error[is_bad]).tolist():
                kind[error == code] = outcome_kind(
                    kafka_error(code), was_interrupted=self.health.was_interrupted
                )
        if self.health.is_lost and not is_bad[-1]:
            self.health.alive(times[-1])
        return Outcomes.of_columns(
            at_ns=np.repeat(np.array(times, dtype=np.int64), counts),
            lane=messages.opaque.astype(np.uint32),
            kind=kind,
            head=self._unsettled.heads_of(messages),
        )

    # -- whether the cluster is there ------------------------------------------------------------

    def _ask_if_in_doubt(self) -> None:
        if not self.health.is_doubtful:
            return
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

    def flush(self, deadline: float) -> list[Outcomes]:
        """Send at once what waits for more to go with it, and wait until all has its report."""
        parts = []
        while True:
            # It does not serve the queue, in which every message stays until its report is taken.
            self._library.flush(self._native.handle, _FLUSH_STEP_MS)
            part = self.serve()
            if part is not None:
                parts.append(part)
            is_empty = not self._library.outq_len(self._native.handle)
            if is_empty or time.monotonic() >= deadline:
                return parts

    def stop_asking(self) -> None:
        """Whether the cluster is there; a question under way takes up to two seconds."""
        self._is_ending.set()

    def close(self) -> tuple[list[Outcomes], bool]:
        """Give up what is still unsent: the last reports, and whether nobody can ring any more."""
        if self._examiner is not None:
            self._examiner.join(_THREAD_END_SECONDS)
        parts = []
        if not self.health.is_lost:
            parts += self.flush(time.monotonic() + _CLOSE_SECONDS)
        self._library.purge(self._native.handle, PURGE_QUEUE | PURGE_IN_FLIGHT)
        parts += self.flush(time.monotonic() + _CLOSE_SECONDS)
        self._library.queue_io_event_enable(self._queue, -1, None, 0)
        if self._examiner is not None and self._examiner.is_alive():
            return parts, False  # It still uses the client, and rings with what it finds out.
        for topic in self._topics.values():
            self._library.topic_destroy(topic)
        self._native.destroy_within(_DESTROY_SECONDS)
        return parts, True


def _listen(library: Any, configuration: int) -> None:
    library.conf_set_events(configuration, EVENT_DELIVERY_REPORTS | EVENT_ERROR | EVENT_LOG)
