"""Compiled loops of MQTT: what arrives is decoded into rows, acknowledgements are settled and
written. Pure.

A packet is a kind with four flags, a length of one to four bytes, and that many bytes. Decoders
stop at what they do not know and say why; they never look behind `end`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.core.kernels import kernel
from bench_spark.transports.batches import I64, U8, U16, OutcomeKind, Rows
from bench_spark.transports.mqtt.packets import (
    FAILED,
    KIND_BITS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
)
from bench_spark.transports.sockets.buffers import (
    Int,
    be16,
    put_head,
    put_outcome,
    put_received,
    take_head,
)

# Why a decoder stopped.
MORE: Final = 0
"""The rest is the beginning of a packet."""
FULL: Final = 1
"""No room for another row or answer."""
FOREIGN: Final = 2
"""A packet of another kind, which is not consumed."""
MALFORMED: Final = 3
"""No MQTT; `error` says what."""
PAYLOAD: Final = 4
"""A piece of a payload was consumed, where whoever decodes wants payloads."""
TOPIC: Final = 5
"""A topic that is not in the table; its message is not consumed."""

# What is malformed.
LONG_LENGTH: Final = 1
BAD_QOS: Final = 2
IDENTIFIER_0: Final = 3
NO_PAYLOAD: Final = 4
LONG_START: Final = 5
TOO_LARGE: Final = 6
NO_IDENTIFIER: Final = 7

LONGEST_START_BYTES: Final = 160 * 1024
"""Most of a packet that is waited for: a message's topic and properties, or any other packet."""
ACK_BYTES: Final = 4
QOS_AT: Final = 16
"""In a tag: the bits above the packet identifier. Above them is the generation of the lane."""
GENERATION_AT: Final = 48
TOPIC_BYTES: Final = 240
"""Longer topics are not in tables."""
CONFIRMED: Final = int(OutcomeKind.CONFIRMED)
REFUSED: Final = int(OutcomeKind.REFUSED)
UNKNOWN: Final = int(OutcomeKind.UNKNOWN)

TOPIC_ROUTE, TOPIC_LENGTH, TOPIC_NAME = range(3)
TOPIC_WORDS: Final = TOPIC_NAME + TOPIC_BYTES // 8
"""Of a place in a table: the route of a topic (-1: nobody's place), how long its name is, and
that."""

LANE, ERROR, ERROR_BYTES, MOST_BYTES = range(4)
"""Words of what a decoder knows from one read to the next: those that every decoder has."""

# Of a consumer's decoder: what never changes, the message whose payload comes, and where in the
# data things are.
TOKEN_MARK, HAS_PROPERTIES, WANTS_PAYLOADS, REPEATS, NEXT_ROUTE, TOPIC_PLACE = range(4, 10)
IS_INSIDE, MISSING_BYTES, FIRST_BYTE, IDENTIFIER, TAG, ROUTE, SIZE, HEAD = range(10, 18)
TOPIC_AT, TOPIC_END, PROPERTIES_AT, PIECE_AT, PIECE_END, UNRELEASED = range(22, 28)
_BITS = 32
MESSAGE_STATE_WORDS: Final = UNRELEASED + (1 << 16) // _BITS
"""From `UNRELEASED` on, a bit each: the identifiers of messages of QoS 2 that were received, and
not released by the broker."""

FIRST_FREE, OPEN = range(4, 6)
IN_FLIGHT_WORDS: Final = 6
"""Of a producer's decoder."""
IS_OPEN, FREE = 0, 5
WINDOW_WORDS: Final = 6
"""By packet identifier: whether its message is in flight, the head of that, and a place in the ring
of free identifiers, of which the next to use is at `FIRST_FREE`."""


# -- packets ---------------------------------------------------------------------------------------


@kernel
def remaining_length(data: U8, at: Int, end: Int) -> tuple[Int, Int]:
    """A length and where it ends; -1 where bytes are missing, -2 where it has more than four."""
    value = np.int64(0)
    for place in range(4):
        if at + place >= end:
            return np.int64(-1), at
        digit = np.int64(data[at + place])
        value |= (digit & 127) << (7 * place)
        if digit < 128:
            return value, at + place + 1
    return np.int64(-2), at


@kernel
def put_ack(out: U8, at: Int, kind: Int, identifier: Int) -> Int:
    """Write an acknowledgement; in all versions four bytes. Returns where it ends."""
    out[at] = kind
    out[at + 1] = 2
    out[at + 2] = identifier >> 8
    out[at + 3] = identifier & 255
    return at + ACK_BYTES


# -- messages to a consumer ------------------------------------------------------------------------


@kernel
def topic_place(data: U8, at: Int, end: Int, places: Int) -> Int:
    """Where in a table of so many places the topic is that begins here."""
    value = np.int64(2166136261)
    for place in range(at, end):
        value = ((value ^ np.int64(data[place])) * 16777619) & 0xFFFFFFFF
    return value % places


@kernel
def is_topic(data: U8, at: Int, end: Int, topics: I64, place: Int) -> bool:
    """Whether the topic that begins here is the one at that place of the table."""
    if topics[place, TOPIC_ROUTE] < 0 or topics[place, TOPIC_LENGTH] != end - at:
        return False
    name = topics[place, TOPIC_NAME:].view(np.uint8)
    for letter in range(end - at):  # noqa: SIM110
        if name[letter] != data[at + letter]:
            return False
    return True


@kernel
def known_route(data: U8, at: Int, end: Int, state: I64, topics: I64) -> Int:
    """The route of the topic that begins here; -1 where it is not in the table."""
    if end - at > TOPIC_BYTES:
        return np.int64(-1)
    place = state[TOPIC_PLACE]  # mostly the topic of the last message
    if place >= len(topics) or not is_topic(data, at, end, topics, place):
        place = topic_place(data, at, end, len(topics))
        if not is_topic(data, at, end, topics, place):
            return np.int64(-1)
        state[TOPIC_PLACE] = place
    return topics[place, TOPIC_ROUTE]


@kernel
def begin_message(
    data: U8, start: Int, at: Int, stop: Int, end: Int, state: I64, topics: I64
) -> tuple[Int, Int]:
    """Read a PUBLISH up to its payload, whose first 32 bytes must be there too.

    Returns where the payload begins and a reason to stop: PAYLOAD where there is none.
    """
    first_byte = np.int64(data[start])
    qos = first_byte >> 1 & 3
    if qos == 3:
        state[ERROR] = BAD_QOS
        return start, MALFORMED
    if stop - at > state[MOST_BYTES] + LONGEST_START_BYTES:
        state[ERROR], state[ERROR_BYTES] = TOO_LARGE, stop - at
        return start, MALFORMED
    last = min(end, stop)
    topic_at = at + 2
    topic_end = topic_at
    payload_at = topic_at
    properties = np.int64(0)
    is_missing = topic_at > last
    if not is_missing:
        topic_end = topic_at + be16(data, at)
        payload_at = topic_end + (2 if qos else 0)
        is_missing = payload_at > last
    properties_at = payload_at
    if not is_missing and state[HAS_PROPERTIES]:
        properties, payload_at = remaining_length(data, payload_at, last)
        if properties == -2:
            state[ERROR] = LONG_LENGTH
            return start, MALFORMED
        payload_at += properties
        is_missing = properties < 0 or payload_at > last
    if is_missing and last == stop:
        state[ERROR] = NO_PAYLOAD
        return start, MALFORMED
    size = stop - payload_at
    if is_missing or last - payload_at < min(size, ENVELOPE_BYTES):
        if last - start > LONGEST_START_BYTES:
            state[ERROR], state[ERROR_BYTES] = LONG_START, last - start
            return start, MALFORMED
        return start, MORE
    identifier = be16(data, topic_end) if qos else np.int64(0)
    if qos and not identifier:
        state[ERROR] = IDENTIFIER_0
        return start, MALFORMED
    if size > state[MOST_BYTES]:
        state[ERROR], state[ERROR_BYTES] = TOO_LARGE, size
        return start, MALFORMED
    route = state[NEXT_ROUTE]
    if route < 0:
        route = known_route(data, topic_at, topic_end, state, topics)
        if route < 0:
            state[TOPIC_AT], state[TOPIC_END] = topic_at, topic_end
            return start, TOPIC
    state[NEXT_ROUTE] = -1
    state[FIRST_BYTE], state[IDENTIFIER] = first_byte, identifier
    state[PROPERTIES_AT] = properties_at
    state[MISSING_BYTES], state[IS_INSIDE] = size, 1
    state[TAG] = state[TOKEN_MARK] | (identifier | qos << QOS_AT if qos else 0)
    state[ROUTE], state[SIZE] = route, size
    take_head(data, payload_at, size, state, HEAD)
    return payload_at, PAYLOAD


@kernel
def decode_messages(
    data: U8,
    at: Int,
    end: Int,
    at_ns: Int,
    state: I64,
    topics: I64,
    words: I64,
    count: Int,
    answers: U8,
    answered: Int,
) -> tuple[Int, Int, Int, Int]:
    """Decode messages into the rows from `count` on, and write what is answered at once (PUBCOMP;
    PUBREC for a message of QoS 2 that was received before) into `answers` from `answered` on.

    Returns where it stopped, `count`, `answered` and why.
    """
    while True:
        if count >= len(words) or len(answers) - answered < ACK_BYTES:
            return at, count, answered, FULL
        if state[IS_INSIDE]:
            if state[MISSING_BYTES] and at >= end:
                return at, count, answered, MORE
            taken = min(state[MISSING_BYTES], end - at)
            state[PIECE_AT], state[PIECE_END] = at, at + taken
            state[MISSING_BYTES] -= taken
            at += taken
            if not state[MISSING_BYTES]:
                state[IS_INSIDE] = 0
                is_repeat = False
                identifier = state[IDENTIFIER]
                if state[FIRST_BYTE] >> 1 & 3 == 2:
                    mask = 1 << identifier % _BITS
                    is_repeat = (state[UNRELEASED + identifier // _BITS] & mask) != 0
                    state[UNRELEASED + identifier // _BITS] |= mask
                if is_repeat:
                    state[REPEATS] += 1
                    answered = put_ack(answers, answered, PUBREC, identifier)
                else:
                    put_received(
                        words,
                        count,
                        at_ns,
                        state[TAG],
                        state,
                        HEAD,
                        state[LANE],
                        state[SIZE],
                        state[ROUTE],
                        state[FIRST_BYTE] >> 3 & 1,
                    )
                    count += 1
            if state[WANTS_PAYLOADS]:
                return at, count, answered, PAYLOAD
            continue
        if end - at < 2:
            return at, count, answered, MORE
        kind = np.int64(data[at])
        length, body_at = remaining_length(data, at + 1, end)
        if length == -2:
            state[ERROR] = LONG_LENGTH
            return at, count, answered, MALFORMED
        if length == -1:
            return at, count, answered, MORE
        stop = body_at + length
        if kind & KIND_BITS == PUBLISH:
            payload_at, why = begin_message(data, at, body_at, stop, end, state, topics)
            if why != PAYLOAD:
                return at, count, answered, why
            at = payload_at
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            if stop - at > LONGEST_START_BYTES:
                return at, count, answered, FOREIGN
            if stop > end:
                return at, count, answered, MORE
            if length < 2:
                state[ERROR] = NO_IDENTIFIER
                return at, count, answered, MALFORMED
            # Nothing is published here, so nothing but a PUBREL says anything.
            if kind == PUBREL:
                identifier = be16(data, body_at)
                state[UNRELEASED + identifier // _BITS] &= ~(1 << identifier % _BITS)
                answered = put_ack(answers, answered, PUBCOMP, identifier)
            at = stop
        else:
            return at, count, answered, FOREIGN


@kernel
def encode_acks(rows: Rows, at: Int, generations: I64, out: U8) -> tuple[Int, Int, Int]:
    """Write acknowledgements of the messages from `at` on that are of one lane: a PUBACK at QoS 1,
    a PUBREC at QoS 2, nothing for one of another generation of its lane.

    Returns the place of the next message, the lane, and how many bytes were written.
    """
    lane = np.int64(rows[at]["lane"])
    generation = np.int64(generations[lane])
    written = np.int64(0)
    while at < len(rows) and rows[at]["lane"] == lane and len(out) - written >= ACK_BYTES:
        tag = np.uint64(rows[at]["tag"])
        qos = np.int64(tag >> np.uint64(QOS_AT) & np.uint64(3))
        if qos and np.int64(tag >> np.uint64(GENERATION_AT)) == generation:
            kind = PUBACK if qos == 1 else PUBREC
            written = put_ack(out, written, kind, np.int64(tag & np.uint64(0xFFFF)))
        at += 1
    return at, lane, written


# -- messages of a producer ------------------------------------------------------------------------


@kernel
def take_identifiers(heads: I64, state: I64, window: I64, identifiers: U16) -> None:
    """Give each of these messages, of which there are no more than free identifiers, one that has
    been free longest."""
    limit = len(window) - 1
    place = state[FIRST_FREE]
    for message in range(len(heads)):
        identifier = window[place, FREE]
        identifiers[message] = identifier
        window[identifier, IS_OPEN] = 1
        put_head(heads, message, window[identifier], 1)
        place = (place + 1) % limit
    state[FIRST_FREE] = place
    state[OPEN] += len(heads)


@kernel
def settle(
    identifier: Int, kind: Int, at_ns: Int, state: I64, window: I64, words: I64, count: Int
) -> None:
    """Write the outcome of an open message, whose identifier is free from now on."""
    limit = len(window) - 1
    put_outcome(words, count, at_ns, kind, state[LANE], window[identifier], 1)
    window[identifier, IS_OPEN] = 0
    window[(state[FIRST_FREE] + limit - state[OPEN]) % limit, FREE] = identifier
    state[OPEN] -= 1


@kernel
def decode_acks(
    data: U8,
    at: Int,
    end: Int,
    at_ns: Int,
    state: I64,
    window: I64,
    words: I64,
    count: Int,
    answers: U8,
    answered: Int,
) -> tuple[Int, Int, Int, Int]:
    """Settle messages by the acknowledgements that arrive: outcomes into the rows from `count` on,
    and a PUBREL for each PUBREC into `answers` from `answered` on.

    QoS 1: a PUBACK is the end. QoS 2: a PUBREC is answered by a PUBREL, and the PUBCOMP that
    follows is the end. In version 5 a PUBACK or PUBREC may also refuse the message. Returns where
    it stopped, `count`, `answered` and why.
    """
    limit = len(window) - 1
    while end - at >= 2:
        if count >= len(words) or len(answers) - answered < ACK_BYTES:
            return at, count, answered, FULL
        kind = np.int64(data[at])
        length, body_at = remaining_length(data, at + 1, end)
        if length == -2:
            state[ERROR] = LONG_LENGTH
            return at, count, answered, MALFORMED
        if length == -1:
            return at, count, answered, MORE
        stop = body_at + length
        is_ack = kind in (PUBACK, PUBREC, PUBREL, PUBCOMP)
        if not is_ack or stop - at > LONGEST_START_BYTES:
            return at, count, answered, FOREIGN
        if stop > end:
            return at, count, answered, MORE
        if length < 2:
            state[ERROR] = NO_IDENTIFIER
            return at, count, answered, MALFORMED
        identifier = be16(data, body_at)
        is_refused = length > 2 and kind != PUBCOMP and np.int64(data[body_at + 2]) >= FAILED
        at = stop
        if kind == PUBREL or identifier > limit or not window[identifier, IS_OPEN]:
            continue
        if kind == PUBREC and not is_refused:
            answered = put_ack(answers, answered, PUBREL, identifier)
        else:
            outcome = REFUSED if is_refused else CONFIRMED
            settle(identifier, outcome, at_ns, state, window, words, count)
            count += 1
    return at, count, answered, MORE


@kernel
def abandon_all(at_ns: Int, state: I64, window: I64, words: I64, count: Int) -> Int:
    """Settle all that is in flight, for which there is room, as unknown. Returns `count`."""
    for identifier in range(1, len(window)):
        if window[identifier, IS_OPEN]:
            settle(identifier, UNKNOWN, at_ns, state, window, words, count)
            count += 1
    return count
