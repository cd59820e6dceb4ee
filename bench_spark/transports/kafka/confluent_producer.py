"""A client of the plane `confluent`, with the delivery reports of what it was given.

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
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench_spark.core.clock import NowNs
from bench_spark.errors import ConfigurationError
from bench_spark.threads import watched
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.health import Health, reason_of
from bench_spark.transports.kafka.quiet_log import QuietLog
from bench_spark.transports.kafka.settings import Properties

_POLL_SECONDS = 0.1
_STAND_BACK_SECONDS = 0.002
_CLOSE_SECONDS = 1.0
_THREAD_END_SECONDS = 3.0

Report = tuple[int, int, KafkaError | None, Message]
"""Time, lane, error, message: what is kept of a delivery report until it is asked for."""


def made_producer(properties: Properties, health: Health) -> Producer:
    """confluent-kafka's own."""
    try:
        return Producer(properties | {"error_cb": health.on_error}, logger=QuietLog())
    except KafkaException as error:
        raise ConfigurationError(f"kafka.producer: {error.args[0].str()}") from None


class ConfluentProducer:
    """See `SharedClient`. A thread waits for its reports."""

    def __init__(self, properties: Properties, now_ns: NowNs, health: Health, bell: Bell) -> None:
        self.health = health
        self.reports: list[Report] = []
        self._now_ns = now_ns
        self._bell = bell
        self._polls_with_reports = 0
        self._is_ending = threading.Event()
        self.producer = made_producer(properties, health)
        self._thread = threading.Thread(target=watched(self._wait_for_reports), daemon=True)

    def connect(self, timeout_seconds: float) -> None:
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

    def take_reports(self) -> list[Report]:
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
