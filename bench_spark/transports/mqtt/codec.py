"""Compiled loops of MQTT: what arrives is decoded into rows, acknowledgements are settled and
written. Pure.

A packet is a kind with four flags, a length of one to four bytes, and that many bytes. Decoders
stop at what they do not know and say why; they never look behind `end`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_DTYPE
from bench_spark.core.kernels import kernel
from bench_spark.transports.batches import I64, RECEIVED_DTYPE, U8, U16, OutcomeKind, Rows
from bench_spark.transports.message_block import Int, read_envelope
from bench_spark.transports.mqtt.packets import (
    DUP,
    FAILED,
    KIND_BITS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
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

TOPIC_DTYPE = np.dtype(
    [("route", "<i8"), ("name_bytes", "<i8"), ("name", "u1", (TOPIC_BYTES,))], align=True
)
"""A topic and its route, at the place of its hash; route -1: nobody's place."""

MESSAGE_STATE_DTYPE = np.dtype(
    [
        ("row", RECEIVED_DTYPE),
        ("token_mark", "<u8"),
        ("most_bytes", "<i8"),
        ("missing_bytes", "<i8"),
        ("next_route", "<i8"),
        ("error", "<i8"),
        ("error_bytes", "<i8"),
        ("repeats", "<i8"),
        ("topic_place", "<i8"),
        ("topic_at", "<i8"),
        ("topic_end", "<i8"),
        ("properties_at", "<i8"),
        ("piece_at", "<i8"),
        ("piece_end", "<i8"),
        ("first_byte", "<i8"),
        ("identifier", "<i8"),
        ("is_inside", "<i8"),
        ("has_properties", "<i8"),
        ("wants_payloads", "<i8"),
        ("unreleased", "u1", (1 << 13,)),
    ]
)
"""What a consumer's decoder knows from one read to the next: the message whose payload comes,
where in the data things are, and (`unreleased`, a bit each) the identifiers of messages of QoS 2
that were received and that the broker has not released."""

IN_FLIGHT_DTYPE = np.dtype(
    [("first_free", "<i8"), ("open", "<i8"), ("lane", "<i8"), ("error", "<i8")]
)
WINDOW_DTYPE = np.dtype(
    [("head", ENVELOPE_DTYPE), ("free", "<u2"), ("is_open", "u1")],
    align=True,
)
"""By packet identifier: the envelope of a message in flight. `free` is a ring of identifiers, the
next to use at `first_free`."""


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
def big_endian_16(data: U8, at: Int) -> Int:
    """An integer of two bytes."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


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
def is_topic(data: U8, at: Int, end: Int, known: Any) -> bool:
    """Whether the topic that begins here is this one of the table."""
    if known["route"] < 0 or known["name_bytes"] != end - at:
        return False
    name = known["name"]
    for place in range(end - at):  # noqa: SIM110
        if name[place] != data[at + place]:
            return False
    return True


@kernel
def known_route(data: U8, at: Int, end: Int, state: Rows, topics: Rows) -> Int:
    """The route of the topic that begins here; -1 where it is not in the table."""
    if end - at > TOPIC_BYTES:
        return np.int64(-1)
    place = np.int64(state[0]["topic_place"])  # mostly the topic of the last message
    if place >= len(topics) or not is_topic(data, at, end, topics[place]):
        place = topic_place(data, at, end, len(topics))
        if not is_topic(data, at, end, topics[place]):
            return np.int64(-1)
        state[0]["topic_place"] = place
    return np.int64(topics[place]["route"])


@kernel
def begin_message(
    data: U8, start: Int, at: Int, stop: Int, end: Int, state: Rows, topics: Rows
) -> tuple[Int, Int]:
    """Read a PUBLISH up to its payload, whose first 32 bytes must be there too.

    Returns where the payload begins and a reason to stop: PAYLOAD where there is none.
    """
    now = state[0]
    row = now["row"]
    first_byte = np.int64(data[start])
    qos = first_byte >> 1 & 3
    if qos == 3:
        now["error"] = BAD_QOS
        return start, MALFORMED
    if stop - at > now["most_bytes"] + LONGEST_START_BYTES:
        now["error"], now["error_bytes"] = TOO_LARGE, stop - at
        return start, MALFORMED
    last = min(end, stop)
    topic_at = at + 2
    topic_end = topic_at
    payload_at = topic_at
    properties = np.int64(0)
    is_missing = topic_at > last
    if not is_missing:
        topic_end = topic_at + big_endian_16(data, at)
        payload_at = topic_end + (2 if qos else 0)
        is_missing = payload_at > last
    properties_at = payload_at
    if not is_missing and now["has_properties"]:
        properties, payload_at = remaining_length(data, payload_at, last)
        if properties == -2:
            now["error"] = LONG_LENGTH
            return start, MALFORMED
        payload_at += properties
        is_missing = properties < 0 or payload_at > last
    if is_missing and last == stop:
        now["error"] = NO_PAYLOAD
        return start, MALFORMED
    size = stop - payload_at
    if is_missing or last - payload_at < min(size, ENVELOPE_BYTES):
        if last - start > LONGEST_START_BYTES:
            now["error"], now["error_bytes"] = LONG_START, last - start
            return start, MALFORMED
        return start, MORE
    identifier = big_endian_16(data, topic_end) if qos else np.int64(0)
    if qos and not identifier:
        now["error"] = IDENTIFIER_0
        return start, MALFORMED
    if size > now["most_bytes"]:
        now["error"], now["error_bytes"] = TOO_LARGE, size
        return start, MALFORMED
    route = np.int64(now["next_route"])
    if route < 0:
        route = known_route(data, topic_at, topic_end, state, topics)
        if route < 0:
            now["topic_at"], now["topic_end"] = topic_at, topic_end
            return start, TOPIC
    now["next_route"] = -1
    now["first_byte"], now["identifier"] = first_byte, identifier
    now["properties_at"] = properties_at
    now["missing_bytes"], now["is_inside"] = size, 1
    row["tag"] = now["token_mark"] | np.uint64(identifier | qos << QOS_AT if qos else 0)
    row["route"] = route
    row["size"] = size
    row["redelivered"] = (first_byte & DUP) != 0
    read_envelope(data, payload_at, payload_at + min(size, ENVELOPE_BYTES), row["head"])
    return payload_at, PAYLOAD


@kernel
def decode_messages(
    data: U8,
    at: Int,
    end: Int,
    at_ns: Int,
    state: Rows,
    topics: Rows,
    rows: Rows,
    count: Int,
    answers: U8,
    answered: Int,
) -> tuple[Int, Int, Int, Int]:
    """Decode messages into `rows` from `count` on, and write what is answered at once (PUBCOMP;
    PUBREC for a message of QoS 2 that was received before) into `answers` from `answered` on.

    Returns where it stopped, `count`, `answered` and why.
    """
    now = state[0]
    unreleased = now["unreleased"]
    while True:
        if count >= len(rows) or len(answers) - answered < ACK_BYTES:
            return at, count, answered, FULL
        if now["is_inside"]:
            if now["missing_bytes"] and at >= end:
                return at, count, answered, MORE
            taken = min(np.int64(now["missing_bytes"]), end - at)
            now["piece_at"], now["piece_end"] = at, at + taken
            now["missing_bytes"] -= taken
            at += taken
            if not now["missing_bytes"]:
                now["is_inside"] = 0
                is_repeat = False
                identifier = np.int64(now["identifier"])
                if now["first_byte"] >> 1 & 3 == 2:
                    mask = 1 << (identifier & 7)
                    is_repeat = (np.int64(unreleased[identifier >> 3]) & mask) != 0
                    unreleased[identifier >> 3] |= mask
                if is_repeat:
                    now["repeats"] += 1
                    answered = put_ack(answers, answered, PUBREC, identifier)
                else:
                    now["row"]["received_ns"] = at_ns
                    rows[count] = now["row"]
                    count += 1
            if now["wants_payloads"]:
                return at, count, answered, PAYLOAD
            continue
        if end - at < 2:
            return at, count, answered, MORE
        kind = np.int64(data[at])
        length, body_at = remaining_length(data, at + 1, end)
        if length == -2:
            now["error"] = LONG_LENGTH
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
                now["error"] = NO_IDENTIFIER
                return at, count, answered, MALFORMED
            # Nothing is published here, so nothing but a PUBREL says anything.
            if kind == PUBREL:
                identifier = big_endian_16(data, body_at)
                unreleased[identifier >> 3] &= 255 - (1 << (identifier & 7))
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
def take_identifiers(heads: U8, state: Rows, window: Rows, identifiers: U16) -> None:
    """Give each of these messages, of which there are no more than free identifiers, one that has
    been free longest."""
    now = state[0]
    limit = len(window) - 1
    place = np.int64(now["first_free"])
    for message in range(len(heads)):
        identifier = np.int64(window[place]["free"])
        identifiers[message] = identifier
        window[identifier]["is_open"] = 1
        read_envelope(heads[message], 0, ENVELOPE_BYTES, window[identifier]["head"])
        place = (place + 1) % limit
    now["first_free"] = place
    now["open"] += len(heads)


@kernel
def settle(identifier: Int, kind: Int, at_ns: Int, state: Rows, window: Rows, row: Any) -> None:
    """Write the outcome of an open message, whose identifier is free from now on."""
    now = state[0]
    limit = len(window) - 1
    row["at_ns"] = at_ns
    row["lane"] = now["lane"]
    row["kind"] = kind
    row["head"] = window[identifier]["head"]
    window[identifier]["is_open"] = 0
    window[(now["first_free"] + limit - now["open"]) % limit]["free"] = identifier
    now["open"] -= 1


@kernel
def decode_acks(
    data: U8,
    at: Int,
    end: Int,
    at_ns: Int,
    state: Rows,
    window: Rows,
    rows: Rows,
    count: Int,
    answers: U8,
    answered: Int,
) -> tuple[Int, Int, Int, Int]:
    """Settle messages by the acknowledgements that arrive: outcomes into `rows` from `count` on,
    and a PUBREL for each PUBREC into `answers` from `answered` on.

    QoS 1: a PUBACK is the end. QoS 2: a PUBREC is answered by a PUBREL, and the PUBCOMP that
    follows is the end. In version 5 a PUBACK or PUBREC may also refuse the message. Returns where
    it stopped, `count`, `answered` and why.
    """
    now = state[0]
    limit = len(window) - 1
    while end - at >= 2:
        if count >= len(rows) or len(answers) - answered < ACK_BYTES:
            return at, count, answered, FULL
        kind = np.int64(data[at])
        length, body_at = remaining_length(data, at + 1, end)
        if length == -2:
            now["error"] = LONG_LENGTH
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
            now["error"] = NO_IDENTIFIER
            return at, count, answered, MALFORMED
        identifier = big_endian_16(data, body_at)
        is_refused = length > 2 and kind != PUBCOMP and np.int64(data[body_at + 2]) >= FAILED
        at = stop
        if kind == PUBREL or identifier > limit or not window[identifier]["is_open"]:
            continue
        if kind == PUBREC and not is_refused:
            answered = put_ack(answers, answered, PUBREL, identifier)
        else:
            outcome = REFUSED if is_refused else CONFIRMED
            settle(identifier, outcome, at_ns, state, window, rows[count])
            count += 1
    return at, count, answered, MORE


@kernel
def abandon_all(at_ns: Int, state: Rows, window: Rows, rows: Rows, count: Int) -> Int:
    """Settle all that is in flight, for which there is room, as unknown. Returns `count`."""
    for identifier in range(1, len(window)):
        if window[identifier]["is_open"]:
            settle(identifier, UNKNOWN, at_ns, state, window, rows[count])
            count += 1
    return count
