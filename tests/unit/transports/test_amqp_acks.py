"""Acks written many at once, against pika's own."""

from __future__ import annotations

import numpy as np
import pika.spec
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.transports.amqp.consumers import GROUP_WORDS, AckFrames, encode_acks
from bench_spark.transports.amqp.frames import method_frame
from bench_spark.transports.batches import RECEIVED_DTYPE
from bench_spark.transports.sockets.buffers import generation_mark

CHANNEL = 1
Basic = pika.spec.Basic
tag_lists = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)


def written_by_pika(tags: list[int], multiple: bool) -> bytes:
    return b"".join(method_frame(CHANNEL, Basic.Ack(tag, multiple)) for tag in tags)


@given(tag_lists, st.booleans())
def test_acks_are_written_as_pika_writes_them(tags: list[int], multiple: bool) -> None:
    frames = AckFrames(CHANNEL, multiple)
    column = np.zeros(len(tags), [("tag", "<u8"), ("other", "<u8")])
    column["tag"] = tags
    for given_tags in (np.array(tags, np.uint64), column["tag"]):
        assert bytes(frames.of(given_tags)) == written_by_pika(tags, multiple)


def test_more_acks_than_usual_are_written_too() -> None:
    tags = list(range(1, 6001))
    written = AckFrames(CHANNEL, multiple=False).of(np.array(tags, np.uint64))
    assert bytes(written) == written_by_pika(tags, multiple=False)


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12), max_size=12),
    st.integers(1, 3),
)
def test_every_full_group_of_a_lane_is_acknowledged_by_its_last_message(
    every: int, receives: list[list[tuple[int, bool]]], most_acks: int
) -> None:
    """Messages of earlier generations are in no group."""
    generations, frames = [0, 1, 7], AckFrames(CHANNEL, multiple=True)
    groups = np.zeros((3, GROUP_WORDS), np.int64)
    groups[:, 0] = generations
    own: list[list[int]] = [[], [], []]
    written: list[bytes] = [b"", b"", b""]
    tag = 0
    for receive in receives:
        rows, at = np.zeros(len(receive), RECEIVED_DTYPE), 0
        for row, (lane, is_own) in zip(rows, receive, strict=True):
            tag += 1
            row["lane"] = lane
            row["tag"] = tag + generation_mark(generations[lane] if is_own else 3)
            if is_own:
                own[lane].append(tag)
        while at < len(rows):
            at, lane, count = encode_acks(rows, at, groups, every, 1, frames.acks[:most_acks])
            written[lane] += bytes(frames.view[: count * frames.ack_bytes])
    for lane in range(3):
        assert written[lane] == written_by_pika(own[lane][every - 1 :: every], multiple=True)
        assert groups[lane, 1] == len(own[lane]) % every
        assert groups[lane, 2] == (own[lane][-1] if own[lane] else 0)
