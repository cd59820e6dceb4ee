"""Messages to send, laid out in memory the way librdkafka takes them: bodies, keys and headers.

librdkafka copies a body as it takes it, so one block of memory serves again and again; it is kept
small enough to stay in the processor's cache. Where all messages of a run end with the same
payload, the block keeps it, and only envelopes are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from operator import is_
from typing import Literal

import numpy as np
import numpy.typing as npt

from bench_spark.config.fields import value_text
from bench_spark.config.protocols import Kafka
from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes
from bench_spark.core.randomness import U64, fractions, mixed
from bench_spark.transports.base import Lane
from bench_spark.transports.batches import I64, U8, Batch, Headers, each_payload
from bench_spark.transports.kafka.kernels import (
    FIRST_PLACE,
    KEPT_DTYPE,
    NOT_KEPT,
    PLACE_SHIFT,
    Records,
    keep_envelopes,
    lay_out,
    point_keys,
    write_decimals,
)
from bench_spark.transports.kafka.librdkafka import ANY_PARTITION, COPY_PAYLOAD, MESSAGE_DTYPE

BLOCK_BYTES = 256 << 10
MOST_ROWS = 1024
_DECIMAL_BYTES = 20
_FIRST_CAPACITY = 1024


def bodies_to_send(batch: Batch) -> list[bytes]:
    """For clients that take messages one by one."""
    envelopes = np.ascontiguousarray(batch.envelope).tobytes()
    starts = range(0, len(envelopes), ENVELOPE_BYTES)
    width, payloads = batch.envelope_bytes, each_payload(batch.payload)
    # A payload that all share has no end, so the envelopes decide.
    return [
        envelopes[start : start + width] + own for start, own in zip(starts, payloads, strict=False)
    ]


# -- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyRule:
    """Which key a message has (`kafka.keys`)."""

    kind: Literal["none", "producer", "sequence", "uniform", "zipf"] = "none"
    keys: int = 1
    """How many there are, of a kind that chooses among them."""
    exponent: float = 1.0

    @classmethod
    def of(cls, kafka: Kafka) -> KeyRule:
        return cls(kafka.keys, kafka.key_count, kafka.key_exponent)

    @property
    def is_numbered(self) -> bool:
        """Whether a key is a number that the message's own envelope tells."""
        return self.kind in ("sequence", "uniform", "zipf")

    def numbers(self, envelopes: Envelopes) -> U64:
        """The number that is each message's key."""
        if self.kind == "uniform":
            return mixed(envelopes) % np.uint64(self.keys)
        if self.kind == "zipf":
            drawn = np.searchsorted(self._shares_up_to, fractions(envelopes), side="right")
            return np.minimum(drawn, self.keys - 1).astype(np.uint64)
        return np.ascontiguousarray(envelopes["sequence"])

    @cached_property
    def _shares_up_to(self) -> npt.NDArray[np.float64]:
        """Of each key and those before it: key k is (k + 1) ** exponent times rarer than key 0."""
        weights = np.arange(1, self.keys + 1, dtype=np.float64) ** -self.exponent
        cumulated: npt.NDArray[np.float64] = np.cumsum(weights)
        cumulated /= cumulated[-1]
        return cumulated


class Keys:
    """The keys of messages: of their own, or by the rule."""

    def __init__(self, rule: KeyRule, lanes: Sequence[Lane]) -> None:
        self._rule = rule
        self._of_producer = [str(lane.member).encode() for lane in lanes]
        self._memory: U8 = np.zeros(MOST_ROWS * _DECIMAL_BYTES, np.uint8)
        """What the rows point to, where keys are numbers."""
        self._texts = bytearray()
        """The same where they are text."""
        self._were_set = False
        """Whether messages of the block point at keys from before."""

    def of(self, batch: Batch) -> Iterable[bytes | None]:
        """One by one; without an end where there are none."""
        if batch.keys is not None:
            return batch.keys
        if self._rule.kind == "producer":
            return map(self._of_producer.__getitem__, batch.lane.tolist())
        if self._rule.is_numbered:
            return [b"%d" % number for number in self._rule.numbers(batch.envelope).tolist()]
        return repeat(None)

    def point(self, block: Records, count: int, batch: Batch, first: int) -> None:
        """Point the first messages of a block at their keys: those of the batch from `first` on."""
        if batch.keys is None and self._rule.kind == "none":
            if self._were_set:
                block["key"], block["key_bytes"] = 0, 0
                self._were_set = False
            return
        self._were_set = True
        rows, end = block[:count], first + count
        if batch.keys is not None:
            self._point_at(rows, batch.keys[first:end])
        elif self._rule.kind == "producer":
            lanes = batch.lane[first:end].tolist()
            self._point_at(rows, [self._of_producer[lane] for lane in lanes])
        else:
            write_decimals(self._rule.numbers(batch.envelope[first:end]), self._memory, rows)

    def _point_at(self, rows: Records, keys: Sequence[bytes]) -> None:
        rows["key_bytes"] = list(map(len, keys))
        # One byte more, so that even an empty text has an address: a key of nothing is a key.
        self._texts = bytearray().join([*keys, b"\0"])
        point_keys(rows, address_of(self._texts))


def address_of(memory: bytes | bytearray) -> int:
    """Valid as long as the object, if it is not resized."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


# -- envelopes that bodies do not hold
# ---------------------------------------------------------------


class KeptEnvelopes:
    """Envelopes of messages whose bodies do not hold them, until their delivery reports come.

    A report brings back the message's opaque number and its body. Where the body begins with the
    whole envelope that is enough; where it does not, the upper half of the number says where the
    envelope is kept.
    """

    def __init__(self, has_reports: bool = True) -> None:
        """Without reports nothing is ever asked for again, so nothing is kept."""
        self._has_reports = has_reports
        self.places: Records = np.zeros(0, KEPT_DTYPE)
        self.free: I64 = np.zeros(1, np.int64)
        """How many places are free."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self.places) - int(self.free[0])

    def keep(self, envelopes: Envelopes, first: int, rows: Records) -> None:
        """The envelopes, from the first on, of messages laid out."""
        if not self._has_reports:
            rows["opaque"] |= NOT_KEPT << PLACE_SHIFT
            return
        if self.free[0] < len(rows):
            self._grow(len(rows))
        keep_envelopes(envelopes, first, self.free, self.places, rows)

    def forget(self, opaques: I64) -> None:
        """Messages with these numbers were not sent after all."""
        marks = opaques >> PLACE_SHIFT
        self._release(marks[marks >= FIRST_PLACE] - FIRST_PLACE)

    def _release(self, places: I64) -> None:
        free = int(self.free[0])
        self.places["free"][free : free + len(places)] = places
        self.free += len(places)

    def _grow(self, count: int) -> None:
        before = len(self.places)
        grown = np.zeros(max(_FIRST_CAPACITY, 2 * before, before + count), KEPT_DTYPE)
        grown[:before] = self.places
        self.places = grown
        self._release(np.arange(before, len(grown)))


# -- the block -----------------------------------------------------------------------------------


class ProduceBlock:
    """Room for as many messages as are handed over by one call."""

    def __init__(self, keys: Keys, kept: KeptEnvelopes) -> None:
        self._keys = keys
        self._kept = kept
        self._words: I64 = np.zeros(4, np.int64)
        """The layout as the kernel takes it."""
        self._rows: Records = np.zeros(MOST_ROWS, MESSAGE_DTYPE)
        self.address: int = self._rows.ctypes.data
        """Of the first message laid out."""
        self._memory: U8 = np.zeros(BLOCK_BYTES + 1, np.uint8)
        self._shared_payload: bytes | None = None
        """What the messages of the block end with, where that is the same for all."""
        self._payloads: bytes | bytearray | U8 = b""
        """The memory of payloads, as long as the kernel reads it."""
        self._payload = 0
        """Its address."""
        self._layout = (0, 0, 0)
        """How much of envelopes goes into bodies, the length of payloads, from one payload to the
        next."""

    def lay_out(self, batch: Batch, first: int) -> Records:
        """Messages of the batch from the first on, at least one. Valid until the next call.

        The last byte of the block is never used: so even an empty body has an address, without
        which it would be a tombstone.
        """
        self._point_at_payloads(batch, first)
        envelopes = np.ascontiguousarray(batch.envelope)
        count = self._lay_out(envelopes, batch, first)
        if not count:
            self._make_room()
            count = self._lay_out(envelopes, batch, first)
        rows = self._rows[:count]
        if batch.envelope_bytes < ENVELOPE_BYTES:
            self._kept.keep(envelopes, first, rows)
        self._keys.point(self._rows, count, batch, first)
        return rows

    def _lay_out(self, envelopes: Envelopes, batch: Batch, first: int) -> int:
        return lay_out(
            envelopes, batch.lane, first, self._payload, self._words, self._rows, self._memory
        )

    def _point_at_payloads(self, batch: Batch, first: int) -> None:
        payloads, width = batch.payload, batch.envelope_bytes
        if isinstance(payloads, bytes):
            if payloads is not self._shared_payload or width != self._layout[0]:
                self._shared_payload = self._payloads = payloads
                self._payload = address_of(payloads) if payloads else 0
                self._set_layout((width, len(payloads), 0))
            return
        self._shared_payload = None
        if isinstance(payloads, np.ndarray):
            self._payloads = np.ascontiguousarray(payloads)
            step = payloads.shape[1]
            self._payload = self._payloads.__array_interface__["data"][0] + first * step
            if self._layout != (width, step, step):
                self._set_layout((width, step, step))
            return
        own = _fitting(payloads, first, width)
        self._payloads = bytearray().join([*own, b"\0"])
        self._payload = address_of(self._payloads)
        sizes = self._rows["payload_bytes"]
        sizes[: len(own)] = list(map(len, own))
        sizes[len(own) :] = len(self._memory)  # One that does not fit: there the kernel ends.
        self._set_layout((width, -1, 0))

    def _set_layout(self, layout: tuple[int, int, int]) -> None:
        self._layout = layout
        self._words[:] = (*layout, 0)

    def _make_room(self) -> None:
        """For a body larger than the block."""
        width, payload_bytes, _ = self._layout
        if payload_bytes < 0:
            payload_bytes = int(self._rows["payload_bytes"][0])
        self._memory = np.zeros(width + payload_bytes + 1, np.uint8)
        self._set_layout(self._layout)


def _fitting(payloads: Sequence[bytes], first: int, envelope_bytes: int) -> Sequence[bytes]:
    """Those from the first on that fit into a block, at least one."""
    room, end = BLOCK_BYTES, first
    for payload in payloads[first : first + MOST_ROWS]:
        room -= envelope_bytes + len(payload)
        if room < 0:
            break
        end += 1
    return payloads[first : max(end, first + 1)]


# -- headers -------------------------------------------------------------------------------------


def common_headers(kafka: Kafka) -> Headers:
    """Headers of every message, as they are sent: numbers and the like as people write them."""
    return {name: value_text(value).encode() for name, value in kafka.headers.items()}


def with_common_headers(batch: Batch, common: Headers) -> Batch:
    """The same messages with these headers as well; one of a message's own of that name wins."""
    if not common:
        return batch
    if batch.headers is None:
        # One object for all: by that it is seen that they are alike.
        return replace(batch, headers=[common] * len(batch))
    return replace(batch, headers=[{**common, **own} for own in batch.headers])


_TOPIC_HANDLE, _PARTITION, _VALUE, _KEY, _OPAQUE, _FLAGS, _HEADER = 2, 3, 4, 5, 6, 7, 9
"""rd_kafka_vtype_t"""
_COMMON = (_TOPIC_HANDLE, _PARTITION, _FLAGS, _VALUE, _KEY, _OPAQUE)

ARGUMENT_DTYPE = np.dtype(
    [
        ("kind", np.int32),
        ("_gap", np.int32),
        ("first", np.int64),
        ("second", np.int64),
        ("third", np.int64),
        ("_pad", np.uint8, 40),
    ]
)
"""rd_kafka_vu_t: a tag, and a union of 64 bytes: a number, a pointer, or up to three of them."""


class HeaderArguments:
    """Messages with headers, as `rd_kafka_produceva` takes them: one call each, because
    `produce_batch` has no place for headers.

    Arguments that all messages have are laid out for many at once, and so are headers that are the
    same object for all. Memory is kept as long as this object.
    """

    def __init__(self, topic: int, laid: Records, headers: Sequence[Headers]) -> None:
        counts = np.fromiter(map(len, headers), np.int64, len(headers))
        self.counts: list[int] = (counts + len(_COMMON)).tolist()
        """How many arguments each message has."""
        ends = np.cumsum(counts + len(_COMMON))
        starts = ends - counts - len(_COMMON)
        self._arguments = np.zeros(int(ends[-1]), ARGUMENT_DTYPE)
        self.addresses: list[int] = (
            self._arguments.ctypes.data + starts * ARGUMENT_DTYPE.itemsize
        ).tolist()
        self._lay_common(topic, laid, starts)
        self._lay_headers(headers, starts, counts)

    def _lay_common(self, topic: int, laid: Records, starts: I64) -> None:
        values: dict[int, tuple[I64 | int, I64 | int]] = {
            _TOPIC_HANDLE: (topic, 0),
            _PARTITION: (ANY_PARTITION, 0),
            _FLAGS: (COPY_PAYLOAD, 0),
            _VALUE: (laid["payload"], laid["payload_bytes"]),
            _KEY: (laid["key"], laid["key_bytes"]),
            _OPAQUE: (laid["opaque"], 0),
        }
        for place, kind in enumerate(_COMMON):
            rows = starts + place
            self._arguments["kind"][rows] = kind
            self._arguments["first"][rows], self._arguments["second"][rows] = values[kind]

    def _lay_headers(self, headers: Sequence[Headers], starts: I64, counts: I64) -> None:
        are_alike = all(map(is_, headers, repeat(headers[0])))
        written = headers[:1] if are_alike else headers
        names = [name.encode() + b"\0" for each in written for name in each]
        if not names:
            return
        values = [value for each in written for value in each.values()]
        self._names, name_starts, _ = _one_behind_the_other(names)
        self._values, value_starts, value_bytes = _one_behind_the_other(values)
        rows: I64
        if are_alike:
            rows = (starts + len(_COMMON))[:, np.newaxis] + np.arange(len(names))
        else:
            # The place of each header among those of its message.
            own = np.arange(len(names)) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = np.repeat(starts + len(_COMMON), counts) + own
        self._arguments["kind"][rows] = _HEADER
        self._arguments["first"][rows] = self._names.ctypes.data + name_starts
        self._arguments["second"][rows] = self._values.ctypes.data + value_starts
        self._arguments["third"][rows] = value_bytes


def _one_behind_the_other(texts: Sequence[bytes]) -> tuple[U8, I64, I64]:
    """All in one piece of memory, where in it each starts, and its size."""
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # One byte more, so that even an empty text has an address.
    memory = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
    starts: I64 = np.cumsum(sizes) - sizes
    return memory, starts, sizes
