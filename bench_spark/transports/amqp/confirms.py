"""What became of the messages published on one channel: acks, nacks and returns. Pure.

Tags count from 1 in the order of publishing. A broker may settle them one by one, many at once
(`multiple`: everything still open up to this tag) and in any order, so what is open is a set with
gaps, kept as a ring over the tags between the oldest open one and the next to be sent. RabbitMQ
restarts tags at 1 on every channel: confirms belong to one channel and die with it.

A message that reaches no queue is returned *and* settled, and brokers differ in how: RabbitMQ
returns it first and acks it then, Qpid Broker-J nacks it first and returns it then. Both must count
as returned. So a return is remembered until its ack comes, and where messages may be returned at
all a nack is held back for a moment in case its return follows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    ENVELOPE_WORDS,
    Envelopes,
    byte_rows_of,
    empty_envelopes,
    word_rows_of,
)
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.amqp.frames import (
    ACK,
    FOREIGN,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    FULL,
    HEARTBEAT,
    METHOD,
    MORE,
    NACK,
    RETURN,
    Content,
    FrameTerms,
    returned_envelope,
)
from bench_spark.transports.batches import I64, OUTCOME_DTYPE, U8, OutcomeKind, Rows
from bench_spark.transports.sockets.buffers import (
    Int,
    OutcomeRows,
    ReadBuffer,
    be32,
    be64,
    put_envelope,
    put_outcome,
)

NANOSECONDS_HELD = 100_000_000
"""How long after a nack its return may come."""

_MOST_SLOTS_AT_FIRST = 1024
_SETTLED_BYTES = 13
"""Of an ack or nack: class and method, tag, bits."""
_CONFIRMED, _REFUSED = int(OutcomeKind.CONFIRMED), int(OutcomeKind.REFUSED)

# Words of a channel's ring: what never changes; how many tags are open, and whether these were as
# many as may be when the last was opened; the oldest tag that may be open, and that of the message
# to be published next; how many slots there are, less one; and the slots, whose number is a power
# of two.
_CHANNEL, _CONTENT_MAX, _LANE, _LIMIT, _OPEN, _IS_FULL, _OLDEST, _NEXT, _MASK, _SLOTS = range(10)
_SLOT_WORDS = 1 + ENVELOPE_WORDS
"""Whether a tag is open, and its message's envelope."""


@inlined
def has_tags(ring: I64) -> bool:
    """Whether messages are confirmed at all."""
    return bool(ring[_MASK] >= 0)


@kernel
def remember(envelopes: I64, ring: I64) -> bool:
    """Open a tag for each of these envelopes; False, and nothing done, where the ring is too
    small."""
    mask, tag = ring[_MASK], ring[_NEXT]
    if tag + len(envelopes) - ring[_OLDEST] > mask + 1:
        return False
    for number in range(len(envelopes)):
        slot = _SLOTS + (tag + number & mask) * _SLOT_WORDS
        ring[slot] = 1
        put_envelope(envelopes, number, ring, slot + 1)
    ring[_NEXT] = tag + len(envelopes)
    ring[_OPEN] += len(envelopes)
    ring[_IS_FULL] = ring[_OPEN] >= ring[_LIMIT]
    return True


@inlined
def settle(
    tag: Int, is_multiple: bool, kind: Int, at_ns: Int, count: Int, ring: I64, words: I64
) -> tuple[Int, bool]:
    """Close what a tag stands for, into the rows from `count` on; the rows then, and whether all
    had room. What had none stays open, so that the same call with more room goes on."""
    mask, oldest, next_tag = ring[_MASK], ring[_OLDEST], ring[_NEXT]
    is_unknown = tag < 0 or tag >= next_tag
    if not is_multiple and (is_unknown or tag < oldest):
        return count, True
    first = oldest if is_multiple else tag
    end = next_tag if is_unknown or tag == 0 else tag + 1
    for one in range(first, end):
        slot = _SLOTS + (one & mask) * _SLOT_WORDS
        if ring[slot]:
            if count == len(words):
                return count, False
            ring[slot] = 0
            ring[_OPEN] -= 1
            put_outcome(words, count, at_ns, kind, ring[_LANE], ring, slot + 1)
            count += 1
    # Past everything settled, also past gaps filled earlier.
    while oldest < next_tag and not ring[_SLOTS + (oldest & mask) * _SLOT_WORDS]:
        oldest += 1
    ring[_OLDEST] = oldest
    return count, True


@kernel
def decode_confirms(
    data: U8, at: Int, end: Int, at_ns: Int, count: Int, ring: I64, words: I64
) -> tuple[Int, Int, Int, Int]:
    """Settle by the acks and nacks from `at` to `end`, into the rows from `count` on; where that
    stopped, the rows then, how many of the new ones are refusals, and why it stopped."""
    refused = 0
    while end - at >= FRAME_EXTRA_BYTES:
        kind, first = np.int64(data[at]), at + FRAME_START_BYTES
        stop = first + be32(data, at + 3)
        if (kind != METHOD and kind != HEARTBEAT) or stop - first > ring[_CONTENT_MAX]:
            return at, count, refused, FOREIGN
        if stop >= end:
            return at, count, refused, MORE
        if data[stop] != FRAME_END:
            return at, count, refused, FOREIGN
        if kind == METHOD:
            channel = np.int64(data[at + 1]) << 8 | np.int64(data[at + 2])
            if channel != ring[_CHANNEL] or stop - first < _SETTLED_BYTES:
                return at, count, refused, FOREIGN
            method = be32(data, first)
            if method != ACK and method != NACK:
                return at, count, refused, FOREIGN
            outcome = _CONFIRMED if method == ACK else _REFUSED
            tag, is_multiple = be64(data, first + 4), np.int64(data[first + 12]) & 1 == 1
            before = count
            count, has_all = settle(tag, is_multiple, outcome, at_ns, count, ring, words)
            if method == NACK:
                refused += count - before
            if not has_all:
                return at, count, refused, FULL
        at = stop + 1
    return at, count, refused, MORE


@dataclass(frozen=True)
class ConfirmTerms:
    """What is asked of the broker for the messages of a producer."""

    limit: int
    """Most that may be unconfirmed; 0: there are no confirms."""
    may_return: bool


class Confirms:
    """The receiver of one producer lane."""

    def __init__(
        self, lane: int, framing: FrameTerms, terms: ConfirmTerms, outcomes: OutcomeRows
    ) -> None:
        self._limit = terms.limit
        self._enough = max(1, terms.limit // 4)
        self._may_return = terms.may_return
        self._outcomes = outcomes
        self._lane = lane
        # A thousand lanes have a ring each: no larger than a small limit needs.
        capacity = min(_MOST_SLOTS_AT_FIRST, 1 << terms.limit.bit_length()) if terms.limit else 0
        self.ring: I64 = np.zeros(_SLOTS + capacity * _SLOT_WORDS, np.int64)
        """For whoever writes messages: see `remember`."""
        self.ring[_CHANNEL], self.ring[_CONTENT_MAX] = framing.channel, framing.content_max
        self.ring[_LANE], self.ring[_LIMIT] = lane, terms.limit
        self.ring[_OLDEST] = self.ring[_NEXT] = 1
        self.ring[_MASK] = capacity - 1
        # Single numbers come out of memory views at a fifth of what they cost out of arrays.
        self._numbers = self.ring.data
        self.is_blocked = False
        """Whether the broker wants no messages now."""
        self.is_committing = False
        """Whether the broker is committing a transaction: it takes no messages meanwhile."""
        self.on_held: Callable[[Confirms], None] = lambda confirms: None
        """Called when nacks are held that are to be released later."""
        self.envelope_bytes = ENVELOPE_BYTES
        """How many bytes of its envelope a message begins with, or, where it has none of it, the
        whole envelope, which is brought back by another way."""
        self._returned: Counter[bytes] = Counter()
        """Envelopes that were returned and are still to be acked."""
        self._held: list[Rows] = []
        """Nacks whose returns may follow, a row each."""

    @property
    def room(self) -> int:
        """How many more may be sent now. Once the limit was reached, none until a quarter of it is
        free: a message for every confirm would cost both sides as much as many at a time."""
        if self.is_blocked or self.is_committing:
            return 0
        if not self._limit:
            return sys.maxsize
        room: int = self._limit - self._numbers[_OPEN]
        return 0 if room < self._enough and self._numbers[_IS_FULL] else room

    @property
    def in_flight(self) -> int:
        unsettled: int = self._numbers[_OPEN] + len(self._held)
        return unsettled

    def sent(self, envelopes: Envelopes, envelope_bytes: int) -> None:
        """These were published, in this order, on this channel, and their bodies begin with so many
        bytes of their envelopes."""
        self.envelope_bytes = envelope_bytes or ENVELOPE_BYTES
        while self._limit and not remember(word_rows_of(envelopes), self.ring):
            self.double_ring()

    def double_ring(self) -> None:
        envelope, old = self.ring[:_SLOTS], self.ring[_SLOTS:].reshape(-1, _SLOT_WORDS)
        larger = np.zeros((2 * len(old), _SLOT_WORDS), np.int64)
        tags = np.arange(envelope[_OLDEST], envelope[_NEXT])
        larger[tags % len(larger)] = old[tags % len(old)]
        self.ring = np.concatenate((envelope, larger.reshape(-1)))
        self.ring[_MASK] = len(larger) - 1
        self._numbers = self.ring.data

    # -- what the broker says ----------------------------------------------------------------------

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        outcomes = self._outcomes
        while True:
            before = outcomes.count
            at, outcomes.count, refused, why = decode_confirms(
                buffer.array, at, end, at_ns, before, self.ring, outcomes.words
            )
            if refused or self._returned:
                self._review(before, refused)
            if why != FULL:
                return at, why
            outcomes.make_room(1)

    def returned(self, body: bytes, at_ns: int) -> None:
        key = body[: self.envelope_bytes]
        if not self._limit:
            row = np.zeros(1, OUTCOME_DTYPE)
            row["at_ns"], row["lane"] = at_ns, self._lane
            row["kind"] = OutcomeKind.RETURNED
            row["envelope"] = np.frombuffer(key.ljust(ENVELOPE_BYTES, b"\0"), ENVELOPE_DTYPE)
            self._outcomes.add(row)
        elif not self._was_nacked(key):
            self._returned[key] += 1

    def release(self, now_ns: int) -> bool:
        """Nacks whose time has passed were refusals. Whether others are still held."""
        while self._held and self._held[0]["at_ns"][0] <= now_ns - NANOSECONDS_HELD:
            self._outcomes.add(self._held.pop(0))
        return bool(self._held)

    def abandon(self, at_ns: int) -> None:
        """The lane is gone: what is still open will never be known."""
        for row in self._held:
            self._outcomes.add(row)
        self._held = []
        self.settled(0, True, OutcomeKind.UNKNOWN, at_ns)

    def settled(self, tag: int, multiple: bool, kind: OutcomeKind, at_ns: int) -> None:
        """A tag that is not open settles nothing; with `multiple`, tag 0 means all."""
        outcomes, is_done = self._outcomes, False
        while not is_done:
            before = outcomes.count
            outcomes.count, is_done = settle(
                tag,
                multiple,
                int(kind),
                at_ns,
                before,
                self.ring,
                outcomes.words,
            )
            refused = outcomes.count - before if kind is OutcomeKind.REFUSED else 0
            self._review(before, refused)
            outcomes.make_room(0 if is_done else 1)

    def _review(self, before: int, refused: int) -> None:
        """Find returns among the rows from `before` on, so many of which are refusals."""
        if self._returned:
            self._mark_returned(self._outcomes.rows[before : self._outcomes.count])
        if refused and self._may_return:
            self._hold(before)

    def _mark_returned(self, rows: Rows) -> None:
        for place, key in enumerate(self._keys(rows)):
            if self._returned[key] > 0:
                self._returned[key] -= 1
                rows["kind"][place] = OutcomeKind.RETURNED
        self._returned = +self._returned  # forget those that are used up

    def _hold(self, before: int) -> None:
        """Keep the refusals among the rows from `before` on: their returns may follow."""
        outcomes = self._outcomes
        rows = outcomes.rows[before : outcomes.count].copy()
        is_refused = rows["kind"] == OutcomeKind.REFUSED
        self._held += [rows[place : place + 1] for place in np.flatnonzero(is_refused).tolist()]
        self.on_held(self)
        outcomes.count = before
        outcomes.add(rows[~is_refused])

    def _was_nacked(self, key: bytes) -> bool:
        """Whether a held nack was of this message; it then becomes a return."""
        for number, row in enumerate(self._held):
            if self._keys(row) == [key]:
                row["kind"] = OutcomeKind.RETURNED
                self._outcomes.add(self._held.pop(number))
                return True
        return False

    def _keys(self, rows: Rows) -> list[bytes]:
        """What a returned body would begin with."""
        return [row.tobytes()[: self.envelope_bytes] for row in byte_rows_of(rows["envelope"])]

    # -- what the decoder leaves to the parser -----------------------------------------------------

    @property
    def is_within_message(self) -> bool:
        """Messages that come here are none of the decoder's."""
        return False

    @property
    def missing_bytes(self) -> int | None:
        return None

    def break_off(self) -> None:
        """Nothing has begun."""

    def begin_content(self, method_id: int, method: bytes) -> Content:
        return Content(method_id)

    def on_content(self, content: Content, at_ns: int) -> None:
        # A delivery cannot be meant for a producer: nothing is consumed here.
        if content.method_id == RETURN:
            self.returned(returned_envelope(content.message_id, content.envelope), at_ns)


@warm_up
def _compile() -> None:
    confirms = Confirms(0, FrameTerms(1, 4096), ConfirmTerms(1, may_return=False), OutcomeRows())
    confirms.sent(empty_envelopes(1), ENVELOPE_BYTES)
    confirms.decode(ReadBuffer(1), 0, 0, 0)
    confirms.settled(1, False, OutcomeKind.CONFIRMED, 0)
