"""Consumers: one librdkafka client, and one thread, per lane; all are members of the run's group,
or each of its own where all get a copy.

**Receiving.** Each thread waits for up to 0.1 s for the first message and then takes what else is
there: a half-full batch never waits for more, and nothing spins. The time is read right after each
call returned, before anything is decoded; reading it before the second call would date messages
that arrive in between before they were sent. The thread turns messages into columns, puts them down
and rings; `receive` only joins columns. How messages are taken and decoded is the plane's business
(`confluent_consumer.py`, `native_consumer.py`); all else is the same on both.

**A real group.** Users of Kafka measure groups, so topic partitions are assigned by the group's
own protocol, and members in other processes may still be joining when `attach` returns: partitions
then move. Nothing is skipped or read twice, because reading starts at an explicit place: the
group's committed offset, else the beginning (`cluster.py` says why that is right). Before a
partition moves, its owner lets the agent receive what it has already taken, for up to a second,
and commits that; the new owner goes on from there.

**Ready** means assigned and positioned: the callback that receives the assignment resolves the
places to start from before it hands them to librdkafka. A group with more members than topic
partitions leaves some of them idle; those are ready when the group has told them so.

**Holding back.** What is in a topic before the run starts would be fetched into memory while all
others get ready, and the start of the run would measure that memory. Where a run only consumes, the
partitions are therefore paused until `receive` is called for the first time.

**Gathering.** Where a run only consumes and does not read when messages were sent, nobody measures
how long they were on their way. While they flow, but not as fast as they could be taken, the thread
then rests for a moment after each go: the next one brings more of them, for the same effort.

**Acknowledging** is committing: what the agent has received, once a second in the background, and
finally by `close`. What a thread has taken but the agent has not received by then stays
uncommitted, and is thus counted as left in the broker.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.measure.clock import NowNs
from bench_spark.transports.base import (
    I64,
    Lane,
    Part,
    Received,
    Signal,
    nothing_received,
)
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.columns import Columns, Position
from bench_spark.transports.kafka.group_client import (
    POLL_SECONDS,
    CommittedPlace,
    GroupClient,
    Listener,
)
from bench_spark.transports.kafka.health import Health, reason_of
from bench_spark.transports.kafka.quiet_log import LOGGER
from bench_spark.transports.kafka.settings import Properties, moves_partitions_one_by_one
from bench_spark.transports.pace import OpeningPace

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
_CLOSE_SECONDS = 5.0
_CLOSE_WHEN_LOST_SECONDS = 0.5


ClientMaker = Callable[..., GroupClient]
"""The class of one plane's clients."""


@dataclass
class _Chunk:
    """What one thread took in one go."""

    lane: int
    received_ns: I64
    columns: Columns


class _Inbox:
    """Where the threads put chunks down and the agent picks them up."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._chunks: deque[_Chunk] = deque()
        self._rows_in = 0
        self._rows_out = 0
        self._counting = threading.Lock()

    @property
    def is_full(self) -> bool:
        return self._rows_in - self._rows_out > _MOST_WAITING_ROWS

    def put(self, chunk: _Chunk) -> None:
        with self._counting:
            self._rows_in += len(chunk.received_ns)
        self._chunks.append(chunk)
        self._bell.ring()

    def take(self) -> list[_Chunk]:
        taken = []
        while self._chunks:
            taken.append(self._chunks.popleft())
        self._rows_out += sum(len(chunk.received_ns) for chunk in taken)
        return taken


class _Member:
    """One consumer of the group, and the thread that is the only one to call it."""

    def __init__(
        self,
        number: int,
        lane: Lane,
        properties: Properties,
        make_client: ClientMaker,
        *,
        want: frozenset[Part],
        may_idle: bool,
        may_fetch: threading.Event,
        gathers: bool,
        address: str,
        now_ns: NowNs,
        reconnect_seconds: float,
        bell: Bell,
        inbox: _Inbox,
    ) -> None:
        self._number = number
        self._route_of_topic = {str(d.name): route for route, d in enumerate(lane.destinations)}
        self._may_idle = may_idle
        self._may_fetch = may_fetch
        self._is_held_back = False
        self._gathers = gathers
        self._inbox = inbox
        self._is_incremental = moves_partitions_one_by_one(properties)
        self.health = Health([number], address, now_ns, bell, reconnect_seconds)
        self.is_ready = threading.Event()
        self._is_ending = threading.Event()
        self._rows_taken = 0
        self._rows_received = 0
        self._received: dict[Position, int] = {}
        self._committed: dict[Position, int] = {}
        """By assigned topic partition, and only those: how far the group has committed."""
        self._next_commit = time.monotonic() + _COMMIT_SECONDS
        self._client = make_client(
            properties,
            self._route_of_topic,
            want,
            now_ns,
            Listener(
                on_error=self.health.on_error,
                on_commit=self._on_commit,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            ),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    # -- called by the agent ---------------------------------------------------------------------

    def connect(self, timeout_seconds: float) -> None:
        self._client.list_topics(timeout=timeout_seconds)

    def join_group(self) -> None:
        self._thread.start()

    def note_received(self, chunk: _Chunk) -> None:
        self._received |= chunk.columns.next_offsets
        self._rows_received += len(chunk.received_ns)

    def leave(self) -> None:
        """Ask the thread to commit and close; `has_left_by` says when it has."""
        self._is_ending.set()
        if self._thread.ident is None:
            self._client.close()

    def has_left_by(self, asked_at: float) -> bool:
        """Wait for the thread, but not long for one whose broker is gone: librdkafka blocks there
        until the commit under way has failed, at the end of the session (45 s)."""
        patience = _CLOSE_WHEN_LOST_SECONDS if self.health.is_lost else _CLOSE_SECONDS
        if self._thread.ident is not None:
            self._thread.join(max(0.0, asked_at + patience - time.monotonic()))
        return not self._thread.is_alive()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._client.join(list(self._route_of_topic))
            joined = time.monotonic()
            while not self._is_ending.is_set():
                if self._is_held_back and self._may_fetch.is_set():
                    self._is_held_back = False
                    self._client.resume(self._client.assignment())
                self._take_messages()
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
            self._say_goodbye()

    def _take_messages(self) -> None:
        if self._inbox.is_full:
            self._is_ending.wait(_FULL_PAUSE_SECONDS)
            return
        taken = self._client.take()
        if taken is None:
            return
        for topic, error in taken.problems:
            if error.code() != KafkaError._PARTITION_EOF:
                self.health.lost_for_good(f"topic {topic}: {reason_of(error)}")
        if taken.columns is not None:
            self._rows_taken += len(taken.received_ns)
            self._inbox.put(_Chunk(self._number, taken.received_ns, taken.columns))
            self.health.alive(int(taken.received_ns[-1]))
        if self._gathers and _FLOWING_ROWS <= len(taken.received_ns) < self._client.batch_messages:
            self._is_ending.wait(_GATHERING_SECONDS)

    def _accept_idleness(self, joined: float) -> None:
        """With incremental protocols a member that gets nothing is told nothing."""
        if time.monotonic() - joined > _IDLE_MEMBER_SECONDS and self._client.memberid():
            self.is_ready.set()

    # -- the group's decisions -------------------------------------------------------------------

    def _on_assign(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            committed = self._client.committed_offsets(partitions, _QUESTION_SECONDS)
            for partition, offset in zip(partitions, committed, strict=True):
                partition.offset = offset if offset >= 0 else OFFSET_BEGINNING
                self._committed[partition.topic, partition.partition] = offset
        if self._is_incremental:
            self._client.incremental_assign(partitions)
        else:
            self._client.assign(partitions)
        if partitions and not self._may_fetch.is_set():
            self._is_held_back = True
            self._client.pause(partitions)
        if partitions or self._may_idle:
            self.is_ready.set()

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        deadline = time.monotonic() + _HAND_OVER_SECONDS
        while self._rows_received < self._rows_taken and time.monotonic() < deadline:
            if self._is_ending.wait(_FULL_PAUSE_SECONDS):
                break
        self._commit(wait=True)
        self._forget(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
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
            self._on_commit(
                [CommittedPlace(place, at, error.args[0]) for place, at in news.items()]
            )

    def _on_commit(self, places: Sequence[CommittedPlace]) -> None:
        """Believe only what the broker has agreed to: while a group rebalances it may refuse."""
        for place in places:
            if place.error is not None:
                words = reason_of(place.error)
                LOGGER.info("offset of %s not committed: %s", place.position, words)
            elif place.position in self._committed:
                at = self._committed[place.position]
                self._committed[place.position] = max(at, place.offset)

    def _say_goodbye(self) -> None:
        # Committing to a broker that is gone would block for the length of a session (45 s), and
        # closing calls `_on_revoke`, which commits too.
        if not self.health.is_lost:
            self.health.examine(self._client)
        if self.health.is_lost:
            self._committed.clear()
        self._commit(wait=True)
        self._client.close()


class KafkaConsumers:
    """See `bench_spark.transports.base.Consumers`."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        properties: Sequence[Properties],
        make_client: ClientMaker,
        *,
        want: frozenset[Part],
        may_idle: Sequence[bool],
        holds_back: bool,
        gathers: bool,
        address: str,
        now_ns: NowNs,
        reconnect_seconds: float,
    ) -> None:
        self._address = address
        self._bell = Bell()
        self._inbox = _Inbox(self._bell)
        self._is_closed = False
        self._may_fetch = threading.Event()
        if not holds_back:
            self._may_fetch.set()
        self._members = [
            _Member(
                number,
                lane,
                properties[number],
                make_client,
                want=want,
                may_idle=may_idle[number],
                may_fetch=self._may_fetch,
                gathers=gathers,
                address=address,
                now_ns=now_ns,
                reconnect_seconds=reconnect_seconds,
                bell=self._bell,
                inbox=self._inbox,
            )
            for number, lane in enumerate(lanes)
        ]

    def connect(
        self, timeout_seconds: float, pace: OpeningPace, on_opened: Callable[[int], None]
    ) -> None:
        try:
            for member in self._members:
                pace.take(1)
                member.connect(timeout_seconds)
                on_opened(1)
        except KafkaException as error:
            self.close()
            raise BrokerUnreachable(f"{self._address}: {reason_of(error.args[0])}") from None

    @property
    def clients(self) -> int:
        """How many librdkafka clients, each with a connection per broker, carry the lanes."""
        return len(self._members)

    @property
    def descriptor(self) -> int:
        return self._bell.descriptor

    def attach(self) -> None:
        for member in self._members:
            member.join_group()
        deadline = time.monotonic() + ATTACH_SECONDS
        for member in self._members:
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
            self._members[chunk.lane].note_received(chunk)
        return _joined(chunks)

    def acknowledge(self, received: Received) -> int:
        return len(received)

    def signals(self) -> list[Signal]:
        return [signal for member in self._members for signal in member.health.take_signals()]

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for member in self._members:
            member.leave()
        started = time.monotonic()
        have_left = [member.has_left_by(started) for member in self._members]
        # A thread that waits for a broker which is gone may still ring: then the pipe stays open.
        if all(have_left):
            self._bell.close()


def _joined(chunks: Sequence[_Chunk]) -> Received:
    columns = [chunk.columns for chunk in chunks]
    counts = [len(chunk.received_ns) for chunk in chunks]
    lanes = np.array([chunk.lane for chunk in chunks], dtype=np.uint32)
    first = columns[0]
    return Received(
        received_ns=np.concatenate([chunk.received_ns for chunk in chunks]),
        lane=np.repeat(lanes, counts),
        route=np.concatenate([each.route for each in columns]),
        head=np.concatenate([each.head for each in columns]),
        size=np.concatenate([each.size for each in columns]),
        redelivered=np.concatenate(
            [
                np.zeros(count, dtype=np.bool_) if each.redelivered is None else each.redelivered
                for each, count in zip(columns, counts, strict=True)
            ]
        ),
        bodies=None if first.bodies is None else [b for each in columns for b in each.bodies or ()],
        keys=None if first.keys is None else [k for each in columns for k in each.keys or ()],
        headers=None
        if first.headers is None
        else [h for each in columns for h in each.headers or ()],
    )
