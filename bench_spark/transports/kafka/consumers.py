"""Consumers: one client of librdkafka, and one thread, per lane; all are members of the run's
group, or each of its own where all get a copy.

**A real group.** Users of Kafka measure groups, so topic partitions are assigned by the group's
own protocol, and members in other processes may still be joining when `attach` returns: partitions
then move. Nothing is skipped or read twice, because reading starts at an explicit place: the
group's committed offset, else the beginning (`cluster.py` says why that is right). Before a
partition moves, its owner lets the agent receive what it has already fetched, for up to a second,
and commits that; the new owner goes on from there.

**Ready** means assigned and positioned: the callback that receives the assignment resolves the
places to start from before it hands them to librdkafka. A group with more members than topic
partitions leaves some of them idle; those are ready when the group has answered them.

**Receiving.** Each thread waits for up to 0.1 s for the first message and then takes what else is
there: a half-full batch never waits for more, and nothing spins. The time is read right after each
call returned, before anything is decoded; reading it before the second call would date messages
that arrive in between before they were sent. The thread writes rows, puts them down and wakes the
agent.

**Holding back.** What is in a topic before the run starts would be fetched into memory while all
others get ready, and the start of the run would measure that memory. Where a run only consumes, the
partitions are therefore paused until `receive` is called for the first time.

**Gathering.** Where a run only consumes and does not read when messages were sent, nobody measures
how long they were on their way. While they flow, but not as fast as they could be taken, the thread
then rests for a moment after each fetch: the next one brings more of them, for the same effort.

**Acknowledging** is committing: what the agent has received, once a second in the background, and
finally by `close`. What a thread has fetched but the agent has not received by then stays
uncommitted, and is thus counted as left in the broker.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.transports.base import Consumers, OpeningPace
from bench_spark.transports.batches import Received, nothing_received
from bench_spark.transports.kafka.client_pool import (
    ClientPool,
    Health,
    ThreadedClient,
    Wakeup,
    close_all,
)
from bench_spark.transports.kafka.consumer_clients import (
    POLL_SECONDS,
    CommittedPlace,
    ConsumerTerms,
    MemberTerms,
)
from bench_spark.transports.kafka.librdkafka import LOGGER, reason_of
from bench_spark.transports.kafka.message_reader import Fetched, Position

ATTACH_SECONDS = 20.0
"""Brokers wait 3 s for more members before they assign the first time."""

_MOST_WAITING_ROWS = 50_000
_FULL_PAUSE_SECONDS = 0.002
_FLOWING_ROWS = 500
_GATHERING_SECONDS = 0.005
_HAND_OVER_SECONDS = 1.0
_COMMIT_SECONDS = 1.0
_QUESTION_SECONDS = 5.0
_IDLE_MEMBER_SECONDS = 3.0


class FetchQueue:
    """Where the threads put down what they fetched, and the agent picks it up."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self._waiting: deque[tuple[int, Fetched]] = deque()
        self._rows_in = 0
        self._rows_out = 0
        self._counting = threading.Lock()

    @property
    def is_full(self) -> bool:
        return self._rows_in - self._rows_out > _MOST_WAITING_ROWS

    def put(self, lane: int, fetched: Fetched) -> None:
        with self._counting:
            self._rows_in += len(fetched.rows)
        self._waiting.append((lane, fetched))
        self.wakeup.wake()

    def take(self) -> list[tuple[int, Fetched]]:
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        self._rows_out += sum(len(fetched.rows) for _, fetched in taken)
        return taken


def received_of(parts: Sequence[Fetched]) -> Received:
    """What several fetches have brought, in their order."""
    if len(parts) == 1:
        only = parts[0]
        return Received(only.rows, bodies=only.bodies, keys=only.keys, headers=only.headers)

    def chained(columns: Sequence[list[Any] | None]) -> list[Any] | None:
        """All of them have this part, or none."""
        present = [column for column in columns if column is not None]
        return list(itertools.chain.from_iterable(present)) if present else None

    return Received(
        np.concatenate([one.rows for one in parts]),
        bodies=chained([one.bodies for one in parts]),
        keys=chained([one.keys for one in parts]),
        headers=chained([one.headers for one in parts]),
    )


# -- a member of the run's group -----------------------------------------------------------------


class GroupMember(ThreadedClient):
    """A client, and the only thread that uses it."""

    LEAVE_SECONDS = 5.0
    LEAVE_WHEN_LOST_SECONDS = 0.5
    """librdkafka blocks until the commit under way has failed, at the end of the session (45 s)."""

    def __init__(
        self,
        number: int,
        own: MemberTerms,
        terms: ConsumerTerms,
        may_fetch: threading.Event,
        queue: FetchQueue,
    ) -> None:
        super().__init__(
            Health([number], terms.address, terms.now_ns, queue.wakeup, terms.reconnect_seconds)
        )
        self._number = number
        self._may_idle = own.may_idle
        self._may_fetch = may_fetch
        self._is_held_back = False
        self._gathers = terms.gathers
        self._queue = queue
        self.is_ready = threading.Event()
        self._rows_fetched = 0
        self._rows_received = 0
        self._received: dict[Position, int] = {}
        self._committed: dict[Position, int] = {}
        """By assigned topic partition, and only those: how far the group has committed."""
        self._next_commit = time.monotonic() + _COMMIT_SECONDS
        self._client = terms.client_class(number, own, terms, self)

    # -- called by the agent ---------------------------------------------------------------------

    def connect(self, timeout_seconds: float) -> None:
        self._client.list_topics(timeout=timeout_seconds)

    def join_group(self) -> None:
        self._thread.start()

    def note_received(self, fetched: Fetched) -> None:
        self._received |= fetched.next_offsets
        self._rows_received += len(fetched.rows)

    def leave(self) -> None:
        super().leave()
        if self._thread.ident is None:
            self._client.close()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._client.join()
            joined = time.monotonic()
            while not self._is_ending.is_set():
                if self._is_held_back and self._may_fetch.is_set():
                    self._is_held_back = False
                    self._client.resume(self._client.assignment())
                self._fetch()
                self._commit_now_and_then()
                if self.health.needs_examination:
                    self.health.examine(self._client)
                if self._may_idle and not self.is_ready.is_set():
                    self._accept_idleness(joined)
        except KafkaException as error:
            self.health.lost_for_good(reason_of(error.args[0]))
        except Exception as error:  # our own bug must end the run, not one silent thread
            self.health.lost_for_good(f"the receiving thread failed: {type(error).__name__}")
        finally:
            self._leave_group()

    def _fetch(self) -> None:
        if self._queue.is_full:
            self._is_ending.wait(_FULL_PAUSE_SECONDS)
            return
        fetched = self._client.fetch()
        if fetched is None:
            return
        for topic, error in fetched.problems:
            if error.code() != KafkaError._PARTITION_EOF:
                self.health.lost_for_good(f"topic {topic}: {reason_of(error)}")
        count = len(fetched.rows)
        if count:
            self._rows_fetched += count
            self._queue.put(self._number, fetched)
            if self.health.is_lost:
                self.health.alive(int(fetched.rows["received_ns"][-1]))
        if self._gathers and _FLOWING_ROWS <= count < self._client.batch_messages:
            self._is_ending.wait(_GATHERING_SECONDS)

    def _accept_idleness(self, joined: float) -> None:
        """With incremental protocols a member that gets no partition gets no callback."""
        if time.monotonic() - joined > _IDLE_MEMBER_SECONDS and self._client.memberid():
            self.is_ready.set()

    # -- what the client tells -------------------------------------------------------------------

    def on_error(self, error: KafkaError) -> None:
        self.health.on_error(error)

    def on_assign(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            committed = self._client.committed_offsets(partitions, _QUESTION_SECONDS)
            for partition, offset in zip(partitions, committed, strict=True):
                partition.offset = offset if offset >= 0 else OFFSET_BEGINNING
                self._committed[partition.topic, partition.partition] = offset
        self._client.assign(partitions)
        if partitions and not self._may_fetch.is_set():
            self._is_held_back = True
            self._client.pause(partitions)
        if partitions or self._may_idle:
            self.is_ready.set()

    def on_revoke(self, partitions: list[TopicPartition]) -> None:
        deadline = time.monotonic() + _HAND_OVER_SECONDS
        while self._rows_received < self._rows_fetched and time.monotonic() < deadline:
            if self._is_ending.wait(_FULL_PAUSE_SECONDS):
                break
        self._commit(wait=True)
        self._forget(partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        # Somebody else may own them already, so there is nothing to commit.
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop((partition.topic, partition.partition), None)

    # -- committing ------------------------------------------------------------------------------

    def _commit_now_and_then(self) -> None:
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + _COMMIT_SECONDS
            self._commit(wait=False)

    def _commit(self, *, wait: bool) -> None:
        """Commit what the agent has received of the partitions assigned; never backwards."""
        news = {
            position: offset
            for position, offset in dict(self._received).items()
            if position in self._committed and offset > self._committed[position]
        }
        if not news:
            return
        places = [TopicPartition(topic, number, at) for (topic, number), at in news.items()]
        try:
            self._client.commit_places(places, wait=wait)
        except KafkaException as error:
            self.on_commit([CommittedPlace(place, at, error.args[0]) for place, at in news.items()])

    def on_commit(self, places: Sequence[CommittedPlace]) -> None:
        """Believe only what the broker has agreed to: while a group rebalances it may refuse."""
        for place in places:
            if place.error is not None:
                words = reason_of(place.error)
                LOGGER.info("offset of %s not committed: %s", place.position, words)
            elif place.position in self._committed:
                at = self._committed[place.position]
                self._committed[place.position] = max(at, place.offset)

    def _leave_group(self) -> None:
        # Committing to a broker that is gone would block for the length of a session (45 s), and
        # closing calls `on_revoke`, which commits too.
        if not self.health.is_lost:
            self.health.examine(self._client)
        if self.health.is_lost:
            self._committed.clear()
        self._commit(wait=True)
        self._client.close()


# -- all of an agent -----------------------------------------------------------------------------


class KafkaConsumers(ClientPool[GroupMember], Consumers):
    """See `bench_spark.transports.base.Consumers`."""

    def __init__(self, members: Sequence[MemberTerms], terms: ConsumerTerms) -> None:
        super().__init__(terms.address)
        self._queue = FetchQueue(self._wakeup)
        self._may_fetch = threading.Event()
        if not terms.holds_back:
            self._may_fetch.set()
        self._clients = [
            GroupMember(number, own, terms, self._may_fetch, self._queue)
            for number, own in enumerate(members)
        ]

    def connect(
        self, timeout_seconds: float, pace: OpeningPace, on_opened: Callable[[int], None]
    ) -> None:
        with self._connecting():
            for member in self._clients:
                pace.take(1)
                member.connect(timeout_seconds)
                on_opened(1)

    def attach(self) -> None:
        for member in self._clients:
            member.join_group()
        deadline = time.monotonic() + ATTACH_SECONDS
        for member in self._clients:
            while not member.is_ready.wait(POLL_SECONDS):
                if member.health.is_lost:
                    raise BrokerUnreachable(member.health.take_signals()[-1].reason)
                if time.monotonic() > deadline:
                    raise BrokerRefused(
                        f"{self._address}: the consumer group has not assigned topic partitions to "
                        f"every consumer within {ATTACH_SECONDS:g} s"
                    )

    def detach(self) -> bool:
        """The topic keeps everything, and positions show what was received of it."""
        return True

    def receive(self, timeout_seconds: float) -> Received:
        if not self._may_fetch.is_set():
            self._may_fetch.set()
        self._wakeup.clear()
        taken = self._queue.take()
        if not taken and timeout_seconds > 0:
            waiting = select.poll()
            waiting.register(self._wakeup.descriptor, select.POLLIN)
            waiting.poll(timeout_seconds * 1000)
            self._wakeup.clear()
            taken = self._queue.take()
        if not taken:
            return nothing_received()
        for lane, fetched in taken:
            self._clients[lane].note_received(fetched)
        return received_of([fetched for _, fetched in taken])

    def acknowledge(self, received: Received) -> int:
        return len(received)

    def _close_clients(self) -> bool:
        return close_all(self._clients)
