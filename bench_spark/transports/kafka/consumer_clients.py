"""Clients of consumers: members of a consumer group by librdkafka's own interface, and members of a
share group by confluent-kafka's.

**Consumer groups.** Messages come by `consume_batch_queue`, up to some thousand addresses at a
time; a kernel writes their rows and destroys them. librdkafka calls back inside
`consume_batch_queue` and `consumer_close`, on the thread that called them. What a callback raises
cannot pass through C: it is kept, and raised by the next `fetch`.

**Share groups** (KIP-932): topics are a queue to their members, message by message. Nothing is
assigned to a member and no offsets are its own: the broker lends it messages, and what one fetch
has brought is acknowledged when the next begins. Only confluent-kafka has a client for them. A
share group begins at the end of its topics unless its configuration says otherwise, and a member is
never told that it has joined. So `Cluster.begin_share_group` has it begin at the beginning: what is
sent while members still join is received late, but it is received.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from confluent_kafka import KafkaError, KafkaException, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import leading_envelopes
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import Lane
from bench_spark.transports.batches import I64, RECEIVED_DTYPE, Part
from bench_spark.transports.kafka.librdkafka import (
    CONSUMER,
    ERROR_CALLBACK,
    LOG_CALLBACK,
    PARTITIONS_CALLBACK,
    NativeClient,
    QuietLog,
    kafka_error,
    partition_list,
    read_partition_list,
    text_of,
)
from bench_spark.transports.kafka.message_reader import Fetched, MessageReader, Position
from bench_spark.transports.kafka.settings import Properties

POLL_SECONDS = 0.1
_POLL_MS = round(POLL_SECONDS * 1000)

JOINING_SECONDS = 3.0
"""A heartbeat or two of the broker's: by then a member of a share group has joined, if all goes
well."""


class CommittedPlace(NamedTuple):
    """What the broker said to the commit of one topic partition."""

    position: Position
    offset: int
    error: KafkaError | None


class GroupEvents(Protocol):
    """What a client tells its member. All but `on_error` is called inside `fetch` and `close`."""

    def on_error(self, error: KafkaError) -> None: ...

    def on_commit(self, places: Sequence[CommittedPlace]) -> None: ...

    def on_assign(self, partitions: list[TopicPartition]) -> None: ...

    def on_revoke(self, partitions: list[TopicPartition]) -> None: ...

    def on_lost(self, partitions: list[TopicPartition]) -> None: ...


class GroupClient(ABC):
    """The client of a member of a group. Failures are KafkaExceptions.

    What only members of consumer groups have does nothing here: share groups give their members no
    topic partitions of their own, and fetching more acknowledges what was fetched before.
    """

    batch_messages: ClassVar[int]
    """How many `fetch` brings at most."""

    def __init__(
        self, number: int, own: MemberTerms, terms: ConsumerTerms, events: GroupEvents
    ) -> None:
        self._number = number
        self._want = terms.want
        self._now_ns = terms.now_ns
        self._events = events
        self._route_of_topic = {str(d.name): route for route, d in enumerate(own.lane.destinations)}

    @abstractmethod
    def list_topics(self, *, timeout: float) -> None: ...

    @abstractmethod
    def join(self) -> None:
        """Subscribe; the group's decisions come by callback. From now on one thread calls this."""

    @abstractmethod
    def fetch(self) -> Fetched | None:
        """What has come, waiting for the first message for up to `POLL_SECONDS`. A half-full batch
        never waits for more."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; what it revokes comes by callback."""

    def memberid(self) -> str | None:
        return None

    def assign(self, partitions: list[TopicPartition]) -> None:  # noqa: B027  nothing by design
        pass

    pause = resume = assign

    def assignment(self) -> list[TopicPartition]:
        return []

    def committed_offsets(
        self, partitions: list[TopicPartition], timeout_seconds: float
    ) -> list[int]:
        """Negative where the group has committed nothing."""
        return [-1] * len(partitions)

    def commit_places(  # noqa: B027  nothing by design
        self, places: list[TopicPartition], *, wait: bool
    ) -> None:
        """`on_commit` says how it went: before this returns, or later."""


@dataclass(frozen=True)
class ConsumerTerms:
    """What all members are told."""

    client_class: type[GroupClient]
    want: frozenset[Part]
    address: str
    now_ns: NowNs
    reconnect_seconds: float
    holds_back: bool = False
    gathers: bool = False


@dataclass(frozen=True)
class MemberTerms:
    """What one of them is made from besides."""

    lane: Lane
    properties: Properties
    may_idle: bool
    """Whether the group may have nothing for it."""


# -- consumer groups -----------------------------------------------------------------------------


class ConsumerClient(GroupClient):
    batch_messages = 4096

    def __init__(
        self, number: int, own: MemberTerms, terms: ConsumerTerms, events: GroupEvents
    ) -> None:
        super().__init__(number, own, terms, events)
        self._raised: Exception | None = None
        self._addresses: I64 = np.zeros(self.batch_messages, np.int64)
        self._address: int = self._addresses.ctypes.data
        # Kept as long as the client: librdkafka knows their addresses only.
        self._on_error = ERROR_CALLBACK(self._error_callback)
        self._on_log = LOG_CALLBACK(self._log_callback)
        self._on_rebalance = PARTITIONS_CALLBACK(self._rebalance_callback)
        self._on_commit = PARTITIONS_CALLBACK(self._commit_callback)
        self._native = NativeClient(CONSUMER, own.properties, self._set_callbacks)
        self._library = self._native.library
        self._handle, self._queue = self._native.handle, self._native.queue
        self._reader = MessageReader(self._library, number, self._want, self._route_of_topic)

    def list_topics(self, *, timeout: float) -> None:
        self._native.list_topics(timeout=timeout)

    def _set_callbacks(self, library: Any, configuration: int) -> None:
        library.conf_set_error_cb(configuration, self._on_error)
        library.conf_set_log_cb(configuration, self._on_log)
        library.conf_set_rebalance_cb(configuration, self._on_rebalance)
        library.conf_set_offset_commit_cb(configuration, self._on_commit)

    # -- called by librdkafka --------------------------------------------------------------------

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # nothing may pass through C; `fetch` raises it
            self._raised = error

    def _error_callback(self, _client: int, code: int, words: bytes, _opaque: int) -> None:
        error = kafka_error(code, text_of(words))
        self._guarded(partial(self._events.on_error, error))

    def _log_callback(self, _client: int, level: int, facility: bytes, line: bytes) -> None:
        self._guarded(partial(self._native.log, level, facility, line))

    def _rebalance_callback(self, _client: int, code: int, partitions: int, _opaque: int) -> None:
        self._guarded(partial(self._rebalance, code, partitions))

    def _rebalance(self, code: int, address: int) -> None:
        self._reader.places.clear()
        partitions = _partitions_at(address)
        if code == KafkaError._ASSIGN_PARTITIONS:
            self._events.on_assign(partitions)
            return
        try:
            if self._library.assignment_lost(self._handle):
                self._events.on_lost(partitions)
            else:
                self._events.on_revoke(partitions)
        finally:
            if self._is_incremental:
                self._check(self._library.incremental_unassign(self._handle, address))
            else:
                self._library.assign(self._handle, None)

    @property
    def _is_incremental(self) -> bool:
        """Whether the group moves topic partitions one by one."""
        return bool(self._library.rebalance_protocol(self._handle) == b"COOPERATIVE")

    def _commit_callback(self, _client: int, code: int, partitions: int, _opaque: int) -> None:
        self._guarded(partial(self._commit_ended, code, partitions))

    def _commit_ended(self, code: int, address: int) -> None:
        self._events.on_commit(
            [
                CommittedPlace(
                    (place.topic, place.partition),
                    place.offset,
                    kafka_error(code or place.error) if code or place.error else None,
                )
                for place in read_partition_list(address)
            ]
        )

    # -- receiving -------------------------------------------------------------------------------

    def fetch(self) -> Fetched | None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        consume = self._library.consume_batch_queue
        first = consume(self._queue, _POLL_MS, self._address, 1)
        first_ns = self._now_ns()
        if first <= 0:
            return None
        more = consume(self._queue, 0, self._address + 8, self.batch_messages - 1)
        more_ns = self._now_ns()
        return self._reader.read(self._addresses, 1 + max(more, 0), first_ns, more_ns)

    # -- the group -------------------------------------------------------------------------------

    def _check(self, error: int | None) -> None:
        """Raise an rd_kafka_error_t, if there is one."""
        if error:
            code = self._library.error_code(error)
            words = text_of(self._library.error_string(error))
            self._library.error_destroy(error)
            raise KafkaException(kafka_error(code, words))

    def _with_list(self, function: Callable[[int, int], int], of: list[TopicPartition]) -> None:
        with partition_list(self._library, of) as address:
            _check_code(function(self._handle, address))

    def join(self) -> None:
        self._with_list(self._library.subscribe, list(map(TopicPartition, self._route_of_topic)))

    def memberid(self) -> str | None:
        address = self._library.memberid(self._handle)
        if not address:
            return None
        name = ctypes.string_at(address).decode()
        self._library.mem_free(self._handle, address)
        return name

    def assign(self, partitions: list[TopicPartition]) -> None:
        with partition_list(self._library, partitions) as address:
            if self._is_incremental:
                self._check(self._library.incremental_assign(self._handle, address))
            else:
                _check_code(self._library.assign(self._handle, address))

    def assignment(self) -> list[TopicPartition]:
        found = ctypes.c_void_p()
        _check_code(self._library.assignment(self._handle, ctypes.byref(found)))
        try:
            return _partitions_at(found.value)
        finally:
            self._library.topic_partition_list_destroy(found)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._with_list(self._library.pause_partitions, partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._with_list(self._library.resume_partitions, partitions)

    def committed_offsets(
        self, partitions: list[TopicPartition], timeout_seconds: float
    ) -> list[int]:
        with partition_list(self._library, partitions) as address:
            timeout_ms = round(timeout_seconds * 1000)
            _check_code(self._library.committed(self._handle, address, timeout_ms))
            found = {(e.topic, e.partition): e.offset for e in read_partition_list(address)}
        return [found[each.topic, each.partition] for each in partitions]

    def commit_places(self, places: list[TopicPartition], *, wait: bool) -> None:
        with partition_list(self._library, places) as address:
            if wait:  # `on_commit` is told of errors as well, so there is nothing to check
                self._library.commit_queue(self._handle, address, None, self._on_commit, None)
            else:
                _check_code(self._library.commit(self._handle, address, True))

    def close(self) -> None:
        self._library.consumer_close(self._handle)
        self._native.destroy()


def _partitions_at(address: int | None) -> list[TopicPartition]:
    """Those of a list of librdkafka's."""
    return [
        TopicPartition(one.topic, one.partition, one.offset) for one in read_partition_list(address)
    ]


def _check_code(code: int) -> None:
    if code:
        raise KafkaException(kafka_error(code))


# -- share groups --------------------------------------------------------------------------------

_OF_A_MEMBER = frozenset({"group.id", "share.acknowledgement.mode"})


class ShareClient(GroupClient):
    batch_messages = 1000

    def __init__(
        self, number: int, own: MemberTerms, terms: ConsumerTerms, events: GroupEvents
    ) -> None:
        super().__init__(number, own, terms, events)
        self._ready_at: float | None = None
        told = {"error_cb": events.on_error}
        connection = {key: each for key, each in own.properties.items() if key not in _OF_A_MEMBER}
        try:
            self._consumer: Any = ShareConsumer(own.properties | told, logger=QuietLog())
            # A share consumer cannot be asked whether anybody is there.
            self._admin: Any = AdminClient(connection, logger=QuietLog())
        except KafkaException as error:
            raise ConfigurationError(f"kafka.consumer: {error.args[0].str()}") from None

    def list_topics(self, *, timeout: float) -> None:
        self._admin.list_topics(timeout=timeout)

    def join(self) -> None:
        self._consumer.subscribe(list(self._route_of_topic))
        self._ready_at = time.monotonic() + JOINING_SECONDS

    def fetch(self) -> Fetched | None:
        messages = list(self._consumer.poll(POLL_SECONDS) or ())
        now_ns = self._now_ns()
        if self._ready_at is not None and (messages or time.monotonic() >= self._ready_at):
            self._ready_at = None
            self._events.on_assign([])
        if not messages:
            return None
        good = [one for one in messages if not one.error()]
        fetched = self._fetched(good, now_ns)
        fetched.problems = [(str(one.topic()), one.error()) for one in messages if one.error()]
        return fetched

    def _fetched(self, messages: Sequence[Any], now_ns: int) -> Fetched:
        bodies = [one.value() or b"" for one in messages]
        want = self._want
        rows = np.zeros(len(messages), RECEIVED_DTYPE)
        rows["received_ns"], rows["lane"] = now_ns, self._number
        rows["size"] = list(map(len, bodies))
        rows["route"] = [self._route_of_topic[str(one.topic())] for one in messages]
        rows["redelivered"] = [(one.delivery_count() or 1) > 1 for one in messages]
        if messages:
            rows["envelope"] = leading_envelopes(bodies)
        return Fetched(
            rows,
            {},
            bodies=bodies if Part.BODY in want else None,
            keys=[one.key() for one in messages] if Part.KEY in want else None,
            headers=[
                {name: value or b"" for name, value in one.headers() or ()} for one in messages
            ]
            if Part.HEADERS in want
            else None,
        )

    def close(self) -> None:
        self._consumer.close()
