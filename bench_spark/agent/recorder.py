"""Counters and histograms of one agent: columns in, event rows out.

The hot path only copies columns into preallocated buffers; they are folded thousands of rows at a
time, because a fold has a price of its own whatever its size. Single-threaded by design: one
recorder per agent, owned by the agent's loop, and merged exactly by the driver.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from bench_spark.agent.rows import EventRow
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.measure.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    TIMESTAMP_BYTES,
    Envelopes,
)
from bench_spark.measure.hdr import Histogram, HistogramShape
from bench_spark.measure.sequences import SequenceSets, plausible
from bench_spark.transports.base import OutcomeKind, Outcomes, Received

FOLD_ROWS = 4096
"""Rows gathered before they are folded: some 100 ns a row keeps a fold well below a millisecond."""

SPARE_TIME_ROWS = 256
"""Rows worth a fold where there is time for one: it costs some 100 us whatever it folds."""

PRODUCER = "producer"
CONSUMER = "consumer"

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

_OUTCOME_COUNTERS: dict[int, str] = {
    OutcomeKind.CONFIRMED: "confirmed",
    OutcomeKind.REFUSED: "refused",
    OutcomeKind.RETURNED: "returned",
}

ANSWERED = max(OutcomeKind) + 1
"""Beside what brokers say of messages: that the sender of one has it back."""

_OUTCOME_MEASURES: dict[int, str] = {
    OutcomeKind.CONFIRMED: "confirm_latency",
    ANSWERED: "round_trip",
}

_OUTCOME_DTYPE = np.dtype(
    [("at_ns", "<i8"), ("lane", "<u4"), ("kind", "u1"), ("head", ENVELOPE_DTYPE)]
)
_RECEIVED_DTYPE = np.dtype(
    [
        ("received_ns", "<i8"),
        ("subscription", "<i4"),
        ("size", "<u4"),
        ("redelivered", "?"),
        ("corrupted", "?"),
        ("head", ENVELOPE_DTYPE),
    ]
)


@dataclass
class _Cell:
    """One role, phase, tick and destination being added up."""

    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    histograms: dict[str, Histogram] = field(default_factory=dict)


CellKey = tuple[int, str, str, str | None]
"""Tick, role, phase, destination."""


@dataclass(frozen=True)
class RecorderSetup:
    """What the recorder must know of the run to judge a message."""

    shape: HistogramShape
    run_tag: int
    producers: int
    """Producers in the whole run: a higher number in an envelope is no message of ours."""
    stream_of_producer: I64
    """Per producer of the run: its rank among the producers of its group."""
    streams_per_subscription: int
    subscriptions: tuple[str, ...]
    """Names of the subscriptions this agent serves: of the destination, or the first of several."""
    destinations_by_producer: tuple[str, ...]
    """Per local producer lane: the name of its destination."""
    sizes: BodySizes
    has_schedule: bool
    by_destination: bool = False
    takes_any: bool = False
    """The run only consumes: messages of any origin count, and their bodies are not looked into."""
    reads_timestamps: bool = False
    """With `takes_any`: except for when they were sent, which is where our own have it."""
    is_carried: bool = False
    """Messages say by IDs which they are. Heads are made from these: without one the run tag is 0,
    and times are 0 of messages that another agent sent."""
    first_measured: I64 | None = None
    """Per producer of the run: from which number on such messages belong to the measured phase.
    Without it they belong to the phase in which they arrive."""

    @property
    def has_accounts(self) -> bool:
        return self.is_carried or self.sizes.smallest_bytes >= ENVELOPE_BYTES


class Recorder:
    def __init__(self, setup: RecorderSetup, timeline: Timeline) -> None:
        self._setup = setup
        self._timeline = timeline
        self._cells: dict[CellKey, _Cell] = {}
        self._sent = np.zeros(FOLD_ROWS, dtype=ENVELOPE_DTYPE)
        self._sent_lane = np.zeros(FOLD_ROWS, dtype=np.uint32)
        self._sent_size = np.zeros(FOLD_ROWS, dtype=np.uint32)
        self._sent_rows = 0
        self._received = np.zeros(FOLD_ROWS, dtype=_RECEIVED_DTYPE)
        self._received_rows = 0
        self._outcomes = np.zeros(FOLD_ROWS, dtype=_OUTCOME_DTYPE)
        self._outcome_rows = 0
        self._inserts = np.zeros((FOLD_ROWS, 3), dtype=np.int64)
        self._insert_rows = 0
        self._row_number = 0
        groups = max(1, len(setup.subscriptions) * setup.streams_per_subscription)
        self.received_sets = SequenceSets(groups)
        lanes = max(1, len(setup.destinations_by_producer))
        self.confirmed_sets = SequenceSets(lanes)
        self.failed_sets = SequenceSets(lanes)
        self.received_once = 0
        self.received_measured = 0
        """How many arrived since the measured phase began, whichever phase they belong to."""
        self.received_span_ns: tuple[int, int] | None = None
        """With `takes_any`: when the first and the last of these arrived."""
        self.sent_by_lane = {phase: np.zeros(lanes, np.int64) for phase in (WARMUP, MEASURE)}

    # -- columns in ------------------------------------------------------------------------------

    def sent(
        self,
        lane: npt.NDArray[np.uint32],
        head: Envelopes,
        sizes: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Messages accepted by the transport; the arrays may be reused by the caller. `sizes` (of
        these and maybe more) are given where they do not follow from the time."""
        first = 0
        while first < len(head):
            room = min(FOLD_ROWS - self._sent_rows, len(head) - first)
            at = self._sent_rows
            self._sent[at : at + room] = head[first : first + room]
            self._sent_lane[at : at + room] = lane[first : first + room]
            if sizes is not None:
                self._sent_size[at : at + room] = sizes[first : first + room]
            self._sent_rows += room
            first += room
            if self._sent_rows == FOLD_ROWS:
                self._fold_sent()

    def received(self, received: Received, subscription: I64) -> None:
        """Messages received; `subscription` is the place of the one each came by."""
        first = 0
        while first < len(received):
            room = min(FOLD_ROWS - self._received_rows, len(received) - first)
            rows = self._received[self._received_rows : self._received_rows + room]
            chosen = slice(first, first + room)
            rows["received_ns"] = received.received_ns[chosen]
            rows["subscription"] = subscription[chosen]
            rows["size"] = received.size[chosen]
            rows["redelivered"] = received.redelivered[chosen]
            if received.corrupted is not None:
                rows["corrupted"] = received.corrupted[chosen]
            rows["head"] = received.head[chosen]
            self._received_rows += room
            first += room
            if self._received_rows == FOLD_ROWS:
                self._fold_received()

    def outcomes(self, outcomes: Outcomes) -> None:
        """What became of messages sent earlier."""
        first = 0
        while first < len(outcomes):
            room = min(FOLD_ROWS - self._outcome_rows, len(outcomes) - first)
            rows = self._outcomes[self._outcome_rows : self._outcome_rows + room]
            chosen = slice(first, first + room)
            rows["at_ns"] = outcomes.at_ns[chosen]
            rows["lane"] = outcomes.lane[chosen]
            rows["kind"] = outcomes.kind[chosen]
            rows["head"] = outcomes.head[chosen]
            self._outcome_rows += room
            first += room
            if self._outcome_rows == FOLD_ROWS:
                self._fold_outcomes()

    def answered(self, at_ns: int, lane: npt.NDArray[np.uint32], head: Envelopes) -> None:
        """Senders that waited for these messages are free again."""
        rows = len(head)
        kinds = np.full(rows, ANSWERED, np.uint8)
        self.outcomes(Outcomes(np.full(rows, at_ns, np.int64), lane, kinds, head))

    def due(self, phase: str, at_ns: int, messages: int) -> None:
        self._count(PRODUCER, phase, at_ns, "due", messages)

    def acknowledged(self, at_ns: int, messages: int) -> None:
        if messages:
            self._count(CONSUMER, self._phase_at(at_ns), at_ns, "acked", messages)

    def error(self, role: str, at_ns: int) -> None:
        self._count(role, self._phase_at(at_ns), at_ns, "errors", 1)

    def blocked(self, at_ns: int, blocked_ns: int) -> None:
        self._count(PRODUCER, self._phase_at(at_ns), at_ns, "blocked_ns", blocked_ns)

    def disconnected(self, role: str, at_ns: int, down_ns: int) -> None:
        self._count(role, self._phase_at(at_ns), at_ns, "disconnected_ns", down_ns)

    def reconnected(self, role: str, at_ns: int) -> None:
        self._count(role, self._phase_at(at_ns), at_ns, "reconnects", 1)

    def insert_duration(self, at_ns: int, duration_ns: int, messages: int) -> None:
        """The send call took that long for every message in it."""
        self._inserts[self._insert_rows] = (at_ns, duration_ns, messages)
        self._insert_rows += 1
        if self._insert_rows == FOLD_ROWS:
            self._fold_inserts()

    # -- folding ---------------------------------------------------------------------------------

    def fold(self) -> None:
        self._fold_sent()
        self._fold_received()
        self._fold_outcomes()
        self._fold_inserts()

    def fold_some(self) -> None:
        """Fold the longest of the buffers, if that is worth while: for a spare fraction of a
        millisecond, so that none of them fills up and has to be folded when there is none."""
        rows, fold = max(
            (self._sent_rows, self._fold_sent),
            (self._received_rows, self._fold_received),
            (self._outcome_rows, self._fold_outcomes),
            (self._insert_rows, self._fold_inserts),
            key=itemgetter(0),
        )
        if rows >= SPARE_TIME_ROWS:
            fold()

    def _fold_sent(self) -> None:
        rows, self._sent_rows = self._sent_rows, 0
        if not rows:
            return
        head = self._sent[:rows]
        lane = self._sent_lane[:rows].astype(np.int64)
        sent_ns = head["sent_ns"].astype(np.int64)
        intended_ns = head["intended_ns"].astype(np.int64)
        measured = self._timeline.phase_of(intended_ns)
        tick = self._timeline.tick_of(sent_ns)
        lanes = len(self.sent_by_lane[MEASURE])
        in_measure = np.bincount(lane[measured], minlength=lanes)
        self.sent_by_lane[MEASURE] += in_measure
        self.sent_by_lane[WARMUP] += np.bincount(lane, minlength=lanes) - in_measure
        for key, mask in self._cells_of(PRODUCER, measured, tick, lane):
            messages = int(np.count_nonzero(mask))
            counters = self._cells[key].counters
            counters["sent"] += messages
            counters["bytes"] += self._bytes_sent(sent_ns, mask)
            if self._setup.has_schedule:
                self._histogram(key, "send_lag").record_ns((sent_ns - intended_ns)[mask])

    def _bytes_sent(self, sent_ns: I64, mask: Mask) -> int:
        """Of some of the messages that are being folded."""
        if self._setup.is_carried:
            return int(self._sent_size[: len(mask)][mask].sum(dtype=np.int64))
        return self._setup.sizes.total_bytes(sent_ns[mask])

    def _fold_outcomes(self) -> None:
        rows, self._outcome_rows = self._outcome_rows, 0
        if not rows:
            return
        outcomes = self._outcomes[:rows]
        at_ns, kinds, head = outcomes["at_ns"], outcomes["kind"], outcomes["head"]
        measured = self._timeline.phase_of(head["intended_ns"].astype(np.int64))
        tick = self._timeline.tick_of(at_ns)
        lane = outcomes["lane"].astype(np.int64)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            of_kind = kinds == kind
            counter, measure = _OUTCOME_COUNTERS.get(kind), _OUTCOME_MEASURES.get(kind)
            for key, mask in self._cells_of(PRODUCER, measured, tick, lane, of_kind):
                if counter is not None:
                    self._cells[key].counters[counter] += int(np.count_nonzero(mask))
                if measure is not None:
                    latency_ns = at_ns[mask] - head["sent_ns"][mask].astype(np.int64)
                    self._histogram(key, measure).record_ns(latency_ns)
            if self._setup.has_accounts and counter is not None:
                sets = self.confirmed_sets if kind == OutcomeKind.CONFIRMED else self.failed_sets
                sets.add(lane[of_kind], head["sequence"][of_kind].astype(np.int64))

    def _fold_inserts(self) -> None:
        rows, self._insert_rows = self._insert_rows, 0
        if not rows:
            return
        at_ns, duration_ns, messages = self._inserts[:rows].T
        measured = self._timeline.phase_of(at_ns)
        tick = self._timeline.tick_of(at_ns)
        for key, mask in self._cells_of(PRODUCER, measured, tick, None):
            durations = np.repeat(duration_ns[mask], messages[mask])
            self._histogram(key, "insert_duration").record_ns(durations)

    def _fold_received(self) -> None:
        rows, self._received_rows = self._received_rows, 0
        if not rows:
            return
        if self._setup.takes_any:
            self._fold_any(self._received[:rows])
            return
        table = self._received[:rows]
        received_ns, head, size = table["received_ns"], table["head"], table["size"]
        subscription = table["subscription"].astype(np.int64)
        sent_ns = head["sent_ns"].astype(np.int64)
        if self._setup.has_accounts:
            intended_ns = head["intended_ns"].astype(np.int64)
            malformed, foreign = self._not_ours(head, size)
        else:
            # Bodies too small for an envelope: the send time is all there is.
            intended_ns = sent_ns
            malformed = size < TIMESTAMP_BYTES
            foreign = np.zeros(rows, np.bool_)
        ours = ~(malformed | foreign)
        has_times = ours & (sent_ns > 0)
        measured = self._timeline.phase_of(np.where(has_times, intended_ns, received_ns))
        if self._setup.first_measured is not None:
            of_others = ours & ~has_times
            first = self._setup.first_measured[head["producer"][of_others]]
            measured[of_others] = head["sequence"][of_others].astype(np.int64) >= first
        tick = self._timeline.tick_of(received_ns)
        duplicate = np.zeros(rows, np.bool_)
        out_of_order = np.zeros(rows, np.bool_)
        if self._setup.has_accounts and ours.any():
            producer = head["producer"][ours].astype(np.int64)
            group = (
                subscription[ours] * self._setup.streams_per_subscription
                + self._setup.stream_of_producer[producer]
            )
            added = self.received_sets.add(group, head["sequence"][ours].astype(np.int64))
            duplicate[ours] = added.duplicate
            out_of_order[ours] = added.out_of_order
        once = ours & ~duplicate
        self.received_once += int(np.count_nonzero(once))
        self.received_measured += int(np.count_nonzero(ours & self._timeline.phase_of(received_ns)))
        for key, mask in self._cells_of(CONSUMER, measured, tick, subscription):
            self._count_received(key, mask, table, (ours, malformed, foreign))
            counters = self._cells[key].counters
            counters["duplicates"] += int(np.count_nonzero(duplicate & mask))
            counters["out_of_order"] += int(np.count_nonzero(out_of_order & mask))
            counters["corrupted"] += int(np.count_nonzero(table["corrupted"] & ours & mask))
            timed = once & has_times & mask
            self._histogram(key, "latency").record_ns((received_ns - sent_ns)[timed])
            if self._setup.has_schedule and self._setup.has_accounts:
                if self._setup.is_carried:
                    # When it was due may be known of a message that another agent sent.
                    timed = once & (intended_ns > 0) & mask
                self._histogram(key, "delivery_latency").record_ns(
                    (received_ns - intended_ns)[timed]
                )

    def _fold_any(self, table: npt.NDArray[np.void]) -> None:
        """Messages of whoever: each belongs to the phase in which it arrived. What the broker had
        pushed before the start is received at the start."""
        received_ns = np.maximum(table["received_ns"], self._timeline.start_ns)
        measured = self._timeline.phase_of(received_ns)
        self.received_once += len(table)
        if measured.any():
            self.received_measured += int(np.count_nonzero(measured))
            first, last = int(received_ns[measured].min()), int(received_ns[measured].max())
            known = self.received_span_ns or (first, last)
            self.received_span_ns = (min(known[0], first), max(known[1], last))
        tick = self._timeline.tick_of(received_ns)
        every, none = np.ones(len(table), np.bool_), np.zeros(len(table), np.bool_)
        place = table["subscription"].astype(np.int64)
        for key, mask in self._cells_of(CONSUMER, measured, tick, place):
            self._count_received(key, mask, table, (every, none, none))
            if self._setup.reads_timestamps:
                sent_ns = table["head"]["sent_ns"].astype(np.int64)
                timed = mask & (table["size"] >= TIMESTAMP_BYTES) & (sent_ns > 0)
                latency_ns = (table["received_ns"] - sent_ns)[timed]
                self._histogram(key, "latency").record_ns(latency_ns)

    def _count_received(
        self,
        key: CellKey,
        mask: Mask,
        table: npt.NDArray[np.void],
        judged: tuple[Mask, Mask, Mask],
    ) -> None:
        ours, malformed, foreign = judged
        counters = self._cells[key].counters
        counters["received"] += int(np.count_nonzero(ours & mask))
        counters["malformed"] += int(np.count_nonzero(malformed & mask))
        counters["foreign"] += int(np.count_nonzero(foreign & mask))
        counters["redelivered"] += int(np.count_nonzero(table["redelivered"] & mask))
        counters["bytes"] += int(table["size"][ours & mask].sum(dtype=np.int64))

    def _not_ours(self, head: Envelopes, size: npt.NDArray[np.uint32]) -> tuple[Mask, Mask]:
        """Malformed: cannot be a message of this tool. Foreign: one of another run."""
        nameless = head["run_tag"] == 0 if self._setup.is_carried else size < ENVELOPE_BYTES
        foreign = ~nameless & (head["run_tag"] != self._setup.run_tag)
        impossible = (head["producer"] >= self._setup.producers) | ~plausible(
            head["sequence"].astype(np.int64)
        )
        return nameless | (~foreign & impossible), foreign

    # -- cells -----------------------------------------------------------------------------------

    def _cells_of(
        self,
        role: str,
        measured: Mask,
        tick: I64,
        place: I64 | None,
        within: Mask | None = None,
    ) -> list[tuple[CellKey, Mask]]:
        """The cells that these rows fall into, each with the mask of its rows.

        Nearly always that is one cell: a fold spans some milliseconds. `place` is the lane or
        subscription, where rows are kept apart by destination.
        """
        names = self._place_names(role) if place is not None else ()
        code = tick * 2 + measured
        if names and place is not None:
            code = code * len(names) + place
        chosen = code if within is None else code[within]
        found: list[tuple[CellKey, Mask]] = []
        is_one = len(chosen) > 0 and chosen.min() == chosen.max()
        for value in chosen[:1] if is_one else np.unique(chosen):
            mask = code == value
            if within is not None:
                mask &= within
            rest, name = divmod(int(value), len(names)) if names else (int(value), None)
            phase = MEASURE if rest & 1 else WARMUP
            key = (rest >> 1, role, phase, names[name] if name is not None else None)
            self._cells.setdefault(key, _Cell())
            found.append((key, mask))
        return found

    def _place_names(self, role: str) -> tuple[str, ...]:
        if not self._setup.by_destination:
            return ()
        setup = self._setup
        return setup.subscriptions if role == CONSUMER else setup.destinations_by_producer

    def _histogram(self, key: CellKey, measure: str) -> Histogram:
        histograms = self._cells[key].histograms
        if measure not in histograms:
            histograms[measure] = Histogram(self._setup.shape)
        return histograms[measure]

    def _count(self, role: str, phase: str, at_ns: int, counter: str, amount: int) -> None:
        key = (self._timeline.tick_at(at_ns), role, phase, None)
        self._cells.setdefault(key, _Cell()).counters[counter] += amount

    def _phase_at(self, at_ns: int) -> str:
        return MEASURE if at_ns >= self._timeline.measure_start_ns else WARMUP

    # -- rows out --------------------------------------------------------------------------------

    def rows_until(self, at_ns: int) -> list[EventRow]:
        """Rows of the ticks that are over; what arrives for them later makes further rows."""
        self.fold()
        current = self._timeline.tick_at(at_ns)
        return self._take([key for key in self._cells if key[0] < current])

    def all_rows(self) -> list[EventRow]:
        self.fold()
        return self._take(list(self._cells))

    def _take(self, keys: list[CellKey]) -> list[EventRow]:
        rows = []
        for key in sorted(keys, key=lambda key: (key[0], key[1], key[2], key[3] or "")):
            tick, role, phase, destination = key
            cell = self._cells.pop(key)
            rows.append(
                EventRow(
                    row_number=self._row_number,
                    role=role,
                    phase=phase,
                    tick=tick,
                    tick_start_ns=self._timeline.tick_start_ns(tick),
                    tick_seconds=self._timeline.tick_seconds(tick),
                    destination=destination,
                    counters=dict(cell.counters),
                    histograms={
                        measure: histogram.sparse()
                        for measure, histogram in cell.histograms.items()
                        if histogram.count
                    },
                )
            )
            self._row_number += 1
        return rows
