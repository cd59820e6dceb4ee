"""Messages to columns and back, and what a delivery report means; without a broker."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.base import HEAD_ONLY, Batch, OutcomeKind, Part
from bench_spark.transports.kafka.columns import columns_of
from bench_spark.transports.kafka.outcome_kinds import outcome_kind
from bench_spark.transports.kafka.quiet_log import LOGGER, QuietLog
from bench_spark.transports.kafka.single_messages import bodies_to_send


def message(
    value: bytes | None, topic: str = "t", partition: int = 0, offset: int = 0
) -> Message[bytes, bytes]:
    return Message(topic=topic, partition=partition, offset=offset, key=b"k", value=value)


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=40))
def test_heads_are_the_first_32_bytes_padded_with_zeros(bodies: list[bytes]) -> None:
    columns = columns_of([message(body) for body in bodies], {"t": 0}, frozenset({Part.BODY}))
    rows = columns.head.view(np.uint8).reshape(len(bodies), 32)
    assert [row.tobytes() for row in rows] == [body[:32].ljust(32, b"\0") for body in bodies]
    assert columns.size.tolist() == [len(body) for body in bodies]
    assert columns.bodies == bodies


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), min_size=1, max_size=60))
def test_reading_goes_on_behind_the_last_message_of_each_topic_partition(
    places: list[tuple[str, int]],
) -> None:
    messages = [
        message(bytes(32), topic, partition, offset)
        for offset, (topic, partition) in enumerate(places)
    ]
    columns = columns_of(messages, {"a": 0, "b": 1}, HEAD_ONLY)
    assert columns.next_offsets == {place: at + 1 for at, place in enumerate(places)}
    assert columns.route.tolist() == [{"a": 0, "b": 1}[topic] for topic, _ in places]


def test_a_message_without_a_body_counts_as_an_empty_one() -> None:
    columns = columns_of([message(None), message(b"x" * 40)], {"t": 0}, HEAD_ONLY)
    assert columns.size.tolist() == [0, 40]
    assert columns.head["sequence"][0] == 0


def test_only_the_parts_asked_for_are_kept() -> None:
    columns = columns_of([message(bytes(32))], {"t": 0}, frozenset({Part.KEY}))
    assert columns.keys == [b"k"]
    assert columns.bodies is None
    assert columns.headers is None


@pytest.mark.parametrize("head_bytes", [8, 32])
@pytest.mark.parametrize("tail", [b"tail", [b"", b"x", b"yz"]])
def test_a_body_is_its_head_and_its_tail(tail: bytes | list[bytes], head_bytes: int) -> None:
    heads = empty_envelopes(3)
    heads["sent_ns"] = [1, 2, 3]
    heads["sequence"] = [7, 8, 9]
    batch = Batch(np.zeros(3, np.uint32), heads, tail, np.zeros(3, np.uint16), None, head_bytes)
    tails = [tail] * 3 if isinstance(tail, bytes) else tail
    rows = heads.view(np.uint8).reshape(3, 32)
    assert bodies_to_send(batch) == [
        row.tobytes()[:head_bytes] + own for row, own in zip(rows, tails, strict=True)
    ]
    assert bodies_to_send(batch.starting_at(1)) == bodies_to_send(batch)[1:]


@pytest.mark.parametrize(
    ("code", "was_interrupted", "kind"),
    [
        (None, False, OutcomeKind.CONFIRMED),
        (KafkaError.MSG_SIZE_TOO_LARGE, False, OutcomeKind.REFUSED),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, OutcomeKind.REFUSED),
        (KafkaError.NOT_ENOUGH_REPLICAS, False, OutcomeKind.REFUSED),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, False, OutcomeKind.UNKNOWN),
        (KafkaError._MSG_TIMED_OUT, False, OutcomeKind.UNKNOWN),
        (KafkaError._PURGE_INFLIGHT, False, OutcomeKind.UNKNOWN),
        (KafkaError._PURGE_QUEUE, False, OutcomeKind.REFUSED),
        (KafkaError._PURGE_QUEUE, True, OutcomeKind.UNKNOWN),
    ],
)
def test_a_message_is_refused_only_if_it_is_certainly_not_in_the_log(
    code: int | None, was_interrupted: bool, kind: OutcomeKind
) -> None:
    error = None if code is None else KafkaError(code)
    assert outcome_kind(error, was_interrupted=was_interrupted) is kind


def test_a_flood_of_log_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog()
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        for _ in range(500):
            quiet.log(logging.ERROR, "%s [%s] %s", "FAIL", "client", "connection refused")
    assert 0 < len(caplog.records) <= 20
