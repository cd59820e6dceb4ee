"""Counters and histograms of one agent: rows in, event rows out.

Every batch is recorded at once, by one call of a kernel (`classification.py`); only what is rare
comes back to Python: another interval, sequence sets that must grow, a schedule that changes its
rate. There is one interval per tick, role, phase and, where the scenario asks for it, destination
(`Intervals`). Single-threaded by design: one recorder per agent, owned by the agent's loop, and
merged exactly by the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench_spark.agent.classification import (
    ANSWERED,
    ANY_DESTINATION,
    COUNTERS,
    DESTINATION,
    FIRST_HISTOGRAM,
    FULL_SETS,
    HAS_HISTOGRAMS,
    INSERT_KIND,
    IS_BY_SENDING,
    IS_MEASURED,
    MEASURED_FROM,
    ONCE,
    OTHER_RATE,
    OUTCOME_KIND,
    PARTY_DTYPE,
    RECEIVED_COUNTERS,
    RUN_DTYPE,
    RUN_WORDS,
    SECOND_HISTOGRAM,
    SENT_COUNTERS,
    TICK_END,
    TICK_FROM,
    RecordedKind,
    fill_subscriptions,
    find_possible_times,
    record_any,
    record_outcomes,
    record_received,
    record_sent,
)
from bench_spark.agent.pacing import DueTimes, Schedule, Stream
from bench_spark.agent.protocol import EventRow
from bench_spark.agent.records import BodySizes, body_sizes
from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER, WARMUP, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    Envelopes,
    ForeignStamps,
    envelopes_of_words,
    foreign_stamps,
    word_rows_of,
)
from bench_spark.core.hdr import Histogram, HistogramShape, shape_for
from bench_spark.core.kernels import warm_up
from bench_spark.core.sequences import SequenceSets
from bench_spark.plan import Assignment
from bench_spark.transports.base import Destination
from bench_spark.transports.batches import (
    I64,
    OUTCOME_DTYPE,
    RECEIVED_DTYPE,
    U32,
    Bool,
    Outcomes,
    Rows,
)


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
    foreign_stamps: ForeignStamps | None = None
    """With `takes_any`: except for when they were sent, where the scenario says how that is
    told."""
    is_carried: bool = False
    """Messages say by IDs which they are. Envelopes are made from these: without one the run tag is
    0, and times are 0 of messages that another agent sent."""
    first_measured: I64 | None = None
    """Per producer of the run: from which number on such messages belong to the measured phase.
    Without it they belong to the phase in which they arrive."""

    own_producers: tuple[int, ...] = ()
    """Per local producer lane: its number in the run. How many messages these have sent is known
    here."""
    due_times: DueTimes | None = None
    """When each message of the run is due, where that follows from its number."""

    @property
    def has_accounts(self) -> bool:
        return self.is_carried or self.sizes.smallest_bytes >= ENVELOPE_BYTES

    @property
    def goes_by_sending(self) -> bool:
        """Whether a message belongs to the phase in which it was sent, and not to that in which it
        was due. Bodies that are too small for an envelope say only when they were sent, so both
        ends go by that."""
        return not self.has_accounts


_EARLIEST_NS = -(1 << 62)

IntervalKey = tuple[RecordedKind, int, bool, int]
"""What is recorded, the tick, whether it is of the measured phase, the destination's number."""
RowKey = tuple[int, str, str, str]


class Intervals:
    def __init__(
        self,
        shape: HistogramShape,
        timeline: Timeline,
        destinations: tuple[str, ...],
        is_by_sending: bool,
    ) -> None:
        """`destinations`: by number, where they are kept apart."""
        self._shape = shape
        self._timeline = timeline
        self._destinations = destinations
        self._is_by_sending = is_by_sending
        self._intervals: dict[IntervalKey, I64] = {}
        self._counts: dict[RowKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """What is not counted by kernels, likewise."""
        self._row_number = 0
        self.taken_once = 0
        """Different messages received, in intervals that have become rows."""

    def at(self, kind: RecordedKind, at_ns: int, is_measured: bool, destination: int) -> I64:
        """The interval of such messages, made if there is none."""
        tick = self._timeline.tick_at(at_ns)
        key = (kind, tick, is_measured, destination)
        interval = self._intervals.get(key)
        if interval is None:
            interval = self._intervals[key] = self._made(kind)
            interval[IS_MEASURED], interval[DESTINATION] = is_measured, destination
        interval[MEASURED_FROM] = self._timeline.measure_start_ns
        # Ticks move with the beginning of the measured phase.
        interval[TICK_FROM] = self._timeline.tick_start_ns(tick) if tick else _EARLIEST_NS
        interval[TICK_END] = self._timeline.tick_end_ns(tick)
        return interval

    def scratch(self, kind: RecordedKind) -> I64:
        """An interval that no message belongs to."""
        return self._made(kind)

    def _made(self, kind: RecordedKind) -> I64:
        words = self._shape.words
        interval = np.zeros(FIRST_HISTOGRAM + len(kind.measures) * words, np.int64)
        interval[SECOND_HISTOGRAM] = FIRST_HISTOGRAM + words
        interval[HAS_HISTOGRAMS] = bool(kind.measures)
        interval[IS_BY_SENDING] = self._is_by_sending
        self._histograms(kind, interval)
        return interval

    def _histograms(self, kind: RecordedKind, interval: I64) -> dict[str, Histogram]:
        words = self._shape.words
        return {
            measure: Histogram(self._shape, interval[FIRST_HISTOGRAM + place * words :][:words])
            for place, measure in enumerate(kind.measures)
        }

    def once(self) -> int:
        """Different messages received until now."""
        return self.taken_once + sum(int(words[ONCE]) for words in self._intervals.values())

    def count(self, role: str, phase: str, at_ns: int, counter: str, amount: int) -> None:
        self._counts[self._timeline.tick_at(at_ns), role, phase, ""][counter] += amount

    def take_before(self, tick: int) -> list[EventRow]:
        """Rows of the ticks before that one."""
        return self._take(
            [key for key in self._intervals if key[1] < tick],
            [key for key in self._counts if key[0] < tick],
        )

    def take_all(self) -> list[EventRow]:
        return self._take(list(self._intervals), list(self._counts))

    def _take(self, keys: list[IntervalKey], counted: list[RowKey]) -> list[EventRow]:
        found: dict[RowKey, _Content] = defaultdict(_Content)
        for row in counted:
            found[row].counters.update(self._counts.pop(row))
        for key in keys:
            kind, tick, is_measured, destination = key
            name = self._destinations[destination] if destination != ANY_DESTINATION else ""
            row = (tick, kind.role, MEASURE if is_measured else WARMUP, name)
            interval = self._intervals.pop(key)
            self.taken_once += int(interval[ONCE])
            found[row].add(kind, interval, self._histograms(kind, interval))
        return [self._row(key, found[key]) for key in sorted(found)]

    def _row(self, key: RowKey, content: _Content) -> EventRow:
        tick, role, phase, destination = key
        number, self._row_number = self._row_number, self._row_number + 1
        return EventRow(
            row_number=number,
            role=role,
            phase=phase,
            tick=tick,
            tick_start_ns=self._timeline.tick_start_ns(tick),
            tick_seconds=self._timeline.tick_seconds(tick),
            destination=destination or None,
            counters=content.counters,
            histograms=content.histograms,
        )


@dataclass
class _Content:
    """Of one row."""

    counters: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: RecordedKind, interval: I64, histograms: dict[str, Histogram]) -> None:
        for place, name in enumerate(kind.counters):
            self.counters[name] = self.counters.get(name, 0) + int(interval[COUNTERS + place])
        for measure, histogram in histograms.items():
            if histogram.count:
                self.histograms[measure] = histogram.sparse()


_NO_SETS: I64 = np.zeros(0, np.int64)


class Recorder:
    def __init__(self, setup: RecorderSetup, timeline: Timeline) -> None:
        self._setup = setup
        self.goes_by_sending = setup.goes_by_sending
        self._timeline = timeline
        destinations = tuple(dict.fromkeys((*setup.destinations_by_producer, *setup.subscriptions)))
        self._intervals = Intervals(setup.shape, timeline, destinations, setup.goes_by_sending)
        self._sent_kind = RecordedKind(
            PRODUCER, SENT_COUNTERS, ("send_lag",) if setup.has_schedule else ()
        )
        self._received_kind = RecordedKind(CONSUMER, RECEIVED_COUNTERS, _measures_received(setup))
        self._lanes = max(1, len(setup.destinations_by_producer))
        self._books = _books(setup, timeline, destinations, self._lanes)
        """What kernels know of the run, and count over all intervals."""
        self._run: Any = self._books[:RUN_WORDS].view(RUN_DTYPE)[0]
        self._parties: Rows = self._books[RUN_WORDS:].view(PARTY_DTYPE)
        self.received_sets = SequenceSets(
            max(1, len(setup.subscriptions) * setup.streams_per_subscription)
        )
        self.confirmed_sets = SequenceSets(self._lanes)
        self.failed_sets = SequenceSets(self._lanes)
        self._takes_any = setup.takes_any
        self._has_accounts = setup.has_accounts
        self._has_one_size = not setup.sizes.steps
        self._body_bytes: U32 = np.full(1, setup.sizes.first_bytes, np.uint32)
        """Of all messages, where these have one size."""
        self._nowhere = self._intervals.scratch(OUTCOME_KIND)
        self._leave_intervals()

    def _leave_intervals(self) -> None:
        """The next message of each kind looks for its interval anew."""
        self._sending = self._receiving = self._settling = self._inserting = self._nowhere

    # -- totals ----------------------------------------------------------------------------------

    @property
    def received_once(self) -> int:
        """Different messages received, of both phases."""
        return self._intervals.once()

    @property
    def received_measured(self) -> int:
        """How many arrived since the measured phase began, whichever phase they belong to."""
        return int(self._run["received_measured"])

    @property
    def received_span_ns(self) -> tuple[int, int] | None:
        """With `takes_any`: when the first and the last of these arrived."""
        if not self._takes_any or not self.received_measured:
            return None
        return int(self._run["first_received_ns"]), int(self._run["last_received_ns"])

    @property
    def received_by_subscription(self) -> I64:
        """Different messages, of both phases, as the two below."""
        by_subscription: I64 = self._parties["received_once"][self._lanes + self._setup.producers :]
        return by_subscription

    @property
    def confirmed_by_lane(self) -> I64:
        by_lane: I64 = self._parties["confirmed"][: self._lanes]
        return by_lane

    @property
    def sent_by_lane(self) -> dict[str, I64]:
        """By phase."""
        lanes = self._parties[: self._lanes]
        return {WARMUP: lanes["sent_in_warmup"], MEASURE: lanes["sent_in_measure"]}

    @property
    def under_way(self) -> I64:
        """By lane: sent, and neither refused nor returned."""
        lanes = self._parties[: self._lanes]
        by_lane: I64 = lanes["sent_in_warmup"] + lanes["sent_in_measure"] - lanes["failed"]
        return by_lane

    # -- messages in -----------------------------------------------------------------------------

    def sent(
        self, lane: U32, envelope_words: I64, insert_ns: int, sizes: U32 | None = None
    ) -> None:
        """Messages accepted by the transport in one call, which took `insert_ns`; the arrays may be
        reused by the caller. `sizes` (of these and maybe more) are given where they do not follow
        from the time."""
        if sizes is None:
            sizes = self._body_bytes if self._has_one_size else self._sizes_of(envelope_words)
        done = 0
        while True:
            done = record_sent(
                envelope_words,
                done,
                lane,
                sizes,
                insert_ns,
                self._books,
                self._sending,
                self._inserting,
            )
            if done > len(envelope_words):
                return
            self._look_for_interval(envelope_words, lane, done)

    def _look_for_interval(self, envelope_words: I64, lane: U32, done: int) -> None:
        """Of the next of the messages sent, or of how long the call took."""
        envelope = envelopes_of_words(envelope_words)[min(done, len(lane) - 1)]
        sent_ns = int(envelope["sent_ns"])
        if done == len(lane):
            is_measured = sent_ns >= self._timeline.measure_start_ns
            self._inserting = self._intervals.at(INSERT_KIND, sent_ns, is_measured, ANY_DESTINATION)
        else:
            is_measured = self._is_measured(sent_ns, int(envelope["intended_ns"]))
            destination = int(self._parties[lane[done]]["destination"])
            self._sending = self._intervals.at(self._sent_kind, sent_ns, is_measured, destination)

    def _sizes_of(self, envelope_words: I64) -> U32:
        return self._setup.sizes.of(envelopes_of_words(envelope_words)["sent_ns"].astype(np.int64))

    def _is_measured(self, sent_ns: int, intended_ns: int) -> bool:
        phase_ns = sent_ns if self.goes_by_sending else intended_ns
        return phase_ns >= self._timeline.measure_start_ns

    def outcomes(self, outcomes: Outcomes) -> int:
        """What became of messages sent earlier; how many of them were refused or returned."""
        rows, confirmed, failed = outcomes.rows, self.confirmed_sets, self.failed_sets
        done = failures = 0
        while True:
            done, more = record_outcomes(
                rows,
                done,
                self._books,
                self._settling,
                confirmed.memory if self._has_accounts else _NO_SETS,
                failed.memory if self._has_accounts else _NO_SETS,
            )
            failures += more
            if done == len(rows):
                return failures
            envelope, at_ns = rows[done]["envelope"], int(rows[done]["at_ns"])
            interval = self._intervals.at(
                OUTCOME_KIND,
                at_ns,
                self._is_measured(int(envelope["sent_ns"]), int(envelope["intended_ns"])),
                int(self._parties[rows[done]["lane"]]["destination"]),
            )
            if interval is self._settling:
                confirmed.make_room()
                failed.make_room()
            self._settling = interval

    def answered(self, at_ns: int, lane: U32, envelope: Envelopes) -> None:
        """Senders that waited for these messages are free again."""
        rows = len(envelope)
        kinds = np.full(rows, ANSWERED, np.uint8)
        self.outcomes(Outcomes.of_columns(np.full(rows, at_ns, np.int64), lane, kinds, envelope))

    def received(self, rows: Rows) -> int:
        """Messages received; `subscription` says the place of the one that each came by. Returns
        how many of them bear the tag of this run; with `takes_any`, all are taken for ours."""
        done, ours = 0, 0
        while True:
            if self._takes_any:
                done = ours = record_any(rows, done, self._books, self._receiving)
            else:
                done, tagged = record_received(
                    rows, done, self._books, self._receiving, self.received_sets.memory
                )
                ours += tagged
            if done == len(rows):
                return ours
            stopped = self._run
            if stopped["stopped_by"] == FULL_SETS:
                self.received_sets.make_room()
            elif stopped["stopped_by"] == OTHER_RATE:
                self._look_up_schedule(rows[done]["envelope"])
            else:
                self._receiving = self._intervals.at(
                    self._received_kind,
                    int(stopped["at_ns"]),
                    bool(stopped["is_measured"]),
                    int(stopped["destination"]),
                )

    def _look_up_schedule(self, envelope: np.void) -> None:
        """Of the producer of a message, the part of its schedule around that message."""
        assert self._setup.due_times is not None
        producer = int(envelope["producer"])
        stretch = self._setup.due_times.stretch_of(producer, int(envelope["sequence"]))
        party = self._parties[self._lanes + producer]
        party["rate_first"], party["rate_end"] = stretch.first, stretch.end
        party["rate_first_ns"], party["period_ns"] = stretch.first_ns, stretch.period_ns

    def has_possible_times(self, envelope: Envelopes, received_ns: I64) -> Bool:
        """Of which messages of this run it can be true when they say they were sent and due."""
        possible = np.ones(len(envelope), np.bool_)
        if self._setup.is_carried or not self._has_accounts:
            return possible
        envelope, received_ns = np.ascontiguousarray(envelope), np.ascontiguousarray(received_ns)
        done = 0
        while True:
            done += find_possible_times(
                envelope[done:], received_ns[done:], self._books, possible[done:]
            )
            if done == len(envelope):
                return possible
            self._look_up_schedule(envelope[done])

    # -- what the loop counts itself -------------------------------------------------------------

    def given_up(self, at_ns: int, envelope: Envelopes) -> None:
        """Senders have gone on without these messages."""
        measured = self._timeline.phase_of(envelope["intended_ns"].astype(np.int64))
        for phase, messages in ((MEASURE, measured), (WARMUP, ~measured)):
            if messages.any():
                count = int(np.count_nonzero(messages))
                self._intervals.count(PRODUCER, phase, at_ns, "given_up", count)

    def due(self, phase: str, at_ns: int, messages: int) -> None:
        self._intervals.count(PRODUCER, phase, at_ns, "due", messages)

    def acknowledged(self, at_ns: int, messages: int) -> None:
        if messages:
            self._intervals.count(CONSUMER, self._phase_at(at_ns), at_ns, "acked", messages)

    def error(self, role: str, at_ns: int) -> None:
        self._intervals.count(role, self._phase_at(at_ns), at_ns, "errors", 1)

    def blocked(self, at_ns: int, blocked_ns: int) -> None:
        self._intervals.count(PRODUCER, self._phase_at(at_ns), at_ns, "blocked_ns", blocked_ns)

    def repeats_dropped(self, at_ns: int, messages: int) -> None:
        self._intervals.count(CONSUMER, self._phase_at(at_ns), at_ns, "repeats_dropped", messages)

    def disconnected(self, role: str, at_ns: int, down_ns: int) -> None:
        self._intervals.count(role, self._phase_at(at_ns), at_ns, "disconnected_ns", down_ns)

    def reconnected(self, role: str, at_ns: int) -> None:
        self._intervals.count(role, self._phase_at(at_ns), at_ns, "reconnects", 1)

    def _phase_at(self, at_ns: int) -> str:
        return MEASURE if at_ns >= self._timeline.measure_start_ns else WARMUP

    def measured_phase_moved(self) -> None:
        """The timeline has changed: when the measured phase begins, and where its ticks lie."""
        self._run["measured_from_ns"] = self._timeline.measure_start_ns
        self._leave_intervals()

    # -- rows out --------------------------------------------------------------------------------

    def rows_until(self, at_ns: int) -> list[EventRow]:
        """Rows of the ticks that are over; what arrives for them later makes further rows."""
        self._leave_intervals()
        return self._intervals.take_before(self._timeline.tick_at(at_ns))

    def all_rows(self) -> list[EventRow]:
        self._leave_intervals()
        return self._intervals.take_all()


@warm_up
def _compile() -> None:
    facts = RecorderSetup(
        shape=shape_for(NANOSECONDS // 1000),
        run_tag=1,
        producers=1,
        stream_of_producer=np.zeros(1, np.int64),
        streams_per_subscription=1,
        subscriptions=("",),
        destinations_by_producer=("",),
        sizes=BodySizes(ENVELOPE_BYTES),
        has_schedule=True,
    )
    envelopes, lanes = np.zeros(1, ENVELOPE_DTYPE), np.zeros(1, np.uint32)
    rows = np.zeros(1, RECEIVED_DTYPE)
    fill_subscriptions(rows, np.zeros((1, 1), np.int64))
    for setup in (facts, replace(facts, takes_any=True)):
        recorder = Recorder(setup, Timeline(0, 0, NANOSECONDS, 0))
        recorder.sent(lanes, word_rows_of(envelopes), 0)
        recorder.outcomes(Outcomes(np.zeros(1, OUTCOME_DTYPE)))
        recorder.received(rows)
        recorder.has_possible_times(envelopes, np.zeros(1, np.int64))
        recorder.received_sets.ensure_groups(2)


def _measures_received(setup: RecorderSetup) -> tuple[str, ...]:
    if setup.takes_any:
        return ("latency",) if setup.foreign_stamps is not None else ()
    has_due_times = setup.has_schedule and setup.has_accounts
    return ("latency", "delivery_latency") if has_due_times else ("latency",)


def _books(
    setup: RecorderSetup, timeline: Timeline, destinations: tuple[str, ...], lanes: int
) -> I64:
    """A record of RUN_DTYPE, then records of PARTY_DTYPE."""
    run = np.zeros(1, RUN_DTYPE)
    run["run_tag"] = setup.run_tag
    run["producers"] = setup.producers
    run["streams"] = setup.streams_per_subscription
    run["start_ns"] = timeline.start_ns
    run["measured_from_ns"] = timeline.measure_start_ns
    run["first_producer"] = lanes
    run["first_subscription"] = lanes + setup.producers
    run["has_accounts"] = setup.has_accounts
    run["is_carried"] = setup.is_carried
    run["has_schedule"] = setup.has_schedule
    run["has_due_times"] = setup.due_times is not None
    run["has_first_measured"] = setup.first_measured is not None
    if setup.foreign_stamps is not None:
        run["stamp_bytes"] = setup.foreign_stamps.body_bytes
        run["stamp_unit_ns"] = setup.foreign_stamps.unit_ns
    parties = _parties(setup, destinations, lanes)
    return np.concatenate([run.view(np.int64), parties.view(np.int64)])


def _parties(setup: RecorderSetup, destinations: tuple[str, ...], lanes: int) -> Rows:
    """Records of PARTY_DTYPE."""
    parties = np.zeros(lanes + setup.producers + max(1, len(setup.subscriptions)), PARTY_DTYPE)
    parties["destination"] = ANY_DESTINATION
    if setup.by_destination:
        number = {name: place for place, name in enumerate(destinations)}
        for lane, name in enumerate(setup.destinations_by_producer):
            parties[lane]["destination"] = number[name]
        for place, name in enumerate(setup.subscriptions):
            parties[lanes + setup.producers + place]["destination"] = number[name]
    producers = parties[lanes : lanes + setup.producers]
    producers["stream"] = setup.stream_of_producer[: setup.producers]
    producers["lane"] = -1
    for lane, producer in enumerate(setup.own_producers):
        producers[producer]["lane"] = lane
    if setup.first_measured is not None:
        producers["first_measured"] = setup.first_measured
    if setup.due_times is not None:
        for producer in range(setup.producers):
            found = setup.due_times.place_of(producer)
            if found is not None:
                producers[producer]["is_scheduled"] = True
                producers[producer]["place"], producers[producer]["places"] = found
    return parties


def recorder_for(
    assignment: Assignment, timeline: Timeline, destinations: Mapping[int, Destination]
) -> Recorder:
    """Records what this assignment's scenario asks for."""
    scenario = assignment.scenario
    names = {index: destination.name or "" for index, destination in destinations.items()}
    first = assignment.first_measured
    setup = RecorderSetup(
        shape=shape_for(scenario.histogram.highest_us),
        run_tag=assignment.run_tag,
        producers=scenario.producers,
        stream_of_producer=scenario.wiring.stream_of_producer,
        streams_per_subscription=scenario.wiring.streams,
        subscriptions=tuple(names[index] for index in assignment.first_destinations),
        destinations_by_producer=tuple(
            names[member.destinations[0]] for member in assignment.producers
        ),
        sizes=body_sizes(scenario.message, timeline),
        has_schedule=scenario.is_paced,
        takes_any=scenario.only_consumes,
        foreign_stamps=foreign_stamps(scenario.message.timestamped),
        is_carried=not scenario.has_envelopes,
        first_measured=None if first is None else np.array(first, np.int64),
        by_destination=scenario.metrics_by == "destination",
        own_producers=assignment.producer_numbers,
        due_times=_due_times(assignment, timeline),
    )
    return Recorder(setup, timeline)


def _due_times(assignment: Assignment, timeline: Timeline) -> DueTimes | None:
    """Where a message's number says when it is due: of this agent's producers, or of all."""
    schedule = assignment.schedule
    streams = assignment.streams
    if not streams and isinstance(schedule, Schedule) and not assignment.shares_destinations:
        streams = (Stream(assignment.producer_numbers, schedule),)
    # In mode `request` whoever is free sends what is due.
    if not streams or assignment.scenario.load.mode != "rate":
        return None
    return DueTimes(streams, assignment.run_tag, timeline.start_ns)
