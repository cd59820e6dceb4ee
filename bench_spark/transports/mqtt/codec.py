"""Compiled loops of MQTT: packets are decoded into rows, messages are settled, acknowledgements
written. Pure.

A packet is a kind with four flags, a length of one to four bytes, and that many bytes. The decoder
stops at what it does not know and says why; it never looks behind `end`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_WORDS
from bench_spark.core.kernels import inlined, kernel
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
    GENERATION_AT,
    Int,
    be16,
    le64,
    put_envelope,
    put_outcome,
    put_received,
    take_envelope,
)

# Why the decoder stopped.
MORE: Final = 0
"""The rest is the beginning of a packet."""
FULL: Final = 1
"""No room for another row, answer or piece."""
FOREIGN: Final = 2
"""A packet of another kind, which is not consumed."""
MALFORMED: Final = 3
"""No MQTT; `ERROR` says what."""
TOPIC: Final = 4
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
MOST_ANSWERS: Final = 256
"""Written by one call of the decoder."""
MOST_PIECES: Final = 1024
"""Parts of payloads that are noted at once, where payloads are wanted."""
QOS_AT: Final = 16
"""In a tag: the bits above the packet identifier. Above them is the generation of the lane."""
TOPIC_BYTES: Final = 240
"""Longer topics are not in tables."""
CONFIRMED: Final = int(OutcomeKind.CONFIRMED)
REFUSED: Final = int(OutcomeKind.REFUSED)
UNKNOWN: Final = int(OutcomeKind.UNKNOWN)

TOPIC_ROUTE, TOPIC_LENGTH, TOPIC_NAME = range(3)
TOPIC_WORDS: Final = TOPIC_NAME + TOPIC_BYTES // 8
"""Of a place in a table: the route of a topic (-1: nobody's place), how long its name is, and
that."""

# Words of a lane's state: what never changes; of a producer what is in flight; of a consumer the
# message whose payload comes, and where in the data things are.
LANE, MOST_BYTES, TAG_MARK, HAS_PROPERTIES, IS_CONSUMER, LIMIT = range(6)
ERROR, ERROR_BYTES, OPEN, FIRST_FREE, REPEATS, NEXT_ROUTE, TOPIC_PLACE = range(6, 13)
IS_INSIDE, MISSING_BYTES, FIRST_BYTE, IDENTIFIER, ROUTE, SIZE, PROPERTIES_AT = range(13, 20)
TOPIC_AT, TOPIC_END = range(20, 22)
HEAD: Final = 22
ANSWERS: Final = HEAD + ENVELOPE_WORDS
"""From here on what is to be sent at once, two acknowledgements to a word."""
WINDOW: Final = ANSWERS + MOST_ANSWERS // 2
"""From here on, of a producer: by packet identifier `SLOT_WORDS` words."""
IS_OPEN, FREE = 0, 1 + ENVELOPE_WORDS
SLOT_WORDS: Final = FREE + 1
"""Whether the message of an identifier is in flight, the envelope of that, and a place in the ring
of free identifiers, of which the next to use is at `FIRST_FREE`."""
UNRELEASED: Final = WINDOW
_BITS = 32
"""From here on, of a consumer, a bit each: the identifiers of messages of QoS 2 that were received,
and not released by the broker."""
PIECES: Final = UNRELEASED + (1 << 16) // _BITS
"""From here on, of a consumer that wants payloads: where in the data a piece of one begins and
ends, where the properties of its message begin (-1: not with this piece), and what the piece ends:
nothing, a message, or one that was received before."""
PIECE_WORDS: Final = 4
GOES_ON, ENDS_MESSAGE, ENDS_REPEAT = range(3)


# -- packets ---------------------------------------------------------------------------------------


@inlined
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


@inlined
def put_ack(out: U8, at: Int, kind: Int, identifier: Int) -> Int:
    """Write an acknowledgement; in all versions four bytes. Returns where it ends."""
    out[at] = kind
    out[at + 1] = 2
    out[at + 2] = identifier >> 8
    out[at + 3] = identifier & 255
    return at + ACK_BYTES


@inlined
def put_answer(state: I64, answered: Int, kind: Int, identifier: Int) -> Int:
    """Note an acknowledgement that is to be sent at once; how many there are then."""
    ack = kind | 2 << 8 | (identifier >> 8) << 16 | (identifier & 255) << 24
    if answered & 1:
        state[ANSWERS + (answered >> 1)] |= ack << 32
    else:
        state[ANSWERS + (answered >> 1)] = ack
    return answered + 1


# -- messages to a consumer ------------------------------------------------------------------------


@kernel
def topic_place(data: U8, at: Int, end: Int, places: Int) -> Int:
    """Where in a table of so many places the topic is that begins here."""
    value = np.int64(2166136261)
    for place in range(at, end):
        value = ((value ^ np.int64(data[place])) * 16777619) & 0xFFFFFFFF
    return value % places


@inlined
def is_topic(data: U8, at: Int, end: Int, topics: I64, place: Int) -> bool:
    """Whether the topic that begins here is the one at that place of the table."""
    if topics[place, TOPIC_ROUTE] < 0 or topics[place, TOPIC_LENGTH] != end - at:
        return False
    whole_words = (end - at) // 8
    for word in range(whole_words):
        if le64(data, at + 8 * word) != topics[place, TOPIC_NAME + word]:
            return False
    for letter in range(8 * whole_words, end - at):
        known = topics[place, TOPIC_NAME + whole_words] >> 8 * (letter % 8) & 255
        if np.int64(data[at + letter]) != known:
            return False
    return True


@inlined
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


@inlined
def malformed(state: I64, error: Int, size: Int, at: Int) -> tuple[Int, Int]:
    """Note what is wrong with the packet that begins here."""
    state[ERROR], state[ERROR_BYTES] = error, size
    return at, MALFORMED


@inlined
def begin_message(
    data: U8, start: Int, at: Int, stop: Int, end: Int, state: I64, topics: I64
) -> tuple[Int, Int]:
    """Read a PUBLISH up to its payload, whose first 32 bytes must be there too.

    Returns where the payload begins, or the packet and a reason to stop.
    """
    first_byte = np.int64(data[start])
    qos = first_byte >> 1 & 3
    if qos == 3:
        return malformed(state, BAD_QOS, 0, start)
    if stop - at > state[MOST_BYTES] + LONGEST_START_BYTES:
        return malformed(state, TOO_LARGE, stop - at, start)
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
            return malformed(state, LONG_LENGTH, 0, start)
        payload_at += properties
        is_missing = properties < 0 or payload_at > last
    if is_missing and last == stop:
        return malformed(state, NO_PAYLOAD, 0, start)
    size = stop - payload_at
    if is_missing or last - payload_at < min(size, ENVELOPE_BYTES):
        if last - start > LONGEST_START_BYTES:
            return malformed(state, LONG_START, last - start, start)
        return start, MORE
    identifier = be16(data, topic_end) if qos else np.int64(0)
    if qos and not identifier:
        return malformed(state, IDENTIFIER_0, 0, start)
    if size > state[MOST_BYTES]:
        return malformed(state, TOO_LARGE, size, start)
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
    state[ROUTE], state[SIZE] = route, size
    take_envelope(data, payload_at, size, state, HEAD)
    return payload_at, FULL


@inlined
def end_message(state: I64, words: I64, count: Int, at_ns: Int) -> bool:
    """Write a complete message as a row; False where it is of QoS 2 and was received before."""
    identifier, qos = state[IDENTIFIER], state[FIRST_BYTE] >> 1 & 3
    state[IS_INSIDE] = 0
    if qos == 2:
        word, mask = UNRELEASED + identifier // _BITS, 1 << identifier % _BITS
        if state[word] & mask:
            state[REPEATS] += 1
            return False
        state[word] |= mask
    put_received(
        words,
        count,
        at_ns,
        state[TAG_MARK] | identifier | qos << QOS_AT,
        state,
        HEAD,
        state[LANE],
        state[SIZE],
        state[ROUTE],
        state[FIRST_BYTE] >> 3 & 1,
    )
    return True


# -- messages of a producer ------------------------------------------------------------------------


@kernel
def take_identifiers(envelopes: I64, state: I64, identifiers: U16) -> None:
    """Give each of these messages, of which there are no more than free identifiers, one that has
    been free longest."""
    limit, place = state[LIMIT], state[FIRST_FREE]
    for message in range(len(envelopes)):
        identifier = state[WINDOW + place * SLOT_WORDS + FREE]
        identifiers[message] = identifier
        slot = WINDOW + identifier * SLOT_WORDS
        state[slot + IS_OPEN] = 1
        put_envelope(envelopes, message, state, slot + 1)
        place += 1
        if place == limit:
            place = 0
    state[FIRST_FREE] = place
    state[OPEN] += len(envelopes)


@inlined
def settle(identifier: Int, kind: Int, at_ns: Int, state: I64, words: I64, count: Int) -> None:
    """Write the outcome of an open message, whose identifier is free from now on."""
    slot = WINDOW + identifier * SLOT_WORDS
    put_outcome(words, count, at_ns, kind, state[LANE], state, slot + 1)
    state[slot + IS_OPEN] = 0
    place = state[FIRST_FREE] - state[OPEN]
    if place < 0:
        place += state[LIMIT]
    state[WINDOW + place * SLOT_WORDS + FREE] = identifier
    state[OPEN] -= 1


@kernel
def abandon_all(at_ns: Int, state: I64, words: I64, count: Int) -> Int:
    """Settle all that is in flight, for which there is room, as unknown. Returns `count`."""
    for identifier in range(1, state[LIMIT] + 1):
        if state[WINDOW + identifier * SLOT_WORDS + IS_OPEN]:
            settle(identifier, UNKNOWN, at_ns, state, words, count)
            count += 1
    return count


# -- both ------------------------------------------------------------------------------------------


@kernel
def decode(
    data: U8, at: Int, end: Int, at_ns: Int, state: I64, topics: I64, words: I64, count: Int
) -> tuple[Int, Int, Int, Int, Int]:
    """Decode packets from `at` to `end` into the rows from `count` on: a consumer's messages, the
    outcomes of a producer's. Returns where it stopped, `count`, how many answers and pieces are in
    the state, and why.

    Outcomes: at QoS 1 a PUBACK is the end; at QoS 2 a PUBREC is answered by a PUBREL, and the
    PUBCOMP that follows is the end. In version 5 a PUBACK or PUBREC may also refuse the message.
    Answers to messages: PUBCOMP to a PUBREL, and PUBREC to one of QoS 2 that was received before.
    """
    answered, found = np.int64(0), np.int64(0)
    is_consumer, most_pieces = state[IS_CONSUMER], (len(state) - PIECES) // PIECE_WORDS
    wants_pieces = is_consumer and most_pieces > 0
    while True:
        if (
            count >= len(words)
            or answered == MOST_ANSWERS
            or (wants_pieces and found == most_pieces)
        ):
            return at, count, answered, found, FULL
        if state[IS_INSIDE]:
            if state[MISSING_BYTES] and at >= end:
                return at, count, answered, found, MORE
            start, ends = at, GOES_ON
            at += min(state[MISSING_BYTES], end - at)
            state[MISSING_BYTES] -= at - start
            if not state[MISSING_BYTES]:
                if end_message(state, words, count, at_ns):
                    count += 1
                    ends = ENDS_MESSAGE
                else:
                    answered = put_answer(state, answered, PUBREC, state[IDENTIFIER])
                    ends = ENDS_REPEAT
            if wants_pieces:
                piece = PIECES + found * PIECE_WORDS
                state[piece], state[piece + 1] = start, at
                state[piece + 2], state[piece + 3] = state[PROPERTIES_AT], ends
                state[PROPERTIES_AT] = -1
                found += 1
            continue
        if end - at < 2:
            return at, count, answered, found, MORE
        kind = np.int64(data[at])
        length, body_at = remaining_length(data, at + 1, end)
        if length == -2:
            state[ERROR] = LONG_LENGTH
            return at, count, answered, found, MALFORMED
        if length == -1:
            return at, count, answered, found, MORE
        stop = body_at + length
        if is_consumer and kind & KIND_BITS == PUBLISH:
            at, why = begin_message(data, at, body_at, stop, end, state, topics)
            if not state[IS_INSIDE]:
                return at, count, answered, found, why
            continue
        is_ack = kind in (PUBACK, PUBREC, PUBREL, PUBCOMP)
        if not is_ack or stop - at > LONGEST_START_BYTES:
            return at, count, answered, found, FOREIGN
        if stop > end:
            return at, count, answered, found, MORE
        if length < 2:
            state[ERROR] = NO_IDENTIFIER
            return at, count, answered, found, MALFORMED
        at = stop
        identifier = be16(data, body_at)
        if is_consumer:
            # Nothing is published here, so nothing but a PUBREL says anything.
            if kind == PUBREL:
                state[UNRELEASED + identifier // _BITS] &= ~(1 << identifier % _BITS)
                answered = put_answer(state, answered, PUBCOMP, identifier)
        elif (
            kind != PUBREL
            and identifier <= state[LIMIT]
            and state[WINDOW + identifier * SLOT_WORDS + IS_OPEN]
        ):
            is_refused = length > 2 and kind != PUBCOMP and np.int64(data[body_at + 2]) >= FAILED
            if kind == PUBREC and not is_refused:
                answered = put_answer(state, answered, PUBREL, identifier)
            else:
                settle(identifier, REFUSED if is_refused else CONFIRMED, at_ns, state, words, count)
                count += 1


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
