"""What is handed to librdkafka, and that nothing of it is lost sight of. No broker."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_spark.core.clock import Clock
from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.batches import U8, Batch, OutcomeKind
from bench_spark.transports.kafka import kernels
from bench_spark.transports.kafka import producers as producers_module
from bench_spark.transports.kafka.kernels import GROUP_DTYPE, Records
from bench_spark.transports.kafka.librdkafka import MESSAGE_DTYPE
from bench_spark.transports.kafka.message_block import (
    ARGUMENT_DTYPE,
    BLOCK_BYTES,
    MOST_ROWS,
    HeaderArguments,
    KeptEnvelopes,
    KeyRule,
    Keys,
    ProduceBlock,
    bodies_to_send,
)
from bench_spark.transports.kafka.producers import KafkaProducers, ProducerTerms
from bench_spark.transports.kafka.settings import Properties

LANES = [Lane(member, (Destination(0, "t"),)) for member in (7, 12, 9)]


def envelopes(count: int, first: int = 0) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(count, dtype=np.uint64) + np.uint64(first)
    made["sent_ns"] = made["sequence"] % 1_000_000_007
    return made


def batch_of(
    payloads: bytes | list[bytes] | U8,
    lanes: list[int],
    first: int = 0,
    envelope_bytes: int = 32,
    keys: list[bytes] | None = None,
    routes: list[int] | None = None,
) -> Batch:
    return Batch(
        lane=np.array(lanes, dtype=np.uint32),
        envelope=envelopes(len(lanes), first),
        payload=payloads,
        route=np.array(routes or [0] * len(lanes), dtype=np.uint16),
        keys=keys,
        envelope_bytes=envelope_bytes,
    )


def texts_in(laid: Records, name: str) -> list[bytes | None]:
    """What librdkafka reads at the addresses it is given."""
    return [
        ctypes.string_at(start, size) if start else None
        for start, size in zip(laid[name].tolist(), laid[f"{name}_bytes"].tolist(), strict=True)
    ]


def lay_out_all(block: ProduceBlock, batch: Batch) -> Iterator[Records]:
    done = 0
    while done < len(batch):
        laid = block.lay_out(batch, done)
        assert len(laid) > 0
        assert not laid["error"].any()
        assert laid["offset"].tolist() == list(range(done, done + len(laid)))
        assert block.address == laid.ctypes.data
        yield laid
        done += len(laid)


lanes_of_a_batch = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@settings(deadline=None)
@given(st.data(), lanes_of_a_batch, st.sampled_from([0, 8, 20, 32]), st.integers(0, 2**64 - 61))
def test_messages_are_laid_out_with_the_bodies_and_keys_of_messages_made_one_by_one(
    data: st.DataObject, lanes: list[int], envelope_bytes: int, first: int
) -> None:
    kind = data.draw(st.sampled_from(["none", "producer", "sequence", "uniform", "zipf"]))
    keys_of = Keys(KeyRule(kind, keys=data.draw(st.sampled_from([1, 7, 1000]))), LANES)
    kept = KeptEnvelopes()
    block = ProduceBlock(keys_of, kept)
    sizes = st.integers(0, 300) | st.sampled_from([0, BLOCK_BYTES // 3, BLOCK_BYTES + 5])
    shared = b"y" * data.draw(sizes)
    for _ in range(3):  # the same memory serves again and again
        payloads: bytes | list[bytes] | U8
        kind_of_payloads = data.draw(st.sampled_from(["the same", "another", "rows", "own"]))
        if kind_of_payloads == "the same":
            payloads = shared
        elif kind_of_payloads == "another":
            payloads = b"x" * data.draw(sizes)
        elif kind_of_payloads == "rows":
            width = data.draw(st.integers(0, 300))
            payloads = np.arange(len(lanes) * width, dtype=np.uint8).reshape(len(lanes), width)
        else:
            payloads = [bytes([65 + i % 26]) * data.draw(sizes) for i in range(len(lanes))]
        own = [b"k%d" % i for i in range(len(lanes))] if data.draw(st.booleans()) else None
        batch = batch_of(payloads, lanes, first, envelope_bytes, own)
        bodies, keys, opaque = [], [], []
        for laid in lay_out_all(block, batch):
            bodies += texts_in(laid, "payload")
            keys += texts_in(laid, "key")
            opaque += (laid["opaque"] & 0xFFFF_FFFF).tolist()
            kept.forget(laid["opaque"])
        assert bodies == bodies_to_send(batch)
        assert keys == [key for key, _ in zip(keys_of.of(batch), lanes, strict=False)]
        assert opaque == lanes
        assert len(kept) == 0


def test_more_messages_than_a_block_has_rows_are_laid_out_in_several_goes() -> None:
    block = ProduceBlock(Keys(KeyRule("sequence"), LANES), KeptEnvelopes())
    batch = batch_of(b"ab", [0] * (2 * MOST_ROWS + 5))
    parts = [
        (texts_in(laid, "payload"), texts_in(laid, "key")) for laid in lay_out_all(block, batch)
    ]
    assert [len(bodies) for bodies, _ in parts] == [MOST_ROWS, MOST_ROWS, 5]
    assert [body for bodies, _ in parts for body in bodies] == bodies_to_send(batch)
    assert [key for _, keys in parts for key in keys] == [b"%d" % n for n in range(len(batch))]


@pytest.mark.parametrize("envelope_bytes", [8, 32])
@pytest.mark.parametrize("payload", [b"payload", [b"", b"x", b"yz"]])
def test_a_body_is_its_envelope_and_its_tail(
    payload: bytes | list[bytes], envelope_bytes: int
) -> None:
    batch = batch_of(payload, [0, 0, 0], first=7, envelope_bytes=envelope_bytes)
    payloads = [payload] * 3 if isinstance(payload, bytes) else payload
    assert bodies_to_send(batch) == [
        row.tobytes()[:envelope_bytes] + own
        for row, own in zip(batch.envelope, payloads, strict=True)
    ]
    assert bodies_to_send(batch.starting_at(1)) == bodies_to_send(batch)[1:]


@given(st.lists(st.integers(0, 6), max_size=80))
def test_messages_are_grouped_by_target_each_group_in_order(targets: list[int]) -> None:
    rows = np.zeros(len(targets), MESSAGE_DTYPE)
    rows["offset"] = np.arange(len(targets))
    rows["opaque"] = rows["offset"] * 3
    groups, grouped = np.zeros(7, GROUP_DTYPE), np.zeros(80, MESSAGE_DTYPE)
    found = kernels.group_by_target(rows, np.array(targets, np.int64), groups, grouped)
    assert groups["target"][:found].tolist() == sorted(set(targets))
    for target in set(targets):
        end, count = int(groups["end"][target]), int(groups["count"][target])
        places = [place for place, one in enumerate(targets) if one == target]
        assert grouped["offset"][end - count : end].tolist() == places
        assert grouped["opaque"][end - count : end].tolist() == [3 * place for place in places]


def numbers_of(rule: KeyRule, messages: int = 20_000) -> np.ndarray:
    return rule.numbers(envelopes(messages)).astype(np.int64)


def test_uniform_keys_are_all_taken_equally_often() -> None:
    taken = np.bincount(numbers_of(KeyRule("uniform", keys=10)))
    assert len(taken) == 10
    assert taken.min() > 1800
    assert taken.max() < 2200


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_zipf_keys_get_rarer_by_their_power(exponent: float) -> None:
    taken = np.bincount(numbers_of(KeyRule("zipf", 100, exponent)), minlength=100)
    expected = np.arange(1, 101) ** -exponent
    expected *= 20_000 / expected.sum()
    assert len(taken) == 100
    assert taken[:3] == pytest.approx(expected[:3], rel=0.1)


def test_a_message_has_the_same_key_whenever_it_is_sent() -> None:
    rule = KeyRule("zipf", 1000)
    assert numbers_of(rule, 500)[100:].tolist() == rule.numbers(envelopes(400, 100)).tolist()


def test_an_empty_key_is_a_key() -> None:
    block = ProduceBlock(Keys(KeyRule("none"), LANES), KeptEnvelopes())
    (laid,) = lay_out_all(block, batch_of(b"", [0, 0, 0], keys=[b"", b"a", b""]))
    assert texts_in(laid, "key") == [b"", b"a", b""]
    (laid,) = lay_out_all(block, batch_of(b"", [0, 0]))
    assert texts_in(laid, "key") == [None, None]


def test_the_numbers_of_sequence_keys_have_no_leading_zeros() -> None:
    block = ProduceBlock(Keys(KeyRule("sequence"), LANES), KeptEnvelopes())
    (laid,) = lay_out_all(block, batch_of(b"", [0] * 12, first=95))
    assert texts_in(laid, "key") == [b"%d" % number for number in range(95, 107)]
    (zero,) = lay_out_all(block, batch_of(b"", [0]))
    assert texts_in(zero, "key") == [b"0"]


def headers_in(arguments: HeaderArguments) -> list[list[tuple[bytes, bytes]]]:
    """What librdkafka reads at the addresses it is given."""
    found = []
    for address, count in zip(arguments.addresses, arguments.counts, strict=True):
        memory = ctypes.string_at(address, count * ARGUMENT_DTYPE.itemsize)
        rows = np.frombuffer(memory, ARGUMENT_DTYPE)
        found.append(
            [
                (
                    ctypes.string_at(int(row["first"])),
                    ctypes.string_at(*map(int, (row["second"], row["third"]))),
                )
                for row in rows
                if row["kind"] == 9
            ]
        )
    return found


@pytest.mark.parametrize("are_one_object", [True, False])
def test_headers_are_laid_out_whether_or_not_they_are_the_same_for_all(
    are_one_object: bool,
) -> None:
    headers = {"kind": b"order", "empty": b"", "\u20ac": b"a\0b"}
    block = ProduceBlock(Keys(KeyRule("none"), LANES), KeptEnvelopes())
    laid = block.lay_out(batch_of(b"", [0, 1, 2]), 0)
    own = [headers] * 3 if are_one_object else [headers, {}, dict(headers)]
    expected = [[(name.encode(), value) for name, value in each.items()] for each in own]
    assert headers_in(HeaderArguments(1, laid, own)) == expected


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no broker that would take the rest while we close."""
    monkeypatch.setattr(producers_module, "_CLOSE_SECONDS", 0.01)


def made_producers(lanes: list[Lane], properties: Properties, keys: KeyRule) -> KafkaProducers:
    terms = ProducerTerms(
        properties | {"queue.buffering.max.kbytes": 1000},
        address="nowhere",
        now_ns=Clock.local().now_ns,
        reconnect_seconds=0,
        confirms=True,
        keys=keys,
        headers={},
    )
    return KafkaProducers(lanes, terms)


sends = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=80),
    min_size=1,
    max_size=6,
)


@pytest.mark.usefixtures("impatient")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sends, st.integers(1, 120), st.booleans(), st.sampled_from([0, 32]))
def test_every_message_that_was_accepted_has_one_outcome_and_every_other_has_none(
    sends: list[list[tuple[int, int]]], most_messages: int, are_alike: bool, envelope_bytes: int
) -> None:
    """Over several clients and topics, with queues that get full: what is accepted is a prefix."""
    lanes = [Lane(n, (Destination(0, "a"), Destination(1, f"b{n % 2}"))) for n in range(6)]
    properties = {"queue.buffering.max.messages": most_messages}
    producers = made_producers(lanes, properties, KeyRule("producer"))
    expected: dict[int, int] = {}
    first = 0
    for messages in sends:
        payloads = b"t" if are_alike else [bytes(place) for place in range(len(messages))]
        own_lanes, routes = [lane for lane, _ in messages], [route for _, route in messages]
        accepted = producers.send(
            batch_of(payloads, own_lanes, first, envelope_bytes, routes=routes)
        )
        assert 0 <= accepted <= len(messages)
        expected |= {first + place: own_lanes[place] for place in range(accepted)}
        if accepted < len(messages):
            waiting = sum(1 for lane in expected.values() if lane % 4 == own_lanes[accepted] % 4)
            assert waiting == most_messages
        first += len(messages)
    assert producers.in_flight() == len(expected)
    producers.close()
    outcomes = producers.outcomes()
    assert producers.in_flight() == 0
    assert set(outcomes.kind.tolist()) <= {OutcomeKind.REFUSED}
    assert len(outcomes) == len(expected)
    found = dict(zip(outcomes.envelope["sequence"].tolist(), outcomes.lane.tolist(), strict=True))
    assert found == expected
    assert np.array_equal(
        outcomes.envelope["sent_ns"], outcomes.envelope["sequence"] % 1_000_000_007
    )


@pytest.mark.usefixtures("impatient")
def test_messages_too_large_are_refused_at_once_and_the_others_are_taken() -> None:
    properties = {"queue.buffering.max.messages": 100, "message.max.bytes": 1000}
    producers = made_producers(LANES[:1], properties, KeyRule("none"))
    assert producers.send(batch_of([b"", bytes(2000), b"", bytes(3000)], [0] * 4)) == 4
    refused = producers.outcomes()
    assert refused.envelope["sequence"].tolist() == [1, 3]
    assert set(refused.kind.tolist()) == {OutcomeKind.REFUSED}
    assert producers.in_flight() == 2
    producers.close()
    assert sorted(producers.outcomes().envelope["sequence"].tolist()) == [0, 2]
