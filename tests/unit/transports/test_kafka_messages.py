"""librdkafka's messages and delivery reports read into rows: made in our own memory, no broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import ENVELOPE_ONLY, I64, OutcomeKind, Part
from bench_spark.transports.kafka import kernels, message_reader
from bench_spark.transports.kafka.client_pool import Health, Wakeup
from bench_spark.transports.kafka.kernels import IN_BODY, NOT_KEPT, PLACE_SHIFT
from bench_spark.transports.kafka.librdkafka import MESSAGE_DTYPE, library
from bench_spark.transports.kafka.message_block import KeptEnvelopes
from bench_spark.transports.kafka.message_reader import (
    DeliveryReports,
    MessageReader,
    PartitionTable,
    outcome_kind,
)

TOPICS = {"a": 0, "b": 1, "c": 2}
HANDLES = {16 * (1 + route): topic for topic, route in TOPICS.items()}


class Placed:
    """Messages in memory as librdkafka would have them: structs here, bodies there."""

    def __init__(self, bodies: list[bytes | None], keys: list[bytes | None] | None = None) -> None:
        self.rows = np.zeros(len(bodies), dtype=MESSAGE_DTYPE)
        self.rows["topic"] = 16
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
    def addresses(self) -> I64:
        at = self.rows.ctypes.data + np.arange(len(self.rows)) * MESSAGE_DTYPE.itemsize
        return at.astype(np.int64)


class HandLibrary:
    """Stands for librdkafka: it knows the names of topics, and destroys nothing."""

    def __init__(self) -> None:
        self.destroyed: list[int] = []

    def topic_name(self, handle: int) -> bytes:
        return HANDLES[handle].encode()

    def message_errstr(self, _address: int) -> bytes:
        return b"it says"

    def message_destroy(self, address: int) -> None:
        self.destroyed.append(address)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_destroyed() -> Iterator[None]:
    """These messages are our own. Kernels that name a function of librdkafka need it loaded, though
    they are not to call it here."""
    library()

    def ignore(_addresses: I64, _first: int, _end: int) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_reader, "destroy_messages", ignore)
        yield


def reader(*want: Part) -> MessageReader:
    """One that keeps messages, since the kernel would give them back to librdkafka."""
    return MessageReader(HandLibrary(), 5, frozenset(want or {Part.BODY}), TOPICS)


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


texts = st.none() | st.binary(max_size=80)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=40))
def test_bodies_keys_and_envelopes_are_those_of_the_messages(
    made: list[tuple[bytes | None, bytes | None]],
) -> None:
    bodies, keys = [body for body, _ in made], [key for _, key in made]
    placed = Placed(bodies, keys)
    found = reader(Part.BODY, Part.KEY).read(placed.addresses, len(made), 7, 9)
    assert found.bodies == [body or b"" for body in bodies]
    assert found.keys == keys
    assert found.headers is None
    assert found.rows["size"].tolist() == [len(body or b"") for body in bodies]
    envelopes = [row.tobytes() for row in found.rows["envelope"]]
    assert envelopes == [(body or b"")[:32].ljust(32, b"\0") for body in bodies]
    assert found.rows["received_ns"].tolist() == [7] + [9] * (len(made) - 1)
    assert set(found.rows["lane"].tolist()) == {5}
    for name in ("tag", "subscription", "redelivered", "corrupted"):
        assert not found.rows[name].any()


def test_only_the_parts_asked_for_are_kept() -> None:
    placed = Placed([bytes(32)], [b"k"])
    found = reader(Part.KEY).read(placed.addresses, 1, 0, 0)
    assert found.keys == [b"k"]
    assert found.bodies is None
    assert found.headers is None


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("abc"), st.integers(0, 200), st.sampled_from([0, 0, 0, 0, 0, -185])
            ),
            min_size=1,
            max_size=60,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_reading_goes_on_behind_the_last_message_of_each_topic_partition(
    fetches: list[list[tuple[str, int, int]]],
) -> None:
    """As a naive reader would find it: with tables that grow, and errors between messages."""
    one = reader()
    handle_of = {topic: handle for handle, topic in HANDLES.items()}
    offset = 1 << 40
    for messages in fetches:
        placed = Placed([bytes([place]) * 40 for place in range(len(messages))])
        placed.rows["topic"] = [handle_of[topic] for topic, _, _ in messages]
        placed.rows["partition"] = [partition for _, partition, _ in messages]
        placed.rows["error"] = [error for _, _, error in messages]
        placed.rows["offset"] = np.arange(len(messages)) + offset
        found = one.read(placed.addresses, len(messages), 0, 0)
        good = [
            (place, topic, number) for place, (topic, number, e) in enumerate(messages) if not e
        ]
        assert found.next_offsets == {(topic, n): offset + at + 1 for at, topic, n in good}
        assert found.rows["route"].tolist() == [TOPICS[topic] for _, topic, _ in good]
        assert found.bodies == [bytes([place]) * 40 for place, _, _ in good]
        assert found.rows["envelope"].tobytes() == b"".join(bytes([at]) * 32 for at, _, _ in good)
        assert [(topic, error.code(), error.str()) for topic, error in found.problems] == [
            (topic, error, "it says") for topic, _, error in messages if error
        ]
        offset += 1000


def test_a_topic_without_a_partition_any_more_may_leave_its_handle_to_another() -> None:
    name = ["a"]
    places = PartitionTable(TOPICS, lambda _handle: name[0])
    for handle, partition in ((16, 0), (16, 1), (32, 0)):
        places.add(handle, partition)
    places.clear()
    name[0] = "b"
    places.add(16, 1)
    slot = kernels.find_place(places.table, 16, 1)
    assert places.table[slot]["route"] == TOPICS["b"]
    assert places.table[kernels.find_place(places.table, 32, 0)]["topic"] == 0


def test_errors_and_partitions_are_read_without_what_lies_beside_them() -> None:
    placed = Placed([b"", b""])
    placed.rows["error"], placed.rows["partition"] = [-152, 0], [-1, 3]
    placed.rows.view(np.int32).reshape(2, 18)[:, 1] = 77  # padding behind the error
    placed.rows.view(np.int32).reshape(2, 18)[:, 5] = 88  # padding behind the partition
    found = reader().read(placed.addresses, 2, 0, 0)
    assert [error.code() for _, error in found.problems] == [-152]
    assert found.next_offsets == {("a", 3): 1}


def test_of_a_message_that_is_an_error_the_library_is_given_back_each() -> None:
    placed = Placed([b"", b""])
    placed.rows["error"] = KafkaError._PARTITION_EOF
    library = HandLibrary()
    found = MessageReader(library, 0, ENVELOPE_ONLY, TOPICS).read(placed.addresses, 2, 0, 0)
    assert len(found.rows) == 0
    assert library.destroyed == placed.addresses.tolist()


# -- delivery reports ----------------------------------------------------------------------------


@pytest.fixture
def health() -> Any:
    wakeup = Wakeup()
    yield Health([0], "nowhere", lambda: 1, wakeup, 0)
    wakeup.close()


def report(reports: DeliveryReports, placed: Placed, at_ns: int, health: Health) -> None:
    count = len(placed.rows)
    reports._addresses[:count] = placed.addresses
    reports.read(count, at_ns, health)


codes = st.sampled_from(
    [0, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, -9999]
)


@pytest.mark.parametrize("was_interrupted", [False, True])
def test_outcomes_are_those_of_the_reports_in_their_order(
    was_interrupted: bool, health: Health
) -> None:
    health.was_interrupted = was_interrupted

    @given(
        st.lists(
            st.lists(
                st.tuples(st.integers(0, 2**32 - 1), codes, st.binary(max_size=70)),
                min_size=1,
                max_size=700,
            ),
            max_size=4,
        )
    )
    def check(events: list[list[tuple[int, int, bytes]]]) -> None:
        reports = DeliveryReports(KeptEnvelopes())
        for at_ns, event in enumerate(events):
            placed = Placed([body for _, _, body in event])
            placed.rows["opaque"] = [lane for lane, _, _ in event]
            placed.rows["error"] = [code for _, code, _ in event]
            report(reports, placed, at_ns, health)
        rows = reports.take().rows
        assert len(reports) == 0
        told = [(at_ns, *one) for at_ns, event in enumerate(events) for one in event]
        assert rows["at_ns"].tolist() == [at_ns for at_ns, _, _, _ in told]
        assert rows["lane"].tolist() == [lane for _, lane, _, _ in told]
        assert rows["kind"].tolist() == [
            outcome_kind(code, was_interrupted=was_interrupted) for _, _, code, _ in told
        ]
        expected = [body[:32].ljust(32, b"\0") for _, _, _, body in told]
        assert [envelope.tobytes() for envelope in rows["envelope"]] == expected

    check()


def sent_envelopes(count: int, first: int = 0) -> Any:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first, first + count)
    made["sent_ns"] = 1_000_000 + made["sequence"]
    return made


@given(st.lists(st.tuples(st.integers(1, 700), st.booleans()), max_size=8), st.data())
def test_every_report_finds_its_envelope_whatever_order_they_come_in(
    sizes: list[tuple[int, bool]], data: st.DataObject
) -> None:
    kept, wakeup = KeptEnvelopes(), Wakeup()
    reports, healthy = DeliveryReports(kept), Health([0], "nowhere", lambda: 1, wakeup, 0)
    sent: list[tuple[int, bytes]] = []
    first = 0
    for count, is_in_body in sizes:
        envelopes, rows = sent_envelopes(count, first), np.zeros(count, MESSAGE_DTYPE)
        rows["opaque"] = np.arange(count) % 3
        if not is_in_body:
            kept.keep(envelopes, 0, rows)
        assert (rows["opaque"] >> PLACE_SHIFT == IN_BODY).all() == is_in_body
        first += count
        order = data.draw(st.permutations(range(count))) if count < 20 else range(count)
        sent += [(int(rows["opaque"][place]), envelopes[place].tobytes()) for place in order]
        cut = data.draw(st.integers(0, len(sent)))
        settled, sent = sent[:cut], sent[cut:]
        if settled:
            placed = Placed([envelope for _, envelope in settled])
            placed.rows["opaque"] = [opaque for opaque, _ in settled]
            report(reports, placed, 0, healthy)
            found = reports.take()
            assert found.envelope.tobytes() == b"".join(envelope for _, envelope in settled)
            assert found.lane.tolist() == [opaque & 0xFFFF_FFFF for opaque, _ in settled]
    kept.forget(np.array([number for number, _ in sent], np.int64))
    assert len(kept) == 0
    wakeup.close()


def test_where_no_reports_come_nothing_is_kept_for_them(health: Health) -> None:
    kept, rows = KeptEnvelopes(has_reports=False), np.zeros(2, MESSAGE_DTYPE)
    rows["opaque"] = [2, 1]
    kept.keep(sent_envelopes(2), 0, rows)
    assert (rows["opaque"] >> PLACE_SHIFT).tolist() == [NOT_KEPT] * 2
    assert len(kept) == 0
    reports, placed = DeliveryReports(kept), Placed([b"x" * 40] * 2)
    placed.rows["opaque"] = rows["opaque"]
    report(reports, placed, 0, health)
    found = reports.take()
    assert found.envelope.tobytes() == bytes(64)
    assert found.lane.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("code", "was_interrupted", "kind"),
    [
        (0, False, OutcomeKind.CONFIRMED),
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
    code: int, was_interrupted: bool, kind: OutcomeKind
) -> None:
    assert outcome_kind(code, was_interrupted=was_interrupted) is kind
