"""Messages as producers write them, read back by pika."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pika.frame
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import Envelopes, byte_rows_of, empty_envelopes
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms
from bench_spark.transports.amqp.frames import FrameTerms
from bench_spark.transports.amqp.producers import KeyChoice, PublishFrames, PublishWriter
from bench_spark.transports.batches import U8, Batch
from bench_spark.transports.sockets.buffers import OutcomeRows, by_lane, is_of_one_lane

FRAME_MAX = 4096


def frames(
    mandatory: bool = False,
    persistent: bool = False,
    immediate: bool = False,
    key: str = "a.key",
    headers: dict[str, Any] | None = None,
) -> PublishFrames:
    publish = pika.spec.Basic.Publish(
        exchange="an exchange", routing_key=key, mandatory=mandatory, immediate=immediate
    )
    return PublishFrames(FrameTerms(5, FRAME_MAX), publish, persistent=persistent, headers=headers)


def confirms(limit: int = 0) -> Confirms:
    terms = ConfirmTerms(limit, may_return=False)
    return Confirms(0, FrameTerms(5, FRAME_MAX), terms, OutcomeRows())


def envelopes(count: int) -> Envelopes:
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


def load_of(
    made: Envelopes, payloads: bytes | U8, envelope_bytes: int = 32, routes: list[int] | None = None
) -> Batch:
    places = np.array(routes or [0] * len(made), np.uint16)
    return Batch(
        np.zeros(len(made), np.uint32), made, payloads, places, envelope_bytes=envelope_bytes
    )


TAIL_SIZES = [0, 1, 80, FRAME_MAX - 8 - 32, FRAME_MAX - 8 - 31, 2 * FRAME_MAX, 3 * (FRAME_MAX - 8)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([8, 32]),
    st.sampled_from(TAIL_SIZES),
)
@settings(deadline=None)
def test_a_batch_is_as_many_messages_with_these_envelopes_and_tails(
    batches: list[tuple[int, bool]], envelope_bytes: int, payload_bytes: int
) -> None:
    writer, chance = PublishWriter(may_return=False), np.random.default_rng(1)
    for count, has_own_payloads in batches:
        made = envelopes(count)
        payloads = chance.integers(0, 256, (count, payload_bytes), np.uint8)
        shared = payloads[0].tobytes()
        load = load_of(made, payloads if has_own_payloads else shared, envelope_bytes)
        written = bytes(writer.write([frames()], load, confirms()))
        bodies = [one.body for one in published(written)]
        assert bodies == [
            row.tobytes()[:envelope_bytes] + (payload.tobytes() if has_own_payloads else shared)
            for row, payload in zip(byte_rows_of(made), payloads, strict=True)
        ]


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60), st.booleans(), st.sampled_from(TAIL_SIZES)
)
@settings(deadline=None)
def test_messages_for_several_destinations_are_written_in_their_order(
    routes: list[int], has_own_payloads: bool, payload_bytes: int
) -> None:
    keys = ["a", "longer.key", "the.longest.key"]
    of_routes = [frames(key=key) for key in keys]
    made = envelopes(len(routes))
    payloads = np.random.default_rng(2).integers(0, 256, (len(routes), payload_bytes), np.uint8)
    load = load_of(made, payloads if has_own_payloads else bytes(payload_bytes), routes=routes)
    written = PublishWriter(may_return=False).write(of_routes, load, confirms())
    messages = published(bytes(written))
    assert [one.method.routing_key for one in messages] == [keys[route] for route in routes]
    rows = byte_rows_of(made)
    assert [one.body for one in messages] == [
        row.tobytes() + (payload.tobytes() if has_own_payloads else bytes(payload_bytes))
        for row, payload in zip(rows, payloads, strict=True)
    ]


def test_a_batch_larger_than_all_before_it_is_written_whole() -> None:
    writer = PublishWriter(may_return=False)
    for size in (100, 3_000_000, 100):
        messages = published(
            bytes(writer.write([frames()], load_of(envelopes(2), bytes(size)), confirms()))
        )
        assert [len(one.body) for one in messages] == [32 + size] * 2


def test_bodies_of_any_size_are_written_one_by_one() -> None:
    payloads = [b"x" * size for size in (0, 1, 100, 2 * FRAME_MAX)]
    made = envelopes(len(payloads))
    places = np.zeros(len(payloads), np.uint16)
    load = Batch(np.zeros(len(made), np.uint32), made, payloads, places)
    written = PublishWriter(may_return=False).write([frames()], load, confirms())
    messages = published(bytes(written))
    assert [one.body[32:] for one in messages] == payloads


@pytest.mark.parametrize("size", [0, 100, 3 * FRAME_MAX])
def test_headers_are_in_every_message(size: int) -> None:
    headers = {"kind": "order", "urgent": True, "pages": 3}
    written = PublishWriter(may_return=False).write(
        [frames(headers=headers)], load_of(envelopes(3), bytes(size)), confirms()
    )
    messages = published(bytes(written))
    assert [one.properties.headers for one in messages] == [headers] * 3
    assert [len(one.body) for one in messages] == [32 + size] * 3


@given(st.integers(2, 2000), st.integers(1, 60), st.integers(0, 3))
@settings(deadline=None)
def test_messages_have_the_chosen_routing_keys(keys: int, count: int, producer: int) -> None:
    digits = len(str(keys - 1))
    choice = KeyChoice(keys, digits)
    made = envelopes(count)
    made["producer"] = producer
    one_key = frames(key=f"schlüssel.{0:0{digits}d}")
    expected = [f"schlüssel.{number:0{digits}d}" for number in choice.numbers(made).tolist()]
    writer = PublishWriter(may_return=False, key_choice=choice)
    written = bytes(writer.write([one_key], load_of(made, b"payload"), confirms()))
    assert [one.method.routing_key for one in published(written)] == expected
    singly = b"".join(
        one_key.message(envelope.tobytes() + b"payload", row.tobytes())
        for envelope, row in zip(byte_rows_of(made), choice.digits(made), strict=True)
    )
    assert singly == written


def test_keys_are_chosen_evenly_and_by_the_message_alone() -> None:
    choice = KeyChoice(7, 1)
    made = envelopes(70_000)
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
