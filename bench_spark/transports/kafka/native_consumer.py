"""A member's client of the fast plane, by librdkafka's own interface.

Messages come by `consume_batch_queue`, up to some thousand addresses at a time; their structs and
heads are gathered. What the interface cannot do is give up thousands of messages by one call: there
is one per message, in a loop that runs in C.

librdkafka calls back inside `consume_batch_queue` and `consumer_close`, on the thread that called
them. What a callback raises cannot pass through C: it is kept, and raised by the next `take`.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bench_spark.transports.base import U16, Part
from bench_spark.transports.kafka.columns import Columns, Position
from bench_spark.transports.kafka.group_client import (
    POLL_SECONDS,
    CommittedPlace,
    Membership,
    Taken,
)
from bench_spark.transports.kafka.librdkafka import (
    CONSUMER,
    ERROR_CALLBACK,
    LOG_CALLBACK,
    PARTITIONS_CALLBACK,
    kafka_error,
    text_of,
)
from bench_spark.transports.kafka.messages import Messages, Pointers
from bench_spark.transports.kafka.native_client import NativeClient
from bench_spark.transports.kafka.partition_lists import partition_list, read_partition_list

_POLL_MS = round(POLL_SECONDS * 1000)


def columns_of_messages(
    messages: Messages, topic_of_route: list[str], routes: U16, want: frozenset[Part]
) -> Columns:
    """Decode messages of one lane; there is at least one, and none is an error."""
    return Columns(
        route=routes,
        head=messages.heads(),
        size=messages.payload_bytes.astype(np.uint32),
        next_offsets=_next_offsets(messages, topic_of_route, routes),
        bodies=messages.bodies() if Part.BODY in want else None,
        keys=messages.keys() if Part.KEY in want else None,
    )


def _next_offsets(
    messages: Messages, topic_of_route: list[str], routes: U16
) -> dict[Position, int]:
    """The offset behind the last message of each topic partition."""
    place = messages.partition + (routes.astype(np.int64) << 32)
    if (place == place[-1]).all():
        lasts = np.array([len(messages) - 1])
    else:
        _, from_the_end = np.unique(place[::-1], return_index=True)
        lasts = len(messages) - 1 - from_the_end
    offsets = messages.rows(lasts).offset + 1
    return {
        (topic_of_route[routes[last]], int(messages.partition[last])): offset
        for last, offset in zip(lasts.tolist(), offsets.tolist(), strict=True)
    }


class NativeConsumer:
    """See `GroupClient`. Headers are not read: whoever wants them takes the other plane."""

    batch_messages = 4096

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._listener = membership.listener
        self._now_ns = membership.now_ns
        self._route_of_topic = membership.route_of_topic
        self._topic_of_route = sorted(self._route_of_topic, key=self._route_of_topic.__getitem__)
        self._raised: Exception | None = None
        self._pointers = Pointers(self.batch_messages)
        # Kept as long as the client: librdkafka knows their addresses only.
        self._on_error = ERROR_CALLBACK(self._hear_error)
        self._on_log = LOG_CALLBACK(self._hear_log)
        self._on_rebalance = PARTITIONS_CALLBACK(self._hear_rebalance)
        self._on_commit = PARTITIONS_CALLBACK(self._hear_commit)
        self._native = NativeClient(CONSUMER, membership.properties, self._listen)
        self._library = self._native.library
        self._handle, self._queue = self._native.handle, self._native.queue
        self.list_topics = self._native.list_topics

    def _listen(self, library: Any, configuration: int) -> None:
        library.conf_set_error_cb(configuration, self._on_error)
        library.conf_set_log_cb(configuration, self._on_log)
        library.conf_set_rebalance_cb(configuration, self._on_rebalance)
        library.conf_set_offset_commit_cb(configuration, self._on_commit)

    # -- called by librdkafka --------------------------------------------------------------------

    def _keep_what_it_raises(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # nothing may pass through C; `take` raises it
            self._raised = error

    def _hear_error(self, _client: int, code: int, words: bytes, _opaque: int) -> None:
        error = kafka_error(code, text_of(words))
        self._keep_what_it_raises(partial(self._listener.on_error, error))

    def _hear_log(self, _client: int, level: int, facility: bytes, line: bytes) -> None:
        self._keep_what_it_raises(partial(self._native.log, level, facility, line))

    def _hear_rebalance(self, _client: int, code: int, partitions: int, _opaque: int) -> None:
        self._keep_what_it_raises(partial(self._rebalance, code, partitions))

    def _rebalance(self, code: int, address: int) -> None:
        partitions = [each.without_error for each in read_partition_list(address)]
        if code == KafkaError._ASSIGN_PARTITIONS:
            self._listener.on_assign(partitions)
            return
        try:
            if self._library.assignment_lost(self._handle):
                self._listener.on_lost(partitions)
            else:
                self._listener.on_revoke(partitions)
        finally:
            if self._library.rebalance_protocol(self._handle) == b"COOPERATIVE":
                self._check(self._library.incremental_unassign(self._handle, address))
            else:
                self._library.assign(self._handle, None)

    def _hear_commit(self, _client: int, code: int, partitions: int, _opaque: int) -> None:
        self._keep_what_it_raises(partial(self._tell_commit, code, partitions))

    def _tell_commit(self, code: int, address: int) -> None:
        self._listener.on_commit(
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

    def take(self) -> Taken | None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        pointers, consume = self._pointers, self._library.consume_batch_queue
        first = consume(self._queue, _POLL_MS, pointers.address, 1)
        first_ns = self._now_ns()
        if first <= 0:
            return None
        more = consume(self._queue, 0, pointers.address_of(1), self.batch_messages - 1)
        more_ns = self._now_ns()
        messages = pointers.messages(1 + max(more, 0))
        received_ns = np.full(len(messages), more_ns, dtype=np.int64)
        received_ns[0] = first_ns
        addresses = messages.addresses.tolist()
        try:
            is_bad = messages.error != 0
            if not is_bad.any():
                return Taken(received_ns, self._columns(messages))
            problems = [self._problem(messages.rows(is_bad), at) for at in range(is_bad.sum())]
            good = messages.rows(~is_bad)
            return Taken(received_ns[~is_bad], self._columns(good) if len(good) else None, problems)
        finally:
            deque(map(self._library.message_destroy, addresses), maxlen=0)

    def _columns(self, messages: Messages) -> Columns:
        return columns_of_messages(
            messages, self._topic_of_route, self._routes(messages), self._membership.want
        )

    def _routes(self, messages: Messages) -> U16:
        if len(self._topic_of_route) == 1:
            return np.zeros(len(messages), dtype=np.uint16)
        handles, places = np.unique(messages.topic, return_inverse=True)
        of_handle = [self._route_of_topic[self._topic_name(each)] for each in handles.tolist()]
        return np.array(of_handle, dtype=np.uint16)[places]

    def _topic_name(self, handle: int) -> str:
        return text_of(self._library.topic_name(handle)) if handle else ""

    def _problem(self, messages: Messages, place: int) -> tuple[str, KafkaError]:
        words = self._library.message_errstr(int(messages.addresses[place]))
        error = kafka_error(int(messages.error[place]), text_of(words))
        return self._topic_name(int(messages.topic[place])), error

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

    def join(self, topics: list[str]) -> None:
        self._with_list(self._library.subscribe, [TopicPartition(name) for name in topics])

    def memberid(self) -> str | None:
        address = self._library.memberid(self._handle)
        if not address:
            return None
        name = ctypes.string_at(address).decode()
        self._library.mem_free(self._handle, address)
        return name

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._with_list(self._library.assign, partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        with partition_list(self._library, partitions) as address:
            self._check(self._library.incremental_assign(self._handle, address))

    def assignment(self) -> list[TopicPartition]:
        found = ctypes.c_void_p()
        _check_code(self._library.assignment(self._handle, ctypes.byref(found)))
        try:
            return [each.without_error for each in read_partition_list(found.value)]
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
            if wait:  # the listener is told of errors as well, so there is nothing to check
                self._library.commit_queue(self._handle, address, None, self._on_commit, None)
            else:
                _check_code(self._library.commit(self._handle, address, True))

    def close(self) -> None:
        self._library.consumer_close(self._handle)
        self._native.destroy()


def _check_code(code: int) -> None:
    if code:
        raise KafkaException(kafka_error(code))
