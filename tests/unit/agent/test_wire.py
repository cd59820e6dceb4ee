"""Frames on any cut of the stream, and who may speak."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameReader,
    WireError,
    answer,
    encode_frame,
    is_right_answer,
    new_challenge,
    new_token,
)

messages = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3
).map(lambda fields: fields | {"type": "any"})


def raw_frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(payload)) + header + payload


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


@given(
    st.lists(st.tuples(messages, st.binary(max_size=60)), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_frames_are_the_same_however_the_stream_is_cut(
    frames: list[tuple[dict[str, Any], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(message, payload) for message, payload in frames)
    reader, found = FrameReader(), []
    for piece in pieces(stream, cuts):
        found += reader.feed(piece)
    assert found == frames


def test_a_stream_read_byte_by_byte_gives_each_frame_when_it_is_whole() -> None:
    stream = encode_frame({"type": "a"}, b"xy") + encode_frame({"type": "b"})
    reader, counts = FrameReader(), []
    for byte in stream:
        counts.append(len(reader.feed(bytes([byte]))))
    first = len(encode_frame({"type": "a"}, b"xy"))
    assert [place for place, count in enumerate(counts, 1) if count] == [first, len(stream)]


@pytest.mark.parametrize(
    "lengths", [(MAX_HEADER_BYTES + 1, 0), (2, MAX_PAYLOAD_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_an_oversize_frame_is_refused_from_its_lengths_alone(lengths: tuple[int, int]) -> None:
    with pytest.raises(WireError, match="too large"):
        FrameReader().feed(struct.pack("<II", *lengths))


def test_limits_are_the_readers_own() -> None:
    reader = FrameReader(max_header_bytes=20, max_payload_bytes=0)
    assert reader.feed(encode_frame({"type": "x"})) == [({"type": "x"}, b"")]
    with pytest.raises(WireError, match="too large"):
        reader.feed(encode_frame({"type": "x"}, b"!"))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"hello",
        b"{",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'"type"',
        b"{}",
        b'{"type": 1}',
        b'{"type": null}',
        b"[" * 4000,
        b'{"a":' * 4000,
        b"1" * 5000,
    ],
)
def test_what_is_not_a_json_object_with_a_type_is_refused(header: bytes) -> None:
    with pytest.raises(WireError):
        FrameReader().feed(raw_frame(header))


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waits_for_more(noise: bytes) -> None:
    reader = FrameReader()
    try:
        found = reader.feed(noise)
    except WireError:
        return
    assert all(isinstance(message["type"], str) for message, _ in found)


def test_an_answer_proves_the_token_for_one_challenge_and_one_role() -> None:
    token, challenge = new_token(), new_challenge()
    right = answer(token, challenge, "agent")
    assert is_right_answer(token, challenge, "agent", right)
    assert not is_right_answer(token, challenge, "driver", right)
    assert not is_right_answer(token, new_challenge(), "agent", right)
    assert not is_right_answer(new_token(), challenge, "agent", right)
    assert token not in right


@pytest.mark.parametrize("given", [None, 7, b"", "", "0" * 64, ["x"], {"answer": 1}, "é", "\ud800"])
def test_anything_else_is_no_answer(given: object) -> None:
    assert not is_right_answer(new_token(), new_challenge(), "agent", given)


def test_challenges_and_tokens_are_never_the_same() -> None:
    assert len({new_challenge() for _ in range(50)}) == 50
    assert len({new_token() for _ in range(50)}) == 50
    assert len(new_challenge()) == CHALLENGE_BYTES


def test_a_frame_holds_json_and_raw_bytes() -> None:
    frame = encode_frame({"type": "rows", "n": 1}, b"\x00\xff")
    header_bytes, payload_bytes = struct.unpack_from("<II", frame)
    assert json.loads(frame[8 : 8 + header_bytes]) == {"type": "rows", "n": 1}
    assert (payload_bytes, frame[-2:]) == (2, b"\x00\xff")
