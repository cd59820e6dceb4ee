"""Messages of many lanes, decoded together where they are alike. Pure.

Copies of one message that are sent to many consumers differ in packet identifier at most. They are
looked for among what was read of all lanes: first of the first packets of all reads, then of the
second ones, and so on, so that within a lane nothing changes places. A packet that is not like one
that was seen before ends this for its lane, which reads on by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import I64, U8, Bool, Received
from bench_spark.transports.mqtt.acks import identifiers_at
from bench_spark.transports.mqtt.alike import Alike, Likeness
from bench_spark.transports.mqtt.packets import BadPacket, read_length
from bench_spark.transports.mqtt.parsing import LONGEST_WHOLE_BYTES, qos_of
from bench_spark.transports.mqtt.tokens import token
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.crowd import MANY, Reads
from bench_spark.transports.sockets.generations import U64
from bench_spark.transports.sockets.runs import FEW, ReadBuffer

MOST_KNOWN = 256
"""Likenesses: a filter with wildcards may bring any number of topics."""
MOST_MISSES = 4
"""Looks in a row that find too few alike, after which the rest is left to the lanes."""
_EXACTLY_ONCE = 2
_NOWHERE = -1


class Together:
    """Knows what the messages of these lanes look like; they tell it of those that they read."""

    def __init__(self, arrivals: Arrivals, filters: Sequence[tuple[str, ...]]) -> None:
        """`filters` that each lane has subscribed to: those with the same have the same routes."""
        self._arrivals = arrivals
        self._token_marks: U64 = np.zeros(len(filters), np.uint64)
        self._peers = _lanes_with_same(filters)
        self._seen_once: set[Likeness] = set()
        self._known: dict[Likeness, _Copies] = {}
        self._known_by_start: dict[bytes, _Copies] = {}
        self.decoded = 0
        """Messages so far."""

    @property
    def known(self) -> int:
        """How many likenesses."""
        return len(self._known)

    def mark(self, lane: int, token_mark: int) -> None:
        """From now on add this to the tokens of the lane; see generations.py."""
        self._token_marks[lane] = token_mark

    def learn(self, lane: int, likeness: Likeness, route: int) -> None:
        """A lane has received a message like this, by that route. At QoS 2 messages are more than
        what they look like, and stay with their lane."""
        copies = self._known.get(likeness)
        if copies is None:
            if qos_of(likeness[0]) == _EXACTLY_ONCE or len(self._peers[lane]) < MANY:
                return
            copies = self._get_to_know(likeness)
            if copies is None:
                return
        if copies.routes[lane] == _NOWHERE:
            copies.routes[self._peers[lane]] = route

    def _get_to_know(self, likeness: Likeness) -> _Copies | None:
        """None at the first sight: what comes once may never come again."""
        if likeness not in self._seen_once:
            if len(self._seen_once) >= MOST_KNOWN:
                self._seen_once.clear()
            self._seen_once.add(likeness)
            return None
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
            self._known_by_start.clear()
        copies = _Copies(likeness, len(self._peers))
        if copies.alike.shape.row_bytes > LONGEST_WHOLE_BYTES:
            return None
        self._known[likeness] = self._known_by_start[copies.alike.start] = copies
        return copies

    # -- decoding ----------------------------------------------------------------------------------

    def decode(self, buffer: ReadBuffer, reads: Reads) -> I64:
        """Decode what is alike of the front of each read; how far that came in each."""
        at = reads.start.copy()
        places: I64 = np.arange(len(at), dtype=np.int64)
        while len(places) >= MANY:
            places = self._decode_next(buffer, reads, at, places)
        return at

    def _decode_next(self, buffer: ReadBuffer, reads: Reads, at: I64, places: I64) -> I64:
        """Decode one message of each of these reads, where it is known; the places of those that
        it was and that have more to decode."""
        taken_of_all: list[I64] = []
        misses = 0
        while len(places) >= FEW and misses < MOST_MISSES:
            first = int(places[0])
            copies = self._copies_at(buffer.raw, int(at[first]), int(reads.end[first]))
            if copies is None:
                places = places[1:]
                continue
            is_copy, rows = copies.among(buffer, reads, at, places)
            taken = places[is_copy]
            if len(taken):
                self._add(copies, rows, reads.lane[taken], reads.read_ns[taken])
                at[taken] += copies.alike.shape.row_bytes
                taken_of_all.append(taken)
            misses = 0 if len(taken) >= FEW else misses + 1
            is_left = ~is_copy
            # Whatever it was, it is not looked at twice.
            is_left[0] = False
            places = places[is_left]
        if not taken_of_all:
            return places[:0]
        taken = np.concatenate(taken_of_all)
        return taken[at[taken] < reads.end[taken]]

    def _copies_at(self, raw: bytearray, at: int, end: int) -> _Copies | None:
        """What the packet that begins here should be a copy of."""
        try:
            found = read_length(raw, at + 1, end)
        except BadPacket:
            return None  # for its lane to say
        if found is None:
            return None
        topic_at = found[1] + 2
        topic_end = topic_at + int.from_bytes(raw[found[1] : topic_at])
        return self._known_by_start.get(bytes(raw[at:topic_end]))

    def _add(self, copies: _Copies, rows: U8, lane: I64, read_ns: I64) -> None:
        alike, count = copies.alike, len(rows)
        self.decoded += count
        tokens = self._token_marks[lane]
        if alike.qos:
            identifiers = identifiers_at(rows, alike.identifier_at)
            tokens += identifiers.astype(np.uint64) + np.uint64(token(0, alike.qos))
        self._arrivals.add_run(
            Received.of_columns(
                received_ns=read_ns,
                lane=lane.astype(np.uint32),
                route=copies.routes[lane].astype(np.uint16),
                head=alike.heads(rows),
                size=np.full(count, alike.payload_bytes, np.uint32),
                redelivered=np.zeros(count, np.bool_),
                tag=tokens,
            )
        )


class _Copies:
    """Messages of one likeness, to any lane."""

    def __init__(self, likeness: Likeness, lanes: int) -> None:
        self.alike = Alike(likeness, route=0)
        self.routes: I64 = np.full(lanes, _NOWHERE, np.int64)
        """By lane."""
        self._row_bytes = self.alike.shape.row_bytes
        self._looked_at_bytes = min(self._row_bytes, self.alike.payload_at + ENVELOPE_BYTES)

    def among(self, buffer: ReadBuffer, reads: Reads, at: I64, places: I64) -> tuple[Bool, U8]:
        """Of each read whether one of these begins where it was decoded up to; and the beginnings
        of those."""
        starts = at[places]
        is_copy: Bool = starts + self._row_bytes <= reads.end[places]
        is_copy &= self.routes[reads.lane[places]] != _NOWHERE
        candidates = np.flatnonzero(is_copy)
        rows = _windows(buffer, self._looked_at_bytes)[starts[candidates]]
        is_same = self.alike.shape.are_alike(rows)
        if self.alike.qos:
            # No identifier is 0: its lane will complain.
            is_same &= identifiers_at(rows, self.alike.identifier_at) != 0
        is_copy[candidates] = is_same
        return is_copy, rows[is_same]


def _windows(buffer: ReadBuffer, width: int) -> U8:
    """Row n is what begins at byte n of the buffer; nothing is copied."""
    rows = len(buffer.raw) - width + 1
    return np.ndarray((rows, width), np.uint8, buffer.array, strides=(1, 1))


def _lanes_with_same(filters: Sequence[Any]) -> list[I64]:
    """Per lane: all lanes with the same filters as it, itself among them."""
    lanes_of: dict[Any, list[int]] = {}
    for lane, one in enumerate(filters):
        lanes_of.setdefault(one, []).append(lane)
    peers = {one: np.array(lanes, np.int64) for one, lanes in lanes_of.items()}
    return [peers[one] for one in filters]
