"""Messages as the fast plane writes them, read back by pika."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pika.frame
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import Envelopes, empty_envelopes, envelope_bytes
from bench_spark.transports.amqp.key_choice import KeyChoice
from bench_spark.transports.amqp.publishing import MessageBlock, PublishFrames
from bench_spark.transports.sockets.grouping import by_lane, is_of_one_lane

FRAME_MAX = 4096


def frames(
    mandatory: bool = False,
    persistent: bool = False,
    immediate: bool = False,
    key: str = "a.key",
    headers: dict[str, Any] | None = None,
) -> PublishFrames:
    return PublishFrames(
        5,
        "an exchange",
        key,
        mandatory=mandatory,
        immediate=immediate,
        persistent=persistent,
        frame_max=FRAME_MAX,
        headers=headers,
    )


def heads(count: int) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(count)
    made["sent_ns"] = 2**60 + np.arange(count)
    return made


@dataclass
class Published:
    method: pika.spec.Basic.Publish
    properties: pika.spec.BasicProperties
    body: bytes


def published(stream: bytes) -> list[Published]:
    """What a broker reads."""
    messages: list[Published] = []
    missing = 0
    while stream:
        size, frame = pika.frame.decode_frame(stream)
        assert 0 < size <= FRAME_MAX
        assert frame.channel_number == 5
        stream = stream[size:]
        if isinstance(frame, pika.frame.Method):
            assert missing == 0
            method = frame.method
        elif isinstance(frame, pika.frame.Header):
            messages.append(Published(method, frame.properties, b""))
            missing = frame.body_size
        else:
            messages[-1].body += frame.fragment
            missing -= len(frame.fragment)
    assert missing == 0
    return messages


@pytest.mark.parametrize("size", [0, 8, 1000, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_of_any_size_is_whole_in_frames_of_the_agreed_size(size: int) -> None:
    body = np.random.default_rng(1).bytes(size)
    [one] = published(frames().message(body))
    assert one.body == body


@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize(("persistent", "mode"), [(False, 1), (True, 2)])
def test_exchange_key_flags_and_delivery_mode_are_as_asked(
    mandatory: bool, immediate: bool, persistent: bool, mode: int
) -> None:
    [one] = published(frames(mandatory, persistent, immediate).message(b"body"))
    assert (one.method.exchange, one.method.routing_key) == ("an exchange", "a.key")
    assert (one.method.mandatory, one.method.immediate) == (mandatory, immediate)
    assert {key: value for key, value in vars(one.properties).items() if value} == {
        "delivery_mode": mode
    }


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.sampled_from([8, 32]),
    st.sampled_from([b"", b"x", b"tail" * 20, bytes(2 * FRAME_MAX)]),
)
def test_a_stamped_block_is_as_many_messages_with_these_heads(
    counts: list[int], head_bytes: int, tail: bytes
) -> None:
    block = MessageBlock(frames(), tail, head_bytes)
    for count in counts:
        made = heads(count)
        rows = envelope_bytes(made)
        stamped = bytes(block.stamped(rows))
        assert len(stamped) == count * block.message_bytes
        bodies = [one.body for one in published(stamped)]
        assert bodies == [row.tobytes()[:head_bytes] + tail for row in rows]


@pytest.mark.parametrize("size", [0, 100, 3 * FRAME_MAX])
def test_headers_are_in_every_message(size: int) -> None:
    headers = {"kind": "order", "urgent": True, "pages": 3}
    block = MessageBlock(frames(headers=headers), bytes(size), 32)
    messages = published(bytes(block.stamped(envelope_bytes(heads(3)))))
    assert [one.properties.headers for one in messages] == [headers] * 3
    assert [len(one.body) for one in messages] == [32 + size] * 3


@given(st.integers(2, 2000), st.integers(1, 60), st.integers(0, 3))
def test_a_stamped_block_has_the_chosen_routing_keys(keys: int, count: int, producer: int) -> None:
    digits = len(str(keys - 1))
    choice = KeyChoice(keys, digits)
    made = heads(count)
    made["producer"] = producer
    one_key = frames(key=f"schlüssel.{0:0{digits}d}")
    block = MessageBlock(one_key, b"tail", 32)
    expected = [f"schlüssel.{number:0{digits}d}" for number in choice.numbers(made).tolist()]
    stamped = bytes(block.stamped(envelope_bytes(made), choice.digits(made)))
    assert [one.method.routing_key for one in published(stamped)] == expected
    singly = b"".join(
        one_key.message(head.tobytes() + b"tail", row.tobytes())
        for head, row in zip(envelope_bytes(made), choice.digits(made), strict=True)
    )
    assert singly == stamped


def test_keys_are_chosen_evenly_and_by_the_message_alone() -> None:
    choice = KeyChoice(7, 1)
    made = heads(70_000)
    numbers = choice.numbers(made)
    assert np.bincount(numbers, minlength=7).min() > 9_500
    assert np.array_equal(choice.numbers(made[500:600]), numbers[500:600])
    other = made.copy()
    other["producer"] = 1
    assert np.count_nonzero(choice.numbers(other) == numbers) < 15_000, "not in step"
    assert np.count_nonzero(np.diff(numbers) == 0) > 5_000, "not in turn"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_rows_are_grouped_by_lane_in_their_order(lanes: list[int]) -> None:
    column = np.array(lanes, np.uint32)
    groups = by_lane(column)
    assert is_of_one_lane(column) == (len(set(lanes)) == 1)
    assert {lane: groups.order[start:end].tolist() for lane, start, end in groups} == {
        lane: [place for place, one in enumerate(lanes) if one == lane] for lane in set(lanes)
    }
