"""librdkafka's structs, gathered by column: made in our own memory, without a broker."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.transports.base import HEAD_ONLY
from bench_spark.transports.kafka.addresses import envelopes_at, words_at
from bench_spark.transports.kafka.columns import columns_of
from bench_spark.transports.kafka.messages import MESSAGE_DTYPE, Messages, Pointers
from bench_spark.transports.kafka.native_consumer import columns_of_messages


class Placed:
    """Messages in memory as librdkafka would have them: structs here, bodies there."""

    def __init__(self, bodies: list[bytes | None], keys: list[bytes | None] | None = None) -> None:
        self.rows = np.zeros(len(bodies), dtype=MESSAGE_DTYPE)
        self._kept: list[npt.NDArray[np.uint8]] = []
        self._point("payload", bodies)
        self._point("key", keys or [None] * len(bodies))

    def _point(self, name: str, texts: list[bytes | None]) -> None:
        for row, text in zip(self.rows, texts, strict=True):
            if text is not None:
                memory = np.frombuffer(text + b"?", dtype=np.uint8)
                self._kept.append(memory)
                row[name], row[f"{name}_bytes"] = memory.ctypes.data, len(text)

    @property
    def messages(self) -> Messages:
        at = self.rows.ctypes.data + np.arange(len(self.rows)) * MESSAGE_DTYPE.itemsize
        return Messages(at.astype(np.int64))


@pytest.mark.parametrize(
    ("field", "offset_bytes"),
    [
        ("error", 0),
        ("topic", 8),
        ("partition", 16),
        ("payload", 24),
        ("payload_bytes", 32),
        ("key", 40),
        ("key_bytes", 48),
        ("offset", 56),
        ("opaque", 64),
    ],
)
def test_a_message_is_laid_out_as_rdkafka_h_has_it(field: str, offset_bytes: int) -> None:
    assert MESSAGE_DTYPE.fields is not None
    assert MESSAGE_DTYPE.fields[field][1] == offset_bytes
    assert MESSAGE_DTYPE.itemsize == 72


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50))
def test_words_are_gathered_in_the_order_of_their_addresses(places: list[int]) -> None:
    memory = np.random.default_rng(1).integers(-(1 << 62), 1 << 62, 100)
    addresses = memory.ctypes.data + 8 * np.array(places, dtype=np.int64)
    assert words_at(addresses).tolist() == memory[places].tolist()


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50))
def test_envelopes_are_gathered_from_any_address(places: list[int]) -> None:
    memory = np.random.default_rng(2).integers(0, 256, 600, dtype=np.uint8)
    found = envelopes_at(memory.ctypes.data + np.array(places, dtype=np.int64))
    expected = [memory[place : place + 32].tobytes() for place in places]
    assert [row.tobytes() for row in found] == expected


def test_what_was_looked_at_cannot_be_written_to() -> None:
    memory = np.arange(10)
    found = words_at(np.array([memory.ctypes.data], dtype=np.int64))
    found[0] = 99  # a copy
    assert memory[0] == 0


texts = st.none() | st.binary(max_size=80)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=40))
def test_bodies_keys_and_heads_are_those_of_the_messages(
    made: list[tuple[bytes | None, bytes | None]],
) -> None:
    bodies, keys = [body for body, _ in made], [key for _, key in made]
    placed = Placed(bodies, keys)
    messages = placed.messages
    assert messages.bodies() == [body or b"" for body in bodies]
    assert messages.keys() == keys
    heads = [row.tobytes() for row in messages.heads()]
    assert heads == [(body or b"")[:32].ljust(32, b"\0") for body in bodies]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.binary(max_size=50)),
        min_size=1,
        max_size=60,
    )
)
def test_columns_are_those_that_confluent_kafka_would_give(
    made: list[tuple[int, int, bytes]],
) -> None:
    topics = ["a", "b", "c"]
    placed = Placed([body for _, _, body in made])
    placed.rows["partition"] = [partition for _, partition, _ in made]
    placed.rows["offset"] = np.arange(len(made)) + (1 << 40)
    routes = np.array([route for route, _, _ in made], dtype=np.uint16)
    ours = columns_of_messages(placed.messages, topics, routes, HEAD_ONLY)
    reference: list[Message[Any, Any]] = [
        Message(topic=topics[route], partition=partition, offset=offset + (1 << 40), value=body)
        for offset, (route, partition, body) in enumerate(made)
    ]
    theirs = columns_of(reference, {"a": 0, "b": 1, "c": 2}, HEAD_ONLY)
    assert ours.next_offsets == theirs.next_offsets
    assert np.array_equal(ours.head, theirs.head)
    assert np.array_equal(ours.size, theirs.size)
    assert np.array_equal(ours.route, theirs.route)


def test_errors_and_partitions_are_read_without_what_lies_beside_them() -> None:
    placed = Placed([b""])
    placed.rows["error"], placed.rows["partition"] = -152, -1
    placed.rows.view(np.int32)[1] = 77  # padding behind the error
    placed.rows.view(np.int32)[5] = 88  # padding behind the partition
    assert placed.messages.error.tolist() == [-152]
    assert placed.messages.partition.tolist() == [-1]


def test_room_for_pointers_grows_and_keeps_what_is_there() -> None:
    pointers = Pointers(2)
    ctypes.memmove(pointers.address, np.array([11, 22], dtype=np.int64).tobytes(), 16)
    pointers.make_room(50)
    assert pointers.capacity >= 50
    assert pointers.messages(2).addresses.tolist() == [11, 22]
