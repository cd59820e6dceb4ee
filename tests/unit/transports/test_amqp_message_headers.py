"""Headers of single messages: as pika would write them, and read as pika would read them."""

from __future__ import annotations

from typing import Any

import pika.frame
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import byte_rows_of, empty_envelopes
from bench_spark.transports.amqp.frames import (
    FrameTerms,
    MessageHeader,
    header_bytes,
    header_frame,
    message_ids,
    read_headers,
    returned_envelope,
)
from bench_spark.transports.amqp.producers import PublishFrames, message_properties
from bench_spark.transports.batches import Headers

CHANNEL, START_BYTES = 3, 19
names = st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) < 256)
own_headers = st.dictionaries(names, st.binary(max_size=60), max_size=4)
plain_values = st.text(max_size=20) | st.integers(-(2**31), 2**31 - 1) | st.booleans()


def decoded(frame: bytes) -> Any:
    size, found = pika.frame.decode_frame(frame)
    assert size == len(frame)
    return found


def header_values(headers: Headers) -> dict[str, Any]:
    """For pika, which sends text as text and all else as an array of bytes."""
    return {name: _text_or_bytes(value) for name, value in headers.items()}


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@given(own_headers, st.dictionaries(names, plain_values, max_size=3), st.integers(0, 2**40))
def test_a_header_frame_says_what_all_messages_have_and_what_this_one_has(
    own: dict[str, bytes], common: dict[str, Any], body_bytes: int
) -> None:
    frame = decoded(MessageHeader(CHANNEL, 2, common).frame(body_bytes, own, b"name"))
    assert (frame.channel_number, frame.body_size) == (CHANNEL, body_bytes)
    assert (frame.properties.delivery_mode, frame.properties.message_id) == (2, "name")
    assert header_bytes(frame.properties.headers) == {**header_bytes(common), **own}


@given(st.dictionaries(names, plain_values | st.binary(max_size=9), max_size=4), st.booleans())
def test_headers_are_read_as_pika_reads_them(table: dict[str, Any], persistent: bool) -> None:
    for message_id in (None, "an-id"):
        properties = message_properties(persistent=persistent, headers=table, message_id=message_id)
        content = header_frame(CHANNEL, 5, properties)[START_BYTES:-1]
        assert read_headers(content) == header_bytes(table)


@given(own_headers)
def test_headers_are_received_as_if_pika_had_sent_them(own: dict[str, bytes]) -> None:
    properties = message_properties(persistent=False, headers=header_values(own))
    by_pika = decoded(header_frame(CHANNEL, 0, properties)).properties.headers
    by_us = decoded(MessageHeader(CHANNEL, 1, None).frame(0, own)).properties.headers
    assert header_bytes(by_pika) == header_bytes(by_us) == own


def test_a_message_without_its_envelope_is_known_by_its_name_when_it_comes_back() -> None:
    envelopes = empty_envelopes(2)
    envelopes["sequence"] = (7, 2**63)
    names = message_ids(byte_rows_of(envelopes))
    assert [returned_envelope(name.decode(), b"body") for name in names] == [
        envelope.tobytes() for envelope in envelopes
    ]
    assert returned_envelope(None, b"body") == b"body"


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000])
def test_pieces_are_the_frames_of_a_message_whatever_its_size(size: int) -> None:
    publish = pika.spec.Basic.Publish(exchange="exchange", routing_key="key-00")
    frames = PublishFrames(FrameTerms(CHANNEL, 4096), publish, persistent=True)
    body = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    for headers in (None, {"id": b"x"}):
        stream = b"".join(frames.pieces(body, b"42", headers))
        found, at = [], 0
        while at < len(stream):
            length, frame = pika.frame.decode_frame(stream[at:])
            found.append(frame)
            at += length
        method, header, *pieces = found
        assert method.method.routing_key == "key-42"
        assert header.body_size == size
        assert header_bytes(header.properties.headers) == (headers or {})
        assert b"".join(piece.fragment for piece in pieces) == body
