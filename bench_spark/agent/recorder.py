"""Counters and histograms of one agent: columns in, event rows out.

The hot path only copies columns into preallocated buffers; they are folded thousands of rows at a
time, because a fold has a price of its own whatever its size. Single-threaded by design: one
recorder per agent, owned by the agent's loop, and merged exactly by the driver.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import numpy.typing as npt

from bench_spark.agent.cells import Cell, Cells
from bench_spark.agent.judging import (
    RECEIVED_DTYPE,
    judge,
    possible_send_times,
    possible_times,
)
from bench_spark.agent.recorder_setup import RecorderSetup
from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.core.envelope import ENVELOPE_DTYPE, Envelopes, envelope_bytes
from bench_spark.core.sequences import SequenceSets
from bench_spark.transports.base import I64, U32, Bool, OutcomeKind, Outcomes, Received

FOLD_ROWS = 4096
"""Rows gathered before they are folded: some 100 ns a row keeps a fold well below a millisecond."""

SPARE_TIME_ROWS = 256
"""Rows worth a fold where there is time for one: it costs some 100 us whatever it folds."""

PRODUCER = "producer"
CONSUMER = "consumer"

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


class Recorder:
    def __init__(self, setup: RecorderSetup, timeline: Timeline) -> None:
        self._setup = setup
        self.goes_by_sending = setup.goes_by_sending
        self._phase_by = "sent_ns" if setup.goes_by_sending else "intended_ns"
        self._timeline = timeline
        places = {
            PRODUCER: setup.destinations_by_producer if setup.by_destination else (),
            CONSUMER: setup.subscriptions if setup.by_destination else (),
        }
        self._cells = Cells(setup.shape, timeline, places)
        self._sent = np.zeros(FOLD_ROWS, dtype=ENVELOPE_DTYPE)
        self._sent_lane = np.zeros(FOLD_ROWS, dtype=np.uint32)
        self._sent_size = np.zeros(FOLD_ROWS, dtype=np.uint32)
        self._sent_rows = 0
        self._received = np.zeros(FOLD_ROWS, dtype=RECEIVED_DTYPE)
        self._received_rows = 0
        self._outcomes = np.zeros(FOLD_ROWS, dtype=_OUTCOME_DTYPE)
        self._outcome_rows = 0
        self._inserts = np.zeros((FOLD_ROWS, 3), dtype=np.int64)
        self._insert_rows = 0
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
        self.received_by_subscription = np.zeros(max(1, len(setup.subscriptions)), np.int64)
        """Different messages, of both phases, as the two below."""
        self.confirmed_by_lane = np.zeros(lanes, np.int64)
        self._failed_by_lane = np.zeros(lanes, np.int64)
        self.sent_by_lane = {phase: np.zeros(lanes, np.int64) for phase in (WARMUP, MEASURE)}

    @property
    def under_way(self) -> I64:
        """By lane: sent, and neither refused nor returned."""
        by_lane: I64 = self.sent_by_lane[WARMUP] + self.sent_by_lane[MEASURE] - self._failed_by_lane
        return by_lane

    # -- columns in ------------------------------------------------------------------------------

    def sent(
        self,
        lane: U32,
        head: Envelopes,
        sizes: U32 | None = None,
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
            rows["corrupted"] = received.corrupted[chosen]
            rows["head"] = received.head[chosen]
            self._received_rows += room
            first += room
            if self._received_rows == FOLD_ROWS:
                self._fold_received()

    def has_possible_times(self, head: Envelopes, received_ns: I64) -> Bool:
        """Of which messages of this run it can be true when they say they were sent and due."""
        if self._setup.is_carried or not self._setup.has_accounts:
            return np.ones(len(head), np.bool_)
        return possible_times(head, received_ns, self._setup, self._timeline)

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

    def answered(self, at_ns: int, lane: U32, head: Envelopes) -> None:
        """Senders that waited for these messages are free again."""
        rows = len(head)
        kinds = np.full(rows, ANSWERED, np.uint8)
        self.outcomes(Outcomes.of_columns(np.full(rows, at_ns, np.int64), lane, kinds, head))

    def given_up(self, at_ns: int, head: Envelopes) -> None:
        """Senders have gone on without these messages."""
        measured = self._timeline.phase_of(head["intended_ns"].astype(np.int64))
        for phase, messages in ((MEASURE, measured), (WARMUP, ~measured)):
            if messages.any():
                count = int(np.count_nonzero(messages))
                self._cells.count(PRODUCER, phase, at_ns, "given_up", count)

    def due(self, phase: str, at_ns: int, messages: int) -> None:
        self._cells.count(PRODUCER, phase, at_ns, "due", messages)

    def acknowledged(self, at_ns: int, messages: int) -> None:
        if messages:
            self._cells.count(CONSUMER, self._phase_at(at_ns), at_ns, "acked", messages)

    def error(self, role: str, at_ns: int) -> None:
        self._cells.count(role, self._phase_at(at_ns), at_ns, "errors", 1)

    def blocked(self, at_ns: int, blocked_ns: int) -> None:
        self._cells.count(PRODUCER, self._phase_at(at_ns), at_ns, "blocked_ns", blocked_ns)

    def repeats_dropped(self, at_ns: int, messages: int) -> None:
        self._cells.count(CONSUMER, self._phase_at(at_ns), at_ns, "repeats_dropped", messages)

    def disconnected(self, role: str, at_ns: int, down_ns: int) -> None:
        self._cells.count(role, self._phase_at(at_ns), at_ns, "disconnected_ns", down_ns)

    def reconnected(self, role: str, at_ns: int) -> None:
        self._cells.count(role, self._phase_at(at_ns), at_ns, "reconnects", 1)

    def insert_duration(self, at_ns: int, duration_ns: int, messages: int) -> None:
        """The send call took that long for every message in it."""
        self._inserts[self._insert_rows] = (at_ns, duration_ns, messages)
        self._insert_rows += 1
        if self._insert_rows == FOLD_ROWS:
            self._fold_inserts()

    def _phase_at(self, at_ns: int) -> str:
        return MEASURE if at_ns >= self._timeline.measure_start_ns else WARMUP

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
        measured = self._timeline.phase_of(head[self._phase_by].astype(np.int64))
        tick = self._timeline.tick_of(sent_ns)
        lanes = len(self.sent_by_lane[MEASURE])
        in_measure = np.bincount(lane[measured], minlength=lanes)
        self.sent_by_lane[MEASURE] += in_measure
        self.sent_by_lane[WARMUP] += np.bincount(lane, minlength=lanes) - in_measure
        for cell, mask in self._cells.of_rows(PRODUCER, measured, tick, lane):
            cell.counters["sent"] += int(np.count_nonzero(mask))
            cell.counters["bytes"] += self._bytes_sent(sent_ns, mask)
            if self._setup.has_schedule:
                cell.histogram("send_lag").record_ns((sent_ns - intended_ns)[mask])

    def _bytes_sent(self, sent_ns: I64, mask: Bool) -> int:
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
        measured = self._timeline.phase_of(head[self._phase_by].astype(np.int64))
        tick = self._timeline.tick_of(at_ns)
        lane = outcomes["lane"].astype(np.int64)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            of_kind = kinds == kind
            counter, measure = _OUTCOME_COUNTERS.get(kind), _OUTCOME_MEASURES.get(kind)
            for cell, mask in self._cells.of_rows(PRODUCER, measured, tick, lane, of_kind):
                if counter is not None:
                    cell.counters[counter] += int(np.count_nonzero(mask))
                if measure is not None:
                    latency_ns = at_ns[mask] - head["sent_ns"][mask].astype(np.int64)
                    cell.histogram(measure).record_ns(latency_ns)
            if counter is not None:
                is_confirmed = kind == OutcomeKind.CONFIRMED
                by_lane = self.confirmed_by_lane if is_confirmed else self._failed_by_lane
                by_lane += np.bincount(lane[of_kind], minlength=len(by_lane))
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
        for cell, mask in self._cells.of_rows(PRODUCER, measured, tick, None):
            durations = np.repeat(duration_ns[mask], messages[mask])
            cell.histogram("insert_duration").record_ns(durations)

    def _fold_received(self) -> None:
        rows, self._received_rows = self._received_rows, 0
        if not rows:
            return
        if self._setup.takes_any:
            self._fold_any(self._received[:rows])
            return
        table = self._received[:rows]
        received_ns = table["received_ns"]
        self._fold_sent()  # which numbers are in use is known after that
        sent_by_lane = self.sent_by_lane[WARMUP] + self.sent_by_lane[MEASURE]
        judged = judge(table, self._setup, self._timeline, self.received_sets, sent_by_lane)
        ours, sent_ns, intended_ns = judged.ours, judged.sent_ns, judged.intended_ns
        once = ours & ~judged.duplicate
        self.received_once += int(np.count_nonzero(once))
        self.received_measured += int(np.count_nonzero(ours & self._timeline.phase_of(received_ns)))
        tick = self._timeline.tick_of(received_ns)
        place = table["subscription"].astype(np.int64)
        self.received_by_subscription += np.bincount(
            place[once], minlength=len(self.received_by_subscription)
        )
        for cell, mask in self._cells.of_rows(CONSUMER, judged.measured, tick, place):
            _count_received(cell, mask, table, (ours, judged.malformed, judged.foreign))
            counters = cell.counters
            counters["unexpected"] += int(np.count_nonzero(judged.unexpected & mask))
            counters["duplicates"] += int(np.count_nonzero(judged.duplicate & mask))
            counters["out_of_order"] += int(np.count_nonzero(judged.out_of_order & mask))
            counters["corrupted"] += int(np.count_nonzero(table["corrupted"] & ours & mask))
            timed = once & judged.has_times & mask
            cell.histogram("latency").record_ns((received_ns - sent_ns)[timed])
            if self._setup.has_schedule and self._setup.has_accounts:
                if self._setup.is_carried:
                    # When it was due may be known of a message that another agent sent.
                    timed = once & (intended_ns > 0) & mask
                delivery_ns = (received_ns - intended_ns)[timed]
                cell.histogram("delivery_latency").record_ns(delivery_ns)

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
        stamps = self._setup.foreign_stamps
        is_timed, sent_ns = none, table["received_ns"]
        if stamps is not None:
            sent_ns = stamps.sent_ns(envelope_bytes(np.ascontiguousarray(table["head"])))
            is_timed = (table["size"] >= stamps.body_bytes) & possible_send_times(
                sent_ns, table["received_ns"]
            )
        untimed = none if stamps is None else ~is_timed
        place = table["subscription"].astype(np.int64)
        for cell, mask in self._cells.of_rows(CONSUMER, measured, tick, place):
            _count_received(cell, mask, table, (every, untimed, none))
            if stamps is not None:
                latency_ns = (table["received_ns"] - sent_ns)[mask & is_timed]
                cell.histogram("latency").record_ns(latency_ns)

    # -- rows out --------------------------------------------------------------------------------

    def rows_until(self, at_ns: int) -> list[EventRow]:
        """Rows of the ticks that are over; what arrives for them later makes further rows."""
        self.fold()
        return self._cells.take_before(self._timeline.tick_at(at_ns))

    def all_rows(self) -> list[EventRow]:
        self.fold()
        return self._cells.take_all()


def _count_received(
    cell: Cell, mask: Bool, table: npt.NDArray[np.void], judged: tuple[Bool, Bool, Bool]
) -> None:
    ours, malformed, foreign = judged
    counters = cell.counters
    counters["received"] += int(np.count_nonzero(ours & mask))
    counters["malformed"] += int(np.count_nonzero(malformed & mask))
    counters["foreign"] += int(np.count_nonzero(foreign & mask))
    counters["redelivered"] += int(np.count_nonzero(table["redelivered"] & mask))
    counters["bytes"] += int(table["size"][ours & mask].sum(dtype=np.int64))
