"""Acks written many at once, against pika's own."""

from __future__ import annotations

import numpy as np
import pika.spec
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.transports.amqp.consumers import AckFrames
from bench_spark.transports.amqp.frames import method_frame

CHANNEL = 1
Basic = pika.spec.Basic
tag_lists = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)


@given(tag_lists, st.booleans(), st.integers(0, 21), st.integers(1, 5))
def test_acks_are_written_as_pika_writes_them(
    tags: list[int], multiple: bool, first: int, step: int
) -> None:
    frames = AckFrames(CHANNEL, multiple)
    column = np.zeros(len(tags), [("tag", "<u8"), ("other", "<u8")])
    column["tag"] = tags
    for given_tags in (np.array(tags, np.uint64), column["tag"]):
        written = bytes(frames.of(given_tags, first, step))
        expected = (Basic.Ack(tag, multiple) for tag in tags[first::step])
        assert written == b"".join(method_frame(CHANNEL, one) for one in expected)
