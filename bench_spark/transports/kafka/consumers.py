"""Consumers: one librdkafka client, and one thread, per lane; all are members of the run's group,
or each of its own where all get a copy.

**Receiving.** Each thread waits for up to 0.1 s for the first message and then takes what else is
there: a half-full batch never waits for more, and nothing spins. The time is read right after each
call returned, before anything is decoded; reading it before the second call would date messages
that arrive in between before they were sent. The thread turns messages into columns, puts them down
and rings; `receive` only joins columns. How messages are taken and decoded is the plane's business
(`confluent_consumer.py`, `native_consumer.py`); all else is the same on both.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence

from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.transports.base import Lane, Received, nothing_received
from bench_spark.transports.kafka.crew import Crew, have_all_left
from bench_spark.transports.kafka.group_client import POLL_SECONDS
from bench_spark.transports.kafka.group_member import ConsumerTerms, GroupMember
from bench_spark.transports.kafka.inbox import Inbox, joined_chunks
from bench_spark.transports.kafka.settings import Properties
from bench_spark.transports.pace import OpeningPace

ATTACH_SECONDS = 20.0
"""Brokers wait 3 s for more members before they assign the first time."""


class KafkaConsumers(Crew[GroupMember]):
    """See `bench_spark.transports.base.Consumers`."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        properties: Sequence[Properties],
        may_idle: Sequence[bool],
        terms: ConsumerTerms,
    ) -> None:
        """`properties` and `may_idle` are the lanes' own."""
        super().__init__(terms.address)
        self._inbox = Inbox(self._bell)
        self._may_fetch = threading.Event()
        if not terms.holds_back:
            self._may_fetch.set()
        self._crew = [
            GroupMember(
                number,
                lane,
                properties[number],
                terms,
                may_idle=may_idle[number],
                may_fetch=self._may_fetch,
                bell=self._bell,
                inbox=self._inbox,
            )
            for number, lane in enumerate(lanes)
        ]

    def connect(
        self, timeout_seconds: float, pace: OpeningPace, on_opened: Callable[[int], None]
    ) -> None:
        with self._connecting():
            for member in self._crew:
                pace.take(1)
                member.connect(timeout_seconds)
                on_opened(1)

    def attach(self) -> None:
        for member in self._crew:
            member.join_group()
        deadline = time.monotonic() + ATTACH_SECONDS
        for member in self._crew:
            while not member.is_ready.wait(POLL_SECONDS):
                if member.health.is_lost:
                    raise BrokerUnreachable(member.health.take_signals()[-1].reason)
                if time.monotonic() > deadline:
                    raise BrokerRefused(
                        f"{self._address}: the consumer group has not assigned topic partitions to "
                        f"every consumer within {ATTACH_SECONDS:g} s"
                    )

    def detach(self) -> bool:
        """The topic keeps everything, and positions tell what was received of it."""
        return True

    def receive(self, timeout_seconds: float) -> Received:
        if not self._may_fetch.is_set():
            self._may_fetch.set()
        self._bell.hush()
        chunks = self._inbox.take()
        if not chunks and timeout_seconds > 0:
            bell = select.poll()
            bell.register(self._bell.descriptor, select.POLLIN)
            bell.poll(timeout_seconds * 1000)
            self._bell.hush()
            chunks = self._inbox.take()
        if not chunks:
            return nothing_received()
        for chunk in chunks:
            self._crew[chunk.lane].note_received(chunk)
        return joined_chunks(chunks)

    def acknowledge(self, received: Received) -> int:
        return len(received)

    def _let_go(self) -> bool:
        return have_all_left(self._crew)
