"""What the fast plane hands to librdkafka, and that it loses sight of none of it. No broker."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_spark.core.clock import Clock
from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.base import Batch, Destination, Lane, OutcomeKind
from bench_spark.transports.kafka import native_producer
from bench_spark.transports.kafka.addresses import records_at
from bench_spark.transports.kafka.fast_producers import FastProducers
from bench_spark.transports.kafka.header_arguments import ARGUMENT_DTYPE, HeaderArguments
from bench_spark.transports.kafka.key_choice import KeyRule
from bench_spark.transports.kafka.messages import MESSAGE_DTYPE, Messages
from bench_spark.transports.kafka.outbox import BLOCK_BYTES, Keyring, Laid, Outbox
from bench_spark.transports.kafka.settings import Properties
from bench_spark.transports.kafka.shared_clients import ProducerTerms
from bench_spark.transports.kafka.single_messages import Keys, bodies_to_send
from bench_spark.transports.kafka.unsettled import Unsettled

LANES = [Lane(member, (Destination(0, "t"),)) for member in (7, 12, 9)]


def heads(count: int, first: int = 0) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first, first + count)
    made["sent_ns"] = 1_000_000 + made["sequence"]
    return made


def batch_of(
    tails: bytes | list[bytes],
    lanes: list[int],
    first: int = 0,
    head_bytes: int = 32,
    keys: list[bytes] | None = None,
    routes: list[int] | None = None,
) -> Batch:
    return Batch(
        lane=np.array(lanes, dtype=np.uint32),
        head=heads(len(lanes), first),
        tail=tails,
        route=np.array(routes or [0] * len(lanes), dtype=np.uint16),
        keys=keys,
        head_bytes=head_bytes,
    )


def messages_in(laid: Laid) -> Messages:
    return Messages(laid.ctypes.data + np.arange(len(laid)) * MESSAGE_DTYPE.itemsize)


def lay_out_all(outbox: Outbox, batch: Batch) -> Iterator[Messages]:
    done = 0
    while done < len(batch):
        laid = outbox.lay_out(batch.starting_at(done))
        assert len(laid) > 0
        yield messages_in(laid)
        done += len(laid)


lanes_of_a_batch = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@given(st.data(), lanes_of_a_batch, st.sampled_from([0, 8, 20, 32]), st.integers(0, 10**12))
def test_messages_are_laid_out_with_the_bodies_and_keys_of_the_other_plane(
    data: st.DataObject, lanes: list[int], head_bytes: int, first: int
) -> None:
    kind = data.draw(st.sampled_from(["none", "producer", "sequence", "uniform", "zipf"]))
    rule = KeyRule(kind, keys=data.draw(st.sampled_from([1, 7, 1000])))
    outbox, reference = Outbox(Keyring(rule, LANES), Unsettled()), Keys(rule, LANES)
    sizes = st.integers(0, 300) | st.sampled_from([0, BLOCK_BYTES // 3, BLOCK_BYTES + 5])
    for _ in range(3):  # the same memory serves again and again
        tails: bytes | list[bytes]
        if data.draw(st.booleans()):
            tails = b"x" * data.draw(sizes)
        else:
            tails = [bytes([65 + i % 26]) * data.draw(sizes) for i in range(len(lanes))]
        own = [b"k%d" % i for i in range(len(lanes))] if data.draw(st.booleans()) else None
        batch = batch_of(tails, lanes, first, head_bytes, own)
        bodies, keys, opaque = [], [], []
        for messages in lay_out_all(outbox, batch):
            bodies += messages.bodies()
            keys += messages.keys()
            opaque += (messages.opaque & 0xFFFF_FFFF).tolist()
        assert bodies == bodies_to_send(batch)
        assert keys == [key for key, _ in zip(reference.of(batch), lanes, strict=False)]
        assert opaque == lanes


def numbers_of(rule: KeyRule, messages: int = 20_000) -> np.ndarray:
    return rule.numbers(heads(messages)).astype(np.int64)


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
    assert numbers_of(rule, 500)[100:].tolist() == rule.numbers(heads(400, 100)).tolist()


def test_an_empty_key_is_a_key() -> None:
    outbox = Outbox(Keyring(KeyRule("none"), LANES), Unsettled())
    batch = batch_of(b"", [0, 0, 0], keys=[b"", b"a", b""])
    (messages,) = lay_out_all(outbox, batch)
    assert messages.keys() == [b"", b"a", b""]


def test_the_numbers_of_sequence_keys_have_no_leading_zeros() -> None:
    outbox = Outbox(Keyring(KeyRule("sequence"), LANES), Unsettled())
    batch = batch_of(b"", [0] * 12, first=95)
    (messages,) = lay_out_all(outbox, batch)
    assert messages.keys() == [b"%d" % number for number in range(95, 107)]
    (zero,) = lay_out_all(outbox, batch_of(b"", [0]))
    assert zero.keys() == [b"0"]


def headers_in(arguments: HeaderArguments) -> list[list[tuple[bytes, bytes]]]:
    """What librdkafka reads at the addresses it is given."""
    found = []
    for address, count in zip(arguments.addresses, arguments.counts, strict=True):
        rows = records_at(address + np.arange(count) * ARGUMENT_DTYPE.itemsize, ARGUMENT_DTYPE)
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
    laid = Outbox(Keyring(KeyRule("none"), LANES), Unsettled()).lay_out(batch_of(b"", [0, 1, 2]))
    own = [headers] * 3 if are_one_object else [headers, {}, dict(headers)]
    expected = [[(name.encode(), value) for name, value in each.items()] for each in own]
    assert headers_in(HeaderArguments(1, laid, own)) == expected


def reported(opaques: list[int], bodies: list[bytes]) -> Iterator[Messages]:
    """Messages as they come back, with these bodies."""
    rows = np.zeros(len(opaques), MESSAGE_DTYPE)
    memory = [np.frombuffer(body, np.uint8) for body in bodies]
    rows["opaque"] = opaques
    rows["payload"] = [each.ctypes.data for each in memory]
    rows["payload_bytes"] = [len(body) for body in bodies]
    yield messages_in(rows)


@given(st.lists(st.tuples(st.integers(1, 700), st.sampled_from([0, 8, 32])), max_size=8), st.data())
def test_every_report_finds_its_head_whatever_order_they_come_in(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    unsettled = Unsettled()
    sent: list[tuple[int, Envelopes]] = []
    first = 0
    for count, head_bytes in sizes:
        batch = batch_of(b"", [number % 3 for number in range(count)], first, head_bytes)
        opaques = unsettled.opaques(batch, count).tolist()
        first += count
        order = data.draw(st.permutations(range(count))) if count < 20 else range(count)
        sent += [(opaques[place], batch.head[place : place + 1]) for place in order]
        cut = data.draw(st.integers(0, len(sent)))
        settled, sent = sent[:cut], sent[cut:]
        if settled:
            numbers, own = zip(*settled, strict=True)
            bodies = [head.tobytes() for head in own]
            for messages in reported(list(numbers), bodies):
                assert unsettled.heads_of(messages).tobytes() == b"".join(bodies)
    unsettled.forget(np.array([number for number, _ in sent], np.int64))
    assert len(unsettled) == 0


def test_where_no_reports_come_nothing_is_kept_for_them() -> None:
    unsettled = Unsettled(has_reports=False)
    opaques = unsettled.opaques(batch_of(b"", [2, 1], head_bytes=0), 2).tolist()
    assert len(unsettled) == 0
    for messages in reported(opaques, [b"x" * 40] * 2):
        assert unsettled.heads_of(messages).tobytes() == bytes(64)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no broker that would take the rest while we close."""
    monkeypatch.setattr(native_producer, "_CLOSE_SECONDS", 0.01)


def made_producers(lanes: list[Lane], properties: Properties, keys: KeyRule) -> FastProducers:
    terms = ProducerTerms(
        properties | {"queue.buffering.max.kbytes": 1000},
        address="nowhere",
        now_ns=Clock.local().now_ns,
        reconnect_seconds=0,
        confirms=True,
        keys=keys,
        headers={},
    )
    return FastProducers(lanes, terms)


sends = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=80),
    min_size=1,
    max_size=6,
)


@pytest.mark.usefixtures("impatient")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sends, st.integers(1, 120), st.booleans())
def test_every_message_that_was_accepted_has_one_outcome_and_every_other_has_none(
    sends: list[list[tuple[int, int]]], most_messages: int, are_alike: bool
) -> None:
    """Over several clients and topics, with queues that get full: what is accepted is a prefix."""
    lanes = [Lane(n, (Destination(0, "a"), Destination(1, f"b{n % 2}"))) for n in range(6)]
    properties = {"queue.buffering.max.messages": most_messages}
    producers = made_producers(lanes, properties, KeyRule("producer"))
    expected: dict[int, int] = {}
    first = 0
    for messages in sends:
        tails = b"t" if are_alike else [bytes(place) for place in range(len(messages))]
        own_lanes, routes = [lane for lane, _ in messages], [route for _, route in messages]
        accepted = producers.send(batch_of(tails, own_lanes, first, routes=routes))
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
    found = dict(zip(outcomes.head["sequence"].tolist(), outcomes.lane.tolist(), strict=True))
    assert found == expected
    assert np.array_equal(outcomes.head["sent_ns"], 1_000_000 + outcomes.head["sequence"])


@pytest.mark.usefixtures("impatient")
def test_messages_too_large_are_refused_at_once_and_the_others_are_taken() -> None:
    properties = {"queue.buffering.max.messages": 100, "message.max.bytes": 1000}
    producers = made_producers(LANES[:1], properties, KeyRule("none"))
    assert producers.send(batch_of([b"", bytes(2000), b"", bytes(3000)], [0] * 4)) == 4
    refused = producers.outcomes()
    assert refused.head["sequence"].tolist() == [1, 3]
    assert set(refused.kind.tolist()) == {OutcomeKind.REFUSED}
    assert producers.in_flight() == 2
    producers.close()
    assert sorted(producers.outcomes().head["sequence"].tolist()) == [0, 2]
