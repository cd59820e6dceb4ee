"""Consumers: deliveries are decoded into rows, and acknowledged many at once.

With transactions acknowledgements are committed together. A commit is synchronous: what is to be
acknowledged while the broker commits waits its turn.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_WORDS
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.amqp.connection import CHANNEL, AmqpConnection
from bench_spark.transports.amqp.frames import (
    BASIC_CLASS,
    BODY,
    BODY_SIZE_AT,
    DELIVER,
    FOREIGN,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    FULL,
    HEADER,
    HEARTBEAT,
    METHOD,
    MORE,
    NOT_UNDERSTOOD,
    PROPERTIES_AT,
    BadFrame,
    Content,
    FrameParser,
    FrameTerms,
    method_frame,
    not_understood,
    read_headers,
)
from bench_spark.transports.base import Lane
from bench_spark.transports.batches import ENVELOPE_ONLY, I64, RECEIVED_DTYPE, U8, Received, Rows
from bench_spark.transports.sockets.buffers import (
    GENERATION_AT,
    TAG_BITS,
    Arrivals,
    Int,
    ReadBuffer,
    be32,
    be64,
    by_lane,
    generation_mark,
    own_tags,
    put_received,
    take_envelope,
)
from bench_spark.transports.sockets.lanes import Receiver
from bench_spark.transports.sockets.opening import OpenLane

MOST_PIECES = 1024
"""Frames of headers and bodies that are noted at once, where these are wanted."""

_CONSUMER_TAG_AT = 5
"""In a deliver: behind class, method and the tag's length."""
_TAG_AND_REDELIVERED = struct.Struct(">QB")
_DIGIT_ZERO = ord("0")
_NOTHING, _A_HEADER, _A_BODY = 0, 1, 2
"""What is missing of a delivery that has begun."""

# Words of a decoder's state: what never changes, and the delivery that is not complete yet.
_CHANNEL, _CONTENT_MAX, _MOST_BYTES, _LANE, _TAG_MARK, _ROUTES, _PREFIX_BYTES = range(7)
_EXPECTS, _ROUTE, _TAG, _REDELIVERED, _SIZE, _MISSING, _HEAD = range(7, 14)
_PREFIX = _HEAD + ENVELOPE_WORDS
_PIECES = _PREFIX + 255
"""A consumer tag has at most 255 bytes, a word each. Behind it is room for pieces, if they are
wanted."""

_START, _STOP, _KIND, _IS_LAST, _PIECE_WORDS = range(5)
"""Of a piece: where in the buffer the content of a header or body frame is; the last one of a
message."""


class ConsumerTags(NamedTuple):
    """What consumers are called on their connection: a prefix, and the route in digits."""

    prefix: bytes
    routes: int

    def of(self, route: int) -> str:
        return f"{self.prefix.decode()}{route}"


@inlined
def _route_of(data: U8, first: Int, stop: Int, state: I64) -> Int:
    """The route in a consumer tag; -1 where the tag is none of ours."""
    prefix_bytes = state[_PREFIX_BYTES]
    digits_at = first + prefix_bytes
    if digits_at >= stop:
        return -1
    for place in range(prefix_bytes):
        if np.int64(data[first + place]) != state[_PREFIX + place]:
            return -1
    if data[digits_at] == _DIGIT_ZERO and stop - digits_at > 1:
        return -1
    route = np.int64(0)
    for at in range(digits_at, stop):
        digit = np.int64(data[at]) - _DIGIT_ZERO
        route = 10 * route + digit
        if digit < 0 or digit > 9 or route >= state[_ROUTES]:
            return -1
    return route


@inlined
def _begin_delivery(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Note the deliver between `first` and `stop`; False where it is not as it should be."""
    if state[_EXPECTS] != _NOTHING or stop - first < _CONSUMER_TAG_AT:
        return False
    tag_at = first + _CONSUMER_TAG_AT + np.int64(data[first + _CONSUMER_TAG_AT - 1])
    if tag_at + 9 >= stop:  # the tag, the bit, and the length of the exchange's name
        return False
    route = _route_of(data, first + _CONSUMER_TAG_AT, tag_at, state)
    if route < 0:
        return False
    state[_EXPECTS] = _A_HEADER
    state[_ROUTE] = route
    state[_TAG] = be64(data, tag_at)
    state[_REDELIVERED] = np.int64(data[tag_at + 8]) & 1
    return True


@inlined
def _take_header(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Note the size of a delivery's body; False where the header is not as it should be."""
    if state[_EXPECTS] != _A_HEADER or stop - first <= PROPERTIES_AT:
        return False
    size = be64(data, first + BODY_SIZE_AT)
    if be32(data, first) >> 16 != BASIC_CLASS or size < 0 or size > state[_MOST_BYTES]:
        return False
    state[_EXPECTS] = _A_BODY
    state[_SIZE] = size
    state[_MISSING] = size
    return True


@inlined
def _take_body(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Keep what a frame has of the envelope; False where the frame is not as it should be."""
    if state[_EXPECTS] != _A_BODY or stop - first > state[_MISSING]:
        return False
    have = state[_SIZE] - state[_MISSING]
    if have == 0 and stop - first >= ENVELOPE_BYTES:
        take_envelope(data, first, ENVELOPE_BYTES, state, _HEAD)
    elif have < ENVELOPE_BYTES:
        if have == 0:
            for place in range(ENVELOPE_WORDS):
                state[_HEAD + place] = 0
        for place in range(min(stop - first, ENVELOPE_BYTES - have)):
            byte = np.int64(data[first + place]) << 8 * ((have + place) % 8)
            state[_HEAD + (have + place) // 8] |= byte
    state[_MISSING] -= stop - first
    return True


@inlined
def _end_delivery(state: I64, words: I64, count: Int, at_ns: Int) -> None:
    """Write a complete delivery as a row."""
    if not state[_SIZE]:
        for place in range(ENVELOPE_WORDS):
            state[_HEAD + place] = 0
    put_received(
        words,
        count,
        at_ns,
        state[_TAG] | state[_TAG_MARK],
        state,
        _HEAD,
        state[_LANE],
        state[_SIZE],
        state[_ROUTE],
        state[_REDELIVERED],
    )
    state[_EXPECTS] = _NOTHING


@kernel
def decode_deliveries(
    data: U8, at: Int, end: Int, at_ns: Int, count: Int, state: I64, words: I64
) -> tuple[Int, Int, Int, Int]:
    """Decode from `at` to `end` into the rows from `count` on; where decoding stopped, the rows and
    the pieces then (none where the state has no room for them), and why."""
    found, most_pieces = 0, (len(state) - _PIECES) // _PIECE_WORDS
    while end - at >= FRAME_EXTRA_BYTES:
        kind, first = np.int64(data[at]), at + FRAME_START_BYTES
        stop = first + be32(data, at + 3)
        is_known = kind in (METHOD, HEADER, BODY, HEARTBEAT)
        if not is_known or stop - first > state[_CONTENT_MAX]:
            return at, count, found, FOREIGN
        if stop >= end:
            return at, count, found, MORE
        if data[stop] != FRAME_END:
            return at, count, found, FOREIGN
        if kind != HEARTBEAT:
            if np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) != state[_CHANNEL]:
                return at, count, found, FOREIGN
            if kind == METHOD:
                is_deliver = stop - first >= 4 and be32(data, first) == DELIVER
                if not is_deliver or not _begin_delivery(data, first, stop, state):
                    return at, count, found, FOREIGN
            else:
                if count == len(words) or 0 < most_pieces == found:
                    return at, count, found, FULL
                if kind == HEADER:
                    if not _take_header(data, first, stop, state):
                        return at, count, found, FOREIGN
                elif not _take_body(data, first, stop, state):
                    return at, count, found, FOREIGN
                is_last = state[_MISSING] == 0
                if most_pieces:
                    piece = _PIECES + found * _PIECE_WORDS
                    state[piece + _START] = first
                    state[piece + _STOP] = stop
                    state[piece + _KIND] = kind
                    state[piece + _IS_LAST] = is_last
                    found += 1
                if is_last:
                    _end_delivery(state, words, count, at_ns)
                    count += 1
        at = stop + 1
    return at, count, found, MORE


class DeliveryDecoder:
    """The receiver of one consumer lane."""

    def __init__(
        self,
        lane: int,
        framing: FrameTerms,
        consumers: ConsumerTags,
        arrivals: Arrivals,
        tag_mark: int = 0,
    ) -> None:
        """`tag_mark` is added to every delivery tag; see `generation_mark`."""
        self._arrivals = arrivals
        wants_pieces = arrivals.wants_bodies or arrivals.wants_headers
        piece_words = MOST_PIECES * _PIECE_WORDS if wants_pieces else 0
        self._state: I64 = np.zeros(_PIECES + piece_words, np.int64)
        self._pieces: I64 = self._state[_PIECES:].reshape(-1, _PIECE_WORDS)
        self._state[_CHANNEL] = framing.channel
        self._state[_CONTENT_MAX] = framing.content_max
        self._state[_MOST_BYTES] = arrivals.most_bytes
        self._state[_LANE] = lane
        self._state[_TAG_MARK] = tag_mark
        self._state[_ROUTES] = consumers.routes
        self._state[_PREFIX_BYTES] = len(consumers.prefix)
        self._state[_PREFIX : _PREFIX + len(consumers.prefix)] = list(consumers.prefix)
        self._header = b""
        self._body: list[bytes] = []

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        arrivals = self._arrivals
        while True:
            before = arrivals.count
            at, arrivals.count, found, why = decode_deliveries(
                buffer.array, at, end, at_ns, before, self._state, arrivals.words
            )
            if found:
                self._collect(buffer, self._pieces[:found].tolist(), before)
            if why != FULL:
                return at, why
            arrivals.make_room(1)

    def _collect(
        self, buffer: ReadBuffer, pieces: Iterable[tuple[int, int, int, int]], complete: int
    ) -> None:
        """Take bodies and headers out of the buffer; so many rows had theirs before."""
        arrivals = self._arrivals
        for start, stop, kind, is_last in pieces:
            if kind == HEADER:
                self._header = bytes(buffer.view[start:stop])
            elif arrivals.wants_bodies:
                self._body.append(bytes(buffer.view[start:stop]))
            if not is_last:
                continue
            if arrivals.wants_headers:
                try:
                    arrivals.headers.append(read_headers(self._header[PROPERTIES_AT:]))
                except NOT_UNDERSTOOD as error:
                    arrivals.count = complete
                    raise not_understood(error) from error
            if arrivals.wants_bodies:
                body = self._body
                arrivals.bodies.append(body[0] if len(body) == 1 else b"".join(body))
                body.clear()
            complete += 1

    # -- what the decoder leaves to the parser -----------------------------------------------------

    @property
    def is_within_message(self) -> bool:
        return bool(self._state[_EXPECTS] != _NOTHING)

    @property
    def missing_bytes(self) -> int | None:
        """Of the body of a delivery whose header has come."""
        return int(self._state[_MISSING]) if self._state[_EXPECTS] == _A_BODY else None

    def break_off(self) -> None:
        self._state[_EXPECTS] = _NOTHING
        self._body.clear()

    def begin_content(self, method_id: int, method: bytes) -> Content:
        if method_id == DELIVER:
            tag_at = _CONSUMER_TAG_AT + method[_CONSUMER_TAG_AT - 1]
            _TAG_AND_REDELIVERED.unpack_from(method, tag_at)
            method[tag_at + _TAG_AND_REDELIVERED.size]  # raises what is told as not understood
            raise BadFrame("a delivery for a consumer that is not ours")
        return Content(method_id)

    def on_content(self, content: Content, at_ns: int) -> None:
        """A return: nothing was published here, so nothing of ours came back."""


U64 = npt.NDArray[np.uint64]

_TAG_AT = 11
"""In the frame of an ack: behind the frame's start, class and method."""
_MOST_ACKS = 4096
"""Written at once, unless more are asked for."""

# Words of a lane in the table of ack groups: its generation; how many messages wait until their
# group is full, and the tag of the last; when it was added.
_GENERATION, _WAITING, _LAST_TAG, _ADDED_NS, GROUP_WORDS = range(5)


@inlined
def _put_tag(acks: U8, number: Int, tag: Int) -> None:
    for place in range(8):
        acks[number, _TAG_AT + place] = tag >> np.uint64(56 - 8 * place) & np.uint64(0xFF)


@kernel
def write_acks(acks: U8, tags: U64) -> None:
    """Make each frame the ack of one of these tags."""
    for number in range(len(tags)):
        _put_tag(acks, number, tags[number])


@kernel
def encode_acks(
    rows: Rows, at: Int, groups: I64, every: Int, now_ns: Int, acks: U8
) -> tuple[Int, Int, Int]:
    """Add the messages from `at` on that are of one lane to the lane's group, without those of
    another generation, and write an ack for each `every` of them.

    Returns the place of the next message, the lane, and how many acks were written.
    """
    lane, count = np.int64(rows[at]["lane"]), np.int64(0)
    generation, waiting = groups[lane, _GENERATION], groups[lane, _WAITING]
    while at < len(rows) and rows[at]["lane"] == lane and count < len(acks):
        tag = np.uint64(rows[at]["tag"])
        if np.int64(tag >> np.uint64(GENERATION_AT)) == generation:
            tag &= np.uint64(TAG_BITS)
            waiting += 1
            groups[lane, _LAST_TAG] = np.int64(tag)
            if waiting == every:
                _put_tag(acks, count, tag)
                count += 1
                waiting = 0
        at += 1
    groups[lane, _WAITING], groups[lane, _ADDED_NS] = waiting, now_ns
    return at, lane, count


class AckFrames:
    """Acks, all `multiple` or all single, that lack nothing but their tags."""

    def __init__(self, channel: int, multiple: bool) -> None:
        self._ack = method_frame(channel, pika.spec.Basic.Ack(0, multiple))
        self.ack_bytes = len(self._ack)
        self._make(_MOST_ACKS)

    def _make(self, count: int) -> None:
        data = bytearray(self._ack * count)
        self.acks: U8 = np.frombuffer(data, np.uint8).reshape(count, -1)
        self.view = memoryview(data)

    def of(self, tags: U64) -> memoryview:
        """One ack for each of these; good until the next call."""
        if len(tags) > len(self.acks):
            self._make(2 * len(tags))
        write_acks(self.acks, np.ascontiguousarray(tags))
        return self.view[: len(tags) * self.ack_bytes]


@warm_up
def _compile() -> None:
    receiver = DeliveryDecoder(
        0, FrameTerms(1, 4096), ConsumerTags(b"", 1), Arrivals(ENVELOPE_ONLY)
    )
    receiver.decode(ReadBuffer(1), 0, 0, 0)
    frames, groups = AckFrames(1, multiple=False), np.zeros((1, GROUP_WORDS), np.int64)
    frames.of(np.zeros(1, np.uint64))
    encode_acks(np.zeros(1, RECEIVED_DTYPE), 0, groups, 1, 0, frames.acks)


_NO_TAGS: U64 = np.zeros(0, np.uint64)


class AckTransactions:
    """Of one lane."""

    def __init__(self, messages: int, ack_every: int) -> None:
        """`messages` make a transaction, in which every `ack_every` are acknowledged at once."""
        self._messages = messages
        self._ack_every = ack_every
        self._waiting: U64 = _NO_TAGS
        self._committing = 0
        self.added_ns = 0

    @property
    def is_committing(self) -> bool:
        return self._committing > 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, tags: U64, now_ns: int) -> None:
        """These messages, in the order of their tags, may be acknowledged. Tags are copied: they
        are the transport's own until the next receive."""
        self._waiting = np.concatenate((self._waiting, tags))
        self.added_ns = now_ns

    def begin(self, is_partial: bool = False) -> U64:
        """The tags to acknowledge, and then to commit, now; none while there is no reason to."""
        if self.is_committing or not (is_partial or self.waiting >= self._messages):
            return _NO_TAGS
        tags, self._waiting = self._waiting[: self._messages], self._waiting[self._messages :]
        self._committing = len(tags)
        places = np.arange(1, len(tags) + 1)
        is_last_of_group = places % self._ack_every == 0
        if len(tags):
            is_last_of_group[-1] = True
        chosen: U64 = tags[is_last_of_group]
        return chosen

    def committed(self) -> int:
        """The broker has done it; how many messages are acknowledged by that."""
        messages, self._committing = self._committing, 0
        return messages


IDLE_NS = NANOSECONDS
"""Acknowledgements that are not enough for a group, or for a transaction, go out anyway after this
long without a message."""
DETACH_SECONDS = 5.0
"""How long to wait for each consumer's cancellation: the broker first sends what it has pushed."""
COMMIT_SECONDS = 2.0
"""How long to wait, when all is over, for the broker to commit what was acknowledged last."""


class AmqpReceiver(Receiver[AmqpConnection]):
    def __init__(self, amqp: Amqp, arrivals: Arrivals) -> None:
        self.request = "tx.select, basic.consume" if amqp.consumer_transaction else "basic.consume"
        self.decoded = arrivals
        self.acknowledges = amqp.ack == "manual"
        self._amqp = amqp
        self._every = amqp.ack_every
        self._frames = AckFrames(CHANNEL, multiple=amqp.ack_every > 1)
        self._transactions: dict[int, AckTransactions] = {}
        """By lane, where acknowledgements are committed."""
        self._idle_check_ns = 0

    @functools.cached_property
    def _groups(self) -> I64:
        """A row for each lane."""
        return np.zeros((len(self.lanes.open), GROUP_WORDS), np.int64)

    # -- opening -----------------------------------------------------------------------------------

    def equip(self, lane: OpenLane[AmqpConnection]) -> None:
        connection, arrivals = lane.connection, self.decoded
        framing, tag_mark = connection.framing, generation_mark(lane.generation)
        receiver = DeliveryDecoder(
            lane.number, framing, consumer_tags(lane.lane), arrivals, tag_mark
        )
        parser = FrameParser(framing, receiver, connection.on_any_method, arrivals.most_bytes)
        connection.begin(parser, functools.partial(self._on_method, lane))

    def begin(self, lane: OpenLane[AmqpConnection]) -> None:
        spec = pika.spec.Basic
        is_auto = self._amqp.ack == "auto"
        self._groups[lane.number] = lane.generation, 0, 0, 0
        if self._amqp.consumer_transaction:
            self._transactions[lane.number] = AckTransactions(
                self._amqp.consumer_transaction, self._every
            )
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        if not is_auto:
            lane.connection.send_method(spec.Qos(prefetch_count=self._amqp.effective_prefetch))
        tags = consumer_tags(lane.lane)
        lane.unanswered += tags.routes
        for route, destination in enumerate(lane.lane.destinations):
            lane.connection.send_method(
                spec.Consume(
                    queue=destination.name or "",
                    consumer_tag=tags.of(route),
                    no_ack=is_auto,
                    arguments=dict(self._amqp.consumer_arguments),
                )
            )

    def _on_method(self, lane: OpenLane[AmqpConnection], method: Any) -> None:
        spec = pika.spec
        if isinstance(method, spec.Basic.ConsumeOk | spec.Basic.CancelOk | spec.Tx.SelectOk):
            self.lanes.answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            self.unreported += self._transactions[lane.number].committed()
            self._commit(lane)
        elif isinstance(method, pika.spec.Basic.Cancel):
            route = int(method.consumer_tag.rpartition("-")[2])
            queue = lane.lane.destinations[route].name
            self.lanes.lose_because(lane, f"consumer of {queue!r} cancelled by the broker")

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self, received: Received) -> int:
        now_ns = time.monotonic_ns()
        if self._transactions:
            # What this makes the broker acknowledge is reported when it has said so.
            self._add_to_transactions(received, now_ns)
            return 0
        frames, rows, acknowledged, at = self._frames, received.rows, 0, 0
        while at < len(rows):
            # A read brings messages of one lane, so those of a lane are mostly side by side.
            at, number, count = encode_acks(
                rows, at, self._groups, self._every, now_ns, frames.acks
            )
            lane = self.lanes.open[number]
            if count and not lane.is_lost:
                lane.connection.send(frames.view[: count * frames.ack_bytes])
                acknowledged += count * self._every
        return acknowledged

    def _add_to_transactions(self, received: Received, now_ns: int) -> None:
        groups = by_lane(received.lane)
        tags = received.tag[groups.order]
        for number, start, end in groups:
            lane = self.lanes.open[number]
            own = own_tags(tags[start:end], lane.generation)
            if len(own) and not lane.is_lost:
                self._transactions[number].add(own, now_ns)
                self._commit(lane)

    def _commit(self, lane: OpenLane[AmqpConnection], is_partial: bool = False) -> None:
        tags = self._transactions[lane.number].begin(is_partial)
        if len(tags):
            commit = method_frame(lane.connection.framing.channel, pika.spec.Tx.Commit())
            lane.connection.send(bytes(self._frames.of(tags)) + commit)

    def be_idle(self) -> None:
        now_ns = time.monotonic_ns()
        can_be_partial = self._every > 1 or self._amqp.consumer_transaction > 1
        if can_be_partial and now_ns >= self._idle_check_ns:
            self._idle_check_ns = now_ns + IDLE_NS // 4
            self._acknowledge_rest(older_than_ns=now_ns - IDLE_NS)

    def _acknowledge_rest(self, older_than_ns: int) -> None:
        """Acknowledge what waits for its group or transaction, where nothing was added since."""
        for number, transactions in self._transactions.items():
            lane = self.lanes.open[number]
            is_idle = transactions.added_ns <= older_than_ns
            if transactions.waiting and is_idle and not lane.is_lost:
                self._commit(lane, is_partial=True)
        for number in np.flatnonzero(self._groups[:, _WAITING]).tolist():
            lane, group = self.lanes.open[number], self._groups[number]
            if group[_ADDED_NS] <= older_than_ns and not lane.is_lost:
                self.unreported += int(group[_WAITING])
                group[_WAITING] = 0
                lane.connection.send(
                    self._frames.of(group[_LAST_TAG : _LAST_TAG + 1].view(np.uint64))
                )

    # -- the end -----------------------------------------------------------------------------------

    def detach(self) -> bool:
        self.lanes.hold(())
        have_all_answered = self.lanes.ask_all(self._cancel, DETACH_SECONDS)
        # What was on its way to be acknowledged is still in its queue.
        return have_all_answered or self.acknowledges

    def _cancel(self, lane: OpenLane[AmqpConnection]) -> None:
        tags = consumer_tags(lane.lane)
        lane.unanswered += tags.routes
        for route in range(tags.routes):
            lane.connection.send_method(pika.spec.Basic.Cancel(consumer_tag=tags.of(route)))

    def before_close(self) -> None:
        self.lanes.hold(())
        # A commit may be under way, and the rest can only be acknowledged behind it.
        self._await_commits()
        self._acknowledge_rest(older_than_ns=time.monotonic_ns())
        self._await_commits()

    def _await_commits(self) -> None:
        def is_done() -> bool:
            return not any(
                transactions.is_committing and self.lanes.open[number].connection.is_open
                for number, transactions in self._transactions.items()
            )

        self.lanes.loop.run_until(is_done, COMMIT_SECONDS)


def consumer_tags(lane: Lane) -> ConsumerTags:
    return ConsumerTags(f"bench-{lane.member}-".encode(), len(lane.destinations))
