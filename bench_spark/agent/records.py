"""Bodies that an agent sends, and how it knows messages again by them: made for measuring
(`PaddedBodies`: measurement data in front, padding behind), or real records with IDs
(`RecordCodec`).

A message has the size of the moment at which it is sent (`BodySizes`), so that its size is known
from its send time alone: nobody needs to keep it.

IDs do not say when a message was sent. A ring per producer remembers that of the messages that are
on their way, so that memory does not grow. A message that comes back after so many others were sent
that its place was taken is still counted; only its times are not known here.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import Timeline
from bench_spark.config.sections import Message
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    content_hashes,
    decode_ids,
    empty_envelopes,
    encode_ids,
    envelopes_from_bytes,
    id_rows,
    id_texts,
)
from bench_spark.core.randomness import RandomBytes, RandomRows
from bench_spark.data.carriers import ACKNOWLEDGEMENT, Carrier, NoPlace, make_carrier
from bench_spark.data.ordering import RecordOrdering, ordering_of
from bench_spark.data.records import ColumnRecords, MadeRecords, RecordFiles
from bench_spark.data.scanning import RecordSource
from bench_spark.errors import RunError
from bench_spark.plan import Assignment
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    I64,
    U8,
    U32,
    Batch,
    Bool,
    Outcomes,
    Part,
    Payloads,
    Received,
    joined,
    nothing_received,
)

NEVER_NS = 2**63 - 1


@dataclass(frozen=True)
class BodySizes:
    first_bytes: int
    steps: tuple[tuple[int, int], ...] = ()
    """How long after the measured phase began bodies have which size, in order of time."""
    timeline: Timeline | None = None
    """None: the measured phase began at 0."""

    @property
    def changes(self) -> list[tuple[int, int]]:
        """From when on bodies have which size: it is known only as soon as the beginning of the
        measured phase is."""
        began_ns = 0 if self.timeline is None else self.timeline.measure_start_ns
        return [(began_ns + after_ns, size) for after_ns, size in self.steps]

    @property
    def smallest_bytes(self) -> int:
        return min([self.first_bytes, *(size for _, size in self.steps)])

    def at(self, at_ns: int) -> tuple[int, int]:
        """The size at a moment, and when it ends."""
        changes = self.changes
        passed = bisect.bisect_right(changes, at_ns, key=lambda change: change[0])
        size = changes[passed - 1][1] if passed else self.first_bytes
        return size, changes[passed][0] if passed < len(changes) else NEVER_NS

    def of(self, sent_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Of the bodies sent at these moments."""
        moments = np.array([at_ns for at_ns, _ in self.changes], np.int64)
        sizes = np.array([self.first_bytes, *(size for _, size in self.steps)], np.uint32)
        return sizes[np.searchsorted(moments, sent_ns, side="right")]


def body_sizes(message: Message, timeline: Timeline) -> BodySizes:
    after_seconds, steps = 0.0, []
    for step in message.steps:
        steps.append((round(after_seconds * NANOSECONDS), step.bytes))
        after_seconds += step.seconds
    return BodySizes(message.bytes, tuple(steps), timeline)


def envelope_bytes(message: Message) -> int:
    """How much of the envelope fits: all 32 bytes, or only the send time in tiny bodies."""
    return ENVELOPE_BYTES if message.bytes >= ENVELOPE_BYTES else 8


class Bodies(Protocol):
    """What bodies of messages are made by, whatever they are."""

    is_numbered: bool
    """Whether a message says which one it is, and of which run."""
    envelope_bytes: int
    """How much of a message's envelope goes into its body as it is."""

    @property
    def wants(self) -> frozenset[Part]:
        """What must be received of a message besides its envelope."""

    def set_size(self, body_bytes: int, messages: int) -> None:
        """From now on bodies have so many bytes, and at most so many are sent at once."""

    def payloads(self, messages: int) -> Payloads:
        """What follows the envelopes of a batch."""

    def accepted(self, batch: Batch, count: int) -> None:
        """The first of these messages are out."""


class PaddedBodies:
    """An envelope and padding. Random padding is drawn anew for every message that is sent, so that
    compression finds nothing between bodies.

    Which message gets which random bytes does not matter, so those that a transport did not accept
    serve the next batch: what is drawn is what is sent, however small the part of a batch is that
    a full socket takes. It is drawn when messages are out, and not while the next ones are due.
    """

    wants = ENVELOPE_ONLY

    def __init__(self, message: Message, seed: int) -> None:
        self.envelope_bytes = envelope_bytes(message)
        self.is_numbered = self.envelope_bytes == ENVELOPE_BYTES
        self._random = None if message.padding == "zero" else RandomBytes(seed)
        self._zeros = b""
        self._rows: RandomRows | None = None

    def set_size(self, body_bytes: int, messages: int) -> None:
        padding_bytes = body_bytes - self.envelope_bytes
        if self._random is None:
            self._zeros = bytes(padding_bytes)
        else:
            self._rows = RandomRows(self._random, messages, padding_bytes)

    def payloads(self, messages: int) -> bytes | U8:
        """One for all, or a row for each of the messages, always in the same memory."""
        return self._zeros if self._rows is None else self._rows.rows[:messages]

    def accepted(self, batch: Batch, count: int) -> None:
        if self._rows is not None:
            self._rows.renew(count)


MOST_IDS = 1 << 18
LONGEST_WAIT_NS = 5 * NANOSECONDS


class GivenIds:
    def __init__(self, now_ns: NowNs, most_ids: int = MOST_IDS) -> None:
        self._now_ns = now_ns
        self._most_ids = most_ids
        self._head_of: OrderedDict[bytes, bytes] = OrderedDict()
        """The envelope of each message by the ID it was given, the oldest first."""
        self._waiting: Received = nothing_received()
        self._waiting_texts: list[bytes] = []

    def learn(self, outcomes: Outcomes) -> None:
        if outcomes.answers is None:
            return
        for answer, envelope in zip(outcomes.answers, outcomes.envelope, strict=True):
            if answer:
                self._head_of[bytes(answer)] = envelope.tobytes()
        while len(self._head_of) > self._most_ids:
            self._head_of.popitem(last=False)

    def recognise(self, received: Received, texts: Sequence[bytes]) -> tuple[Received, Envelopes]:
        """Messages that are known now, or that have waited for too long, with their envelopes;
        those without an ID, or whose ID nobody has given, have an envelope of zeros."""
        received = replace(received, bodies=None, keys=None, headers=None)
        waiting = [part for part in (self._waiting, received) if len(part)]
        everything = joined(waiting)
        names = [*self._waiting_texts, *texts]
        envelopes = [self._head_of.get(name) for name in names]
        latest_ns = self._now_ns() - LONGEST_WAIT_NS
        stays = np.array(
            [
                envelope is None and bool(name)
                for envelope, name in zip(envelopes, names, strict=True)
            ],
            np.bool_,
        )
        stays &= everything.received_ns > latest_ns
        self._waiting_texts = [name for name, stay in zip(names, stays, strict=True) if stay]
        self._waiting = everything.at(np.flatnonzero(stays))
        known = [envelope for envelope, stay in zip(envelopes, stays, strict=True) if not stay]
        return everything.at(np.flatnonzero(~stays)), _envelopes(known)


def _envelopes(envelopes: Sequence[bytes | None]) -> Envelopes:
    if not envelopes:
        return empty_envelopes(0)
    nothing = bytes(empty_envelopes(1).nbytes)
    rows = np.frombuffer(b"".join([envelope or nothing for envelope in envelopes]), np.uint8)
    return envelopes_from_bytes(rows.reshape(len(envelopes), len(nothing)).copy())


MOST_MESSAGES = 1 << 20
FEWEST_MESSAGES_EACH = 256

_SLOT_DTYPE = np.dtype(
    [("number", "<u8"), ("sent_ns", "<u8"), ("intended_ns", "<u8"), ("content", "<i8")]
)
"""`number` is the sequence plus one: an empty slot is no message."""


class Known(NamedTuple):
    """What is known of messages that came back; times are 0 where nothing is."""

    is_known: Bool
    sent_ns: npt.NDArray[np.uint64]
    intended_ns: npt.NDArray[np.uint64]
    content: I64


class SentRing:
    def __init__(self, members: tuple[int, ...], most_messages: int = MOST_MESSAGES) -> None:
        """`members`: the producers by lane."""
        each = max(FEWEST_MESSAGES_EACH, most_messages // max(1, len(members)))
        self._each = np.uint64(each)
        self._slots = np.zeros((max(1, len(members)), each), _SLOT_DTYPE)
        self._members = np.array(sorted(members), np.int64)
        self._lane_of_member = np.argsort(np.array(members, np.int64))

    def add(self, lane: U32, envelope: Envelopes, hashes: I64 | None) -> None:
        place = envelope["sequence"] % self._each
        slots = np.empty(len(envelope), _SLOT_DTYPE)
        slots["number"] = envelope["sequence"] + np.uint64(1)
        slots["sent_ns"] = envelope["sent_ns"]
        slots["intended_ns"] = envelope["intended_ns"]
        slots["content"] = 0 if hashes is None else hashes
        self._slots[lane, place] = slots

    def find(self, envelope: Envelopes) -> Known:
        """Of envelopes with this run's tag; whatever they say, nothing is found that was not
        sent."""
        if not len(self._members):
            nothing = np.zeros(len(envelope), np.uint64)
            return Known(
                np.zeros(len(envelope), np.bool_), nothing, nothing, nothing.view(np.int64)
            )
        producer = envelope["producer"].astype(np.int64)
        at = np.minimum(np.searchsorted(self._members, producer), len(self._members) - 1)
        slots = self._slots[self._lane_of_member[at], envelope["sequence"] % self._each]
        is_known = (self._members[at] == producer) & (
            slots["number"] == envelope["sequence"] + np.uint64(1)
        )
        sent_ns, intended_ns = slots["sent_ns"] * is_known, slots["intended_ns"] * is_known
        return Known(is_known, sent_ns, intended_ns, slots["content"])


class RecordCodec:
    """Puts IDs into records; see `Bodies`."""

    is_numbered = True
    envelope_bytes = 0

    def __init__(
        self,
        carrier: Carrier,
        records: RecordSource | None,
        ordering: RecordOrdering | None,
        ring: SentRing,
        hashes_contents: bool = False,
        given_ids: GivenIds | None = None,
    ) -> None:
        """`records` and their `ordering` are for agents that send. `given_ids`: where it is the
        system that gives IDs."""
        self._carrier = carrier
        self._records = records
        self._ordering = ordering
        self._ring = ring
        self._hashes_contents = hashes_contents
        self._given_ids = given_ids

    @property
    def wants(self) -> frozenset[Part]:
        """What must be received of a message."""
        return self._carrier.wants | ({Part.BODY} if self._hashes_contents else set())

    # -- sending ---------------------------------------------------------------------------------

    def set_size(self, body_bytes: int, messages: int) -> None:
        """Every record has its own size."""

    def payloads(self, messages: int) -> Payloads:
        """Known once the batch is prepared."""
        return b""

    def prepare(self, batch: Batch) -> None:
        """Turn envelopes into messages; the times in them need not be known yet."""
        assert self._records is not None
        assert self._ordering is not None
        numbers = self._ordering.numbers(batch.envelope["producer"], batch.envelope["sequence"])
        records = self._records.read(numbers)
        try:
            carried = self._carrier.put(id_texts(encode_ids(batch.envelope)), records)
        except NoPlace as nowhere:
            place = self._records.place(int(numbers[nowhere.place]))
            raise RunError(f"{place}: {nowhere}, and the record cannot be sent") from nowhere
        batch.payload = carried.bodies
        batch.keys = carried.keys
        batch.headers = carried.headers
        batch.sizes = np.fromiter(map(len, carried.bodies), np.uint32, len(batch))
        if self._hashes_contents:
            batch.hashes = content_hashes(records.bodies)

    def accepted(self, batch: Batch, count: int) -> None:
        """The first of these messages are out."""
        hashes = None if batch.hashes is None else batch.hashes[:count]
        self._ring.add(batch.lane[:count], batch.envelope[:count], hashes)

    def answered(self, outcomes: Outcomes) -> None:
        """What became of messages; answers may name their IDs."""
        if self._given_ids is not None:
            self._given_ids.learn(outcomes)

    # -- receiving -------------------------------------------------------------------------------

    def identify(self, received: Received) -> Received:
        """The same messages, with the envelopes they were sent with as far as they are known
        here."""
        hashes = None
        if self._hashes_contents and len(received):
            hashes = content_hashes(self._carrier.contents(received))
        if self._given_ids is not None:
            texts = self._carrier.find(received) if len(received) else []
            received.hashes = hashes
            received, envelope = self._given_ids.recognise(received, texts)
            hashes = received.hashes
        elif not len(received):
            return received
        else:
            envelope, _ = decode_ids(id_rows(self._carrier.find(received)))
        known = self._ring.find(envelope)
        envelope["sent_ns"] = known.sent_ns
        envelope["intended_ns"] = known.intended_ns
        received.rows["envelope"] = envelope
        received.bodies = received.keys = received.headers = None
        if hashes is not None:
            received.hashes = hashes
            received.rows["corrupted"] = known.is_known & (hashes != known.content)
        return received


@contextmanager
def bodies_for(assignment: Assignment, now_ns: NowNs) -> Iterator[Bodies]:
    """With records, reads the data set once through, to know where they are: raises
    ConfigurationError if it is not on this machine."""
    scenario = assignment.scenario
    carrier = make_carrier(scenario)
    if carrier is None:
        yield PaddedBodies(scenario.message, seed=assignment.run_tag + assignment.agent)
        return
    ring = SentRing(assignment.producer_numbers)
    given = GivenIds(now_ns) if scenario.carrier == ACKNOWLEDGEMENT else None
    is_hashed = scenario.identity.content_hash
    if not assignment.producers:
        yield RecordCodec(carrier, None, None, ring, is_hashed, given)
        return
    with closing(_open_records(assignment, carrier)) as records:
        ordering = ordering_of(scenario.dataset, records.count, scenario.producers)
        yield RecordCodec(carrier, records, ordering, ring, is_hashed, given)


def _open_records(assignment: Assignment, carrier: Carrier) -> RecordSource:
    scenario = assignment.scenario
    if scenario.dataset.path is not None:
        return RecordFiles(scenario.dataset)
    if assignment.rows_at is not None:
        return ColumnRecords(Path(assignment.rows_at))
    seed = assignment.run_tag + assignment.agent
    return MadeRecords(scenario.message, carrier.added_bytes, seed)
