"""Messages and delivery reports of librdkafka, read into rows.

Kernels do what is the same for every message; what is rare comes back to Python: a message that is
an error, a topic partition not seen before, and bodies, keys and headers where somebody wants them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from bench_spark.transports.batches import (
    I64,
    OUTCOME_DTYPE,
    RECEIVED_DTYPE,
    U8,
    Batch,
    Headers,
    OutcomeKind,
    Outcomes,
    Part,
    Rows,
    no_outcomes,
)
from bench_spark.transports.kafka.client_pool import Health
from bench_spark.transports.kafka.kernels import (
    COUNT,
    ERRORS,
    FETCH_WORDS,
    FIRST_ERROR,
    FIRST_NS,
    KEEPS,
    LANE,
    NEXT,
    NUMBER,
    PLACE_DTYPE,
    PROBLEM,
    REST_NS,
    ROWS,
    TOUCHED,
    Records,
    copy_messages,
    destroy_messages,
    find_place,
    read_messages,
    read_reports,
)
from bench_spark.transports.kafka.librdkafka import MESSAGE_DTYPE, kafka_error, text_of
from bench_spark.transports.kafka.message_block import KeptEnvelopes

_FIRST_PLACES = 64
_FRESH_ROWS = 4096
_FIRST_REPORTS = 1024
MOST_ADDRESSES = 4096
"""Reports read by one call; an event may have more."""

Position = tuple[str, int]
"""A topic and the number of one of its topic partitions."""


@dataclass(slots=True)
class Fetched:
    """What one fetch has brought: messages, if any, and errors of topics."""

    rows: Rows
    """Of RECEIVED_DTYPE, and the receiver's own."""
    next_offsets: dict[Position, int]
    """Where reading goes on after these messages."""
    bodies: list[bytes] | None = None
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    problems: Sequence[tuple[str, KafkaError]] = ()


class PartitionTable:
    """The topic partitions that messages came from, by librdkafka's handles of their topics."""

    def __init__(self, route_of_topic: Mapping[str, int], name_of: Callable[[int], str]) -> None:
        self._route_of_topic = route_of_topic
        self._name_of = name_of
        self._positions: dict[int, Position] = {}
        """By slot of the table."""
        self._make_table(_FIRST_PLACES)

    def _make_table(self, slots: int) -> None:
        self.table: Records = np.zeros(slots, PLACE_DTYPE)
        # Single numbers come out of memory views at a fifth of what they cost out of arrays.
        self._touched = self.table["touched"].data
        self._next_offsets = self.table["next_offset"].data

    def add(self, topic: int, partition: int) -> None:
        if 2 * (len(self._positions) + 1) > len(self.table):
            self._grow()
        name = self._name_of(topic)
        slot = find_place(self.table, topic, partition)
        self.table[slot] = (topic, partition, self._route_of_topic[name], 0, 0, 0)
        self._positions[slot] = (name, partition)

    def _grow(self) -> None:
        before = self.table
        self._make_table(2 * len(before))
        positions, self._positions = self._positions, {}
        for slot, position in positions.items():
            moved = find_place(self.table, int(before["topic"][slot]), position[1])
            self.table[moved] = before[slot]
            self._positions[moved] = position

    def clear(self) -> None:
        """Forget all: a topic that is not assigned any more may leave its handle to another."""
        self.table["topic"] = 0
        self._positions.clear()

    def next_offsets(self, touched: int) -> dict[Position, int]:
        """Of those that a fetch has touched."""
        found = {}
        for place in range(touched):
            slot = self._touched[place]
            found[self._positions[slot]] = self._next_offsets[slot]
        return found


class MessageReader:
    """Reads messages at the addresses that librdkafka has written, and destroys them."""

    def __init__(
        self, library: Any, lane: int, want: frozenset[Part], route_of_topic: Mapping[str, int]
    ) -> None:
        self._library = library
        self._lane = lane
        self._want = want
        self._keeps = bool(want)
        self.places = PartitionTable(route_of_topic, self._topic_name)
        self._fetch: I64 = np.zeros(FETCH_WORDS, np.int64)
        self._numbers = self._fetch.data
        """The same, number by number."""
        self._number = 0
        self._fresh: Rows = np.empty(0, RECEIVED_DTYPE)
        self._used = 0

    def read(self, addresses: I64, count: int, first_ns: int, rest_ns: int) -> Fetched:
        """So many messages, of which the first was taken at another time than the others."""
        self._number += 1
        numbers, rows = self._numbers, self._fresh_rows(count)
        numbers[COUNT], numbers[NEXT], numbers[ROWS], numbers[TOUCHED] = count, 0, 0, 0
        numbers[NUMBER], numbers[FIRST_NS], numbers[REST_NS] = self._number, first_ns, rest_ns
        numbers[LANE], numbers[KEEPS] = self._lane, self._keeps
        before: dict[Position, int] = {}
        problems: list[int] = []
        try:
            while stopped := read_messages(addresses, self._fetch, self.places.table, rows):
                at = numbers[NEXT]
                if stopped == PROBLEM:
                    problems.append(at)
                    numbers[NEXT] += 1
                else:
                    before |= self._add_place(int(addresses[at]))
            found = self.places.next_offsets(numbers[TOUCHED])
            fetched = Fetched(rows, before | found if before else found)
            if problems:
                fetched.rows = rows[: numbers[ROWS]]
                fetched.problems = [self._problem(int(addresses[at])) for at in problems]
            if self._keeps:
                own = addresses[:count]
                self._read_parts(np.delete(own, problems) if problems else own, fetched)
        finally:
            if self._keeps:
                destroy_messages(addresses, 0, count)
            elif problems or numbers[NEXT] < count:
                self._destroy_rest(addresses, count, problems)
        return fetched

    def _fresh_rows(self, count: int) -> Rows:
        """Cut from a larger array, which costs a third of making one."""
        if self._used + count > len(self._fresh):
            self._fresh, self._used = np.empty(max(count, _FRESH_ROWS), RECEIVED_DTYPE), 0
        first, self._used = self._used, self._used + count
        return self._fresh[first : self._used]

    def _destroy_rest(self, addresses: I64, count: int, problems: Sequence[int]) -> None:
        """Those that the kernel has not destroyed: errors, and what nobody came to."""
        for at in problems:
            self._library.message_destroy(int(addresses[at]))
        destroy_messages(addresses, self._numbers[NEXT], count)

    def _add_place(self, address: int) -> dict[Position, int]:
        """The table may grow, so what was touched so far is returned first."""
        message = _fields_of(np.array([address]))[0]
        touched = self.places.next_offsets(self._numbers[TOUCHED])
        self._number += 1
        self._numbers[TOUCHED], self._numbers[NUMBER] = 0, self._number
        self.places.add(int(message["topic"]), int(message["partition"]))
        return touched

    def _topic_name(self, handle: int) -> str:
        return text_of(self._library.topic_name(handle)) if handle else ""

    def _problem(self, address: int) -> tuple[str, KafkaError]:
        message = _fields_of(np.array([address]))[0]
        words = text_of(self._library.message_errstr(address))
        return self._topic_name(int(message["topic"])), kafka_error(int(message["error"]), words)

    def _read_parts(self, addresses: I64, fetched: Fetched) -> None:
        """What is wanted besides the envelope."""
        fields = _fields_of(addresses)
        if Part.BODY in self._want:
            fetched.bodies = [text or b"" for text in _texts(fields, "payload")]
        if Part.KEY in self._want:
            fetched.keys = _texts(fields, "key")
        if Part.HEADERS in self._want:
            fetched.headers = [self._headers(address) for address in addresses.tolist()]

    def _headers(self, message: int) -> Headers:
        found = ctypes.c_void_p()
        if self._library.message_headers(message, ctypes.byref(found)):
            return {}  # it has none
        headers: dict[str, bytes] = {}
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        into = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
        places = itertools.count()
        while self._library.header_get_all(found, next(places), *into) == 0:
            # Kafka has headers without a value.
            own = ctypes.string_at(value.value, size.value) if value.value else b""
            headers[text_of(name.value)] = own
        return headers


def _fields_of(addresses: I64) -> Records:
    """The structs at these addresses, copied."""
    fields = np.empty(len(addresses), MESSAGE_DTYPE)
    copy_messages(addresses, fields)
    return fields


def _texts(fields: Records, name: str) -> list[bytes | None]:
    starts, sizes = fields[name].tolist(), fields[f"{name}_bytes"].tolist()
    return [
        ctypes.string_at(start, size) if start else None
        for start, size in zip(starts, sizes, strict=True)
    ]


# -- delivery reports ----------------------------------------------------------------------------

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


def outcome_kind(code: int, *, was_interrupted: bool) -> OutcomeKind:
    """What the error code of a delivery report says about the message."""
    if code == KafkaError.NO_ERROR:
        return OutcomeKind.CONFIRMED
    if code == KafkaError._PURGE_QUEUE:
        # Taken out of the queue by ourselves. After an interruption it may wait there for a second
        # try while the first one has reached the log.
        return OutcomeKind.UNKNOWN if was_interrupted else OutcomeKind.REFUSED
    return OutcomeKind.REFUSED if code in _NEVER_WRITTEN else OutcomeKind.UNKNOWN


def _kinds(*, was_interrupted: bool) -> U8:
    """By error code, from FIRST_ERROR on; the last is that of codes beyond."""
    codes = range(FIRST_ERROR, FIRST_ERROR + ERRORS + 1)
    return np.array([outcome_kind(code, was_interrupted=was_interrupted) for code in codes], "u1")


class DeliveryReports:
    """Outcomes that nobody has asked for yet, of all clients of an agent."""

    def __init__(self, kept: KeptEnvelopes) -> None:
        self._kept = kept
        self._kinds = (_kinds(was_interrupted=False), _kinds(was_interrupted=True))
        self._addresses: I64 = np.zeros(MOST_ADDRESSES, np.int64)
        self.address: int = self._addresses.ctypes.data
        """Where addresses of messages are to be written; `read` reads them."""
        self._rows: Rows = np.zeros(_FIRST_REPORTS, OUTCOME_DTYPE)
        self._spare: Rows = np.zeros(_FIRST_REPORTS, OUTCOME_DTYPE)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _make_room(self, rows: int) -> None:
        wanted = self._count + rows
        if wanted > len(self._rows):
            grown = np.zeros(2 * wanted, OUTCOME_DTYPE)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown

    def read(self, count: int, at_ns: int, health: Health) -> None:
        if not count:
            return
        self._make_room(count)
        rows = self._rows[self._count : self._count + count]
        kinds, kept = self._kinds[health.was_interrupted], self._kept
        read_reports(self._addresses, at_ns, kept.free, kept.places, kinds, rows)
        self._count += count
        if health.is_lost and rows["kind"][-1] == OutcomeKind.CONFIRMED:
            health.alive(at_ns)

    def refuse(self, batch: Batch, places: I64, at_ns: int) -> None:
        """Messages that the library itself will not take: their outcome is known at once."""
        self._make_room(len(places))
        end = self._count + len(places)
        rows = self._rows[self._count : end]
        rows["at_ns"], rows["kind"] = at_ns, OutcomeKind.REFUSED
        rows["lane"], rows["envelope"] = batch.lane[places], batch.envelope[places]
        self._count = end

    def take(self) -> Outcomes:
        """What was collected; its rows are written over after the next call."""
        if not self._count:
            return no_outcomes()
        rows = self._rows[: self._count]
        self._rows, self._spare, self._count = self._spare, self._rows, 0
        return Outcomes(rows)
