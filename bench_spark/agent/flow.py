"""What may be sent now, and from which producer: at a rate, at most, in windows, by requests. Pure:
no clock, no socket.

A flow chooses lanes and knows nothing of time; the loop asks it for the next batch and reports how
much of it was accepted. It writes sequence numbers and producers into the envelopes. Numbers are
given per lane without gaps: a message that was refused keeps its number for the next try. A lane
that is down gets nothing, and the others go on without it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.agent.pacing import NO_END, Pacing
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import (
    ENVELOPE_DTYPE,
    Envelopes,
    empty_envelopes,
    envelopes_of_words,
    word_rows_of,
)
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.core.randomness import RandomBytes

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NOTHING = -1
QUIET_NS = NANOSECONDS
"""Once a lane is back, messages that survived arrive; when none has for this long, none will."""
STALL_NS = 5 * NANOSECONDS
"""Windows in which nothing has moved for this long will not move any more."""


class Flow(Protocol):
    """What the loop asks, whatever the load: unless a flow says otherwise an open loop, which waits
    for nothing."""

    is_closed_loop: bool = False
    """Whether messages that arrive let others be sent."""

    @property
    def is_filled(self) -> bool:
        """Whether as many messages as may be are in flight, where that is bounded."""
        return True

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be sent now, as far as that is
        known before they are numbered."""
        return due

    def next_batch(self, envelope_words: I64, lanes: U32, messages: int) -> int:
        """Write at most that many messages into envelopes and lanes, both from the front; how
        many."""

    def accepted(self, lane: U32, envelope: Envelopes) -> None:
        """These messages, the front of the last batch, are out."""

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        """Messages of these producers have been received."""
        return

    def suspend(self, lane: int) -> None:
        """The lane is down, or full."""

    def resume(self, lane: int) -> None:
        """The lane is back."""

    def settle_all(self) -> None:
        """A consumer was lost: messages of any lane may have gone down with it."""
        return

    def has_stalled(self, now_ns: int, moved: int, down: int, consumers_down: int) -> bool:
        """Whether nothing has moved for too long: see `WindowFlow`, which alone can stand still
        for good. Asked again and again while the load goes on."""
        return False


class Quiet:
    """How long a number has not changed."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._since_ns = 0

    def lasts_ns(self, number: int, now_ns: int) -> int:
        if number != self._seen:
            self._seen, self._since_ns = number, now_ns
        return now_ns - self._since_ns

    def start_again(self) -> None:
        self._seen = None


class NumberedFlow(Flow, Protocol):
    """A flow of one stream, whose messages may be due at times of their own."""

    @property
    def next_number(self) -> int | None:
        """Which message of the whole stream is the first of the next batch, where those after it
        follow without gaps."""

    def numbers(self, lane: U32, sequence: U64) -> I64:
        """Which messages of the whole stream these are, of the last batch."""


# -- kernels ---------------------------------------------------------------------------------------

LANE_DTYPE = np.dtype(
    [("producer", "<i8"), ("next_sequence", "<i8"), ("credit", "<i8"), ("is_held", "<i8")]
)
"""A lane with a window: what it may still send, unless it is down or settles."""


@kernel
def number_in_turn(
    words: I64, lanes: Any, members: I64, forgone: I64, first: int, messages: int
) -> None:
    """Number messages from the `first` of a stream on, which go to the lanes in turn."""
    envelopes, width = words.view(ENVELOPE_DTYPE)[:, 0], len(members)
    lane, turn = first % width, first // width
    for at in range(messages):
        envelopes[at]["sequence"] = turn - forgone[lane]
        envelopes[at]["producer"] = members[lane]
        lanes[at] = lane
        lane += 1
        if lane == width:
            lane = 0
            turn += 1


@kernel
def number_in_windows(words: I64, lanes: Any, windows: Any, first_lane: int, messages: int) -> int:
    """Number messages of lanes with credit, all cut at one level so that none starves the others;
    returns how many."""
    envelopes = words.view(ENVELOPE_DTYPE)[:, 0]
    credit, open_lanes = 0, 0
    for lane in range(len(windows)):
        if windows[lane]["credit"] > 0 and not windows[lane]["is_held"]:
            credit += windows[lane]["credit"]
            open_lanes += 1
    level = messages if credit <= messages else max(1, messages // max(1, open_lanes))
    count = 0
    for turn in range(len(windows)):
        lane = (first_lane + turn) % len(windows)
        window = windows[lane]
        share = 0 if window["is_held"] else min(window["credit"], level, messages - count)
        for within in range(share):
            envelopes[count]["sequence"] = window["next_sequence"] + within
            envelopes[count]["producer"] = window["producer"]
            lanes[count] = lane
            count += 1
    return count


@kernel
def use_credit(lanes: Any, windows: Any) -> None:
    """Messages of these lanes are out."""
    for at in range(len(lanes)):
        windows[lanes[at]]["credit"] -= 1
        windows[lanes[at]]["next_sequence"] += 1


@kernel
def give_credit(producers: Any, lane_of: I64, windows: Any, in_flight: int) -> int:
    """Messages of these producers have arrived; returns how many are of lanes here."""
    known = 0
    for at in range(len(producers)):
        producer = np.int64(producers[at])
        if producer < len(lane_of) and lane_of[producer] >= 0:
            known += 1
            window = windows[lane_of[producer]]
            # A message that comes twice, or after its credit was reclaimed, is worth nothing.
            if window["credit"] < in_flight:
                window["credit"] += 1
    return known


@kernel
def stamp_in_stretch(
    words: I64, sent_ns: int, place: int, first_ns: float, period_ns: float, start_ns: int
) -> None:
    """Write when messages are sent, and when they are due: they follow each other from that place
    of a stretch on."""
    envelopes = words.view(ENVELOPE_DTYPE)[:, 0]
    for at in range(len(envelopes)):
        after_ns = np.rint(first_ns + np.float64(place + at) * period_ns)
        envelopes[at]["sent_ns"] = sent_ns
        envelopes[at]["intended_ns"] = start_ns + np.int64(after_ns)


@kernel
def stamp_sent(words: I64, sent_ns: int, is_due: bool) -> None:
    """Write when messages are sent; without a schedule they are due at that moment."""
    envelopes = words.view(ENVELOPE_DTYPE)[:, 0]
    for at in range(len(envelopes)):
        envelopes[at]["sent_ns"] = sent_ns
        if is_due:
            envelopes[at]["intended_ns"] = sent_ns


@warm_up
def _compile() -> None:
    envelopes, lanes = empty_envelopes(1), np.zeros(1, np.uint32)
    words = word_rows_of(envelopes)
    window = WindowFlow((0,), 1)
    for flow in (RoundRobinFlow((0,)), window):
        flow.next_batch(words, lanes, 1)
        flow.accepted(lanes, envelopes)
        flow.consumed(lanes)
    stamp_in_stretch(words, 0, 0, 0.0, 1.0, 0)
    stamp_sent(words, 0, False)
    RandomBytes(1).rows(1, 1)


# -- at a rate, and as fast as possible ------------------------------------------------------------


class RoundRobinFlow(NumberedFlow):
    """At a rate, or as fast as possible: message k goes to lane k modulo the number of lanes.

    With `owes`, a lane that was down is owed the messages that were its turn meanwhile: it catches
    up beside the others, which stay in time. Without, its turns are forgone.
    """

    def __init__(self, members: tuple[int, ...], owes: bool = False) -> None:
        """`members`: the producer of each lane, by its number in the whole run."""
        lanes = len(members)
        self._lanes = lanes
        self._members = np.array(members, np.int64)
        self._owes = owes
        self._numbered = 0
        """While all lanes are in step: the number of the next message."""
        self._next: I64 | None = None
        """While they are not: the number of the next message of each lane."""
        self._is_down = np.zeros(lanes, np.bool_)
        self._is_late = np.zeros(lanes, np.bool_)
        """Lanes that are back and catch up."""
        self._due: int | None = None
        self._forgone = np.zeros(lanes, np.int64)
        """Turns of each lane in which it was down and is owed nothing."""

    def numbers(self, lane: U32, sequence: U64) -> I64:
        if self._next is None:
            return np.arange(self._numbered, self._numbered + len(lane), dtype=np.int64)
        rounds = sequence.astype(np.int64) + self._forgone[lane]
        numbers: I64 = rounds * self._lanes + lane
        return numbers

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be sent now; no others are."""
        self._due = due
        if self._next is None:
            return due - self._numbered
        return int(self._counts(self._next[~self._is_down], due).sum())

    def suspend(self, lane: int) -> None:
        if self._next is None:
            lanes = np.arange(self._lanes, dtype=np.int64)
            self._next = self._numbered + (lanes - self._numbered) % self._lanes
        self._is_down[lane] = True
        self._is_late[lane] = False

    def resume(self, lane: int) -> None:
        if self._next is None:
            return
        self._is_down[lane] = False
        self._is_late[lane] = self._owes
        if not self._owes:
            others = self._next[~self._is_down]
            missed = (int(others.max()) - int(self._next[lane])) // self._lanes
            self._forgone[lane] += missed
            self._next[lane] += missed * self._lanes
        self._fall_in_step()

    @property
    def next_number(self) -> int | None:
        return self._numbered if self._next is None else None

    def next_batch(self, envelope_words: I64, lanes: U32, messages: int) -> int:
        if self._next is None:
            number_in_turn(
                envelope_words, lanes, self._members, self._forgone, self._numbered, messages
            )
            return messages
        envelopes = envelopes_of_words(envelope_words)
        lane, sequence = self._number_out_of_step(self._next, messages)
        lanes[: len(lane)] = lane
        envelopes["sequence"][: len(lane)] = sequence
        envelopes["producer"][: len(lane)] = self._members[lane]
        return len(lane)

    def accepted(self, lane: U32, envelope: Envelopes) -> None:
        if self._next is None:
            self._numbered += len(lane)
        else:
            self._next += np.bincount(lane, minlength=self._lanes) * self._lanes
            self._fall_in_step()

    def _number_out_of_step(self, following: I64, messages: int) -> tuple[U32, U64]:
        """First what the lanes in time may send, then what others have to catch up with."""
        in_time = self._lowest(following[~(self._is_down | self._is_late)], messages)
        late = self._lowest(following[self._is_late], messages - len(in_time))
        number = np.concatenate((in_time, late))
        lane = number % self._lanes
        sequence = number // self._lanes - self._forgone[lane]
        return lane.astype(np.uint32), sequence.astype(np.uint64)

    def _lowest(self, following: I64, messages: int) -> I64:
        """At most so many numbers, the lowest ones, of lanes whose next numbers are these."""
        lowest = 0
        highest = int(following.max(initial=0)) + (messages + 1) * self._lanes
        if self._due is not None:
            highest = min(highest, self._due)
        if int(self._counts(following, highest).sum()) <= messages:
            lowest = highest  # as nearly always on a schedule: whatever is due can be sent
        while lowest < highest:
            middle = (lowest + highest + 1) // 2
            if int(self._counts(following, middle).sum()) <= messages:
                lowest = middle
            else:
                highest = middle - 1
        counts = self._counts(following, lowest)
        first = np.repeat(following, counts)
        within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(first + within * self._lanes)

    def _counts(self, following: I64, end: int) -> I64:
        """How many messages of each lane come before this number."""
        counts: I64 = np.maximum(0, -(-(end - following) // self._lanes))
        return counts

    def _fall_in_step(self) -> None:
        assert self._next is not None
        first = int(self._next.min())
        if not self._is_down.any() and int(self._next.max()) - first < self._lanes:
            self._numbered, self._next = first, None
            self._is_late[:] = False


# -- in windows ------------------------------------------------------------------------------------


class WindowFlow(Flow):
    """Closed loop: every lane keeps a fixed number of its messages in flight.

    When a connection is lost, nobody knows which messages went down with it. A lane concerned
    therefore sends nothing more until those that survived have arrived, which is taken for granted
    when none has come for `QUIET_NS`; then `reclaim` gives back the credit of the others.
    """

    is_closed_loop = True

    def __init__(self, members: tuple[int, ...], in_flight: int) -> None:
        """`members`: the producer of each lane, by its number in the whole run."""
        self._in_flight = in_flight
        self._is_down = np.zeros(len(members), np.bool_)
        self._is_settling = np.zeros(len(members), np.bool_)
        self._windows = np.zeros(len(members), LANE_DTYPE)
        self._windows["producer"] = members
        self._windows["credit"] = in_flight
        self._lane_of = np.full(max(members, default=0) + 1, NOTHING, np.int64)
        self._lane_of[list(members)] = np.arange(len(members))
        self._first_lane = 0
        self.progress = 0
        """Messages of these lanes that have arrived."""
        self._stall = Quiet()
        self._settling = Quiet()

    def next_batch(self, envelope_words: I64, lanes: U32, messages: int) -> int:
        # In turn: a batch too small for all lanes begins where the one before ended.
        return number_in_windows(envelope_words, lanes, self._windows, self._first_lane, messages)

    def accepted(self, lane: U32, envelope: Envelopes) -> None:
        use_credit(lane, self._windows)
        self._first_lane = (int(lane[-1]) + 1) % len(self._windows)

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        producers = np.ascontiguousarray(producer)
        self.progress += give_credit(producers, self._lane_of, self._windows, self._in_flight)

    def _hold_back(self) -> None:
        self._windows["is_held"] = self._is_down | self._is_settling

    def suspend(self, lane: int) -> None:
        self._is_down[lane] = True
        self._hold_back()

    def resume(self, lane: int) -> None:
        self._is_down[lane] = False
        self._is_settling[lane] = True
        self._hold_back()

    def settle_all(self) -> None:
        self._is_settling[:] = True
        self._hold_back()

    @property
    def is_settling(self) -> bool:
        return bool(self._is_settling.any())

    @property
    def settling_credit(self) -> int:
        """Grows as long as messages of the lanes that settle arrive."""
        return int(self._windows["credit"][self._is_settling].sum())

    def reclaim(self) -> None:
        """What has not arrived by now will not arrive any more."""
        self._windows["credit"][self._is_settling] = self._in_flight
        self._is_settling[:] = False
        self._hold_back()

    def has_stalled(self, now_ns: int, moved: int, down: int, consumers_down: int) -> bool:
        """Reclaim what was lost; whether nothing has moved for `STALL_NS`. `moved`: any number that
        grows when something happens beside arrivals; `down`: lanes that are."""
        if not self.is_settling or consumers_down:
            self._settling.start_again()
        elif self._settling.lasts_ns(self.settling_credit, now_ns) >= QUIET_NS:
            self.reclaim()
        if down or self.is_settling:
            self._stall.start_again()
        return self._stall.lasts_ns(self.progress + moved, now_ns) > STALL_NS

    @property
    def credit(self) -> int:
        return int(self._windows["credit"].sum())

    @property
    def is_filled(self) -> bool:
        return self.credit <= 0


# -- by requests -----------------------------------------------------------------------------------


class RequestFlow(NumberedFlow):
    """Senders that wait for their own messages, and keep a schedule together.

    Every sender has one message on its way at most, and it takes that message's number to know that
    it is the one waited for: see `arrived`. Whatever is due next goes to the sender that
    has been free longest; when all wait, the messages become late, and their lateness is the
    system's. A message that never arrives would hold its sender for ever, so that after a while it
    goes on without.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        """`members`: the producer of each lane, by its number in the whole run."""
        # Without any, a lane of nobody: no producer has a negative number.
        self._member_of_lane = np.array(members or (NOTHING,), dtype=np.int64)
        self._lane_by_rank = np.argsort(self._member_of_lane)
        self._members = self._member_of_lane[self._lane_by_rank]
        """Rising."""
        self._free = deque(range(len(members)))
        lanes = len(self._member_of_lane)
        self._is_down = np.zeros(lanes, np.bool_)
        self._awaited = np.full(lanes, NOTHING, dtype=np.int64)
        """By lane: the sequence number of the message that its sender waits for."""
        self._next_sequence = np.zeros(lanes, dtype=np.int64)
        self._envelopes = empty_envelopes(lanes)
        """By lane: that message."""
        self._numbered = 0
        self.are_all_waiting = False
        """Whether something is due that nobody is free to send."""

    # -- sending ---------------------------------------------------------------------------------

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be sent now."""
        self.are_all_waiting = due - self._numbered > len(self._free)
        return min(due - self._numbered, len(self._free))

    @property
    def next_number(self) -> int | None:
        return self._numbered

    def next_batch(self, envelope_words: I64, lanes: U32, messages: int) -> int:
        envelopes = envelopes_of_words(envelope_words)
        lane = np.array(list(islice(self._free, messages)), dtype=np.uint32)
        lanes[: len(lane)] = lane
        envelopes["sequence"][: len(lane)] = self._next_sequence[lane]
        envelopes["producer"][: len(lane)] = self._member_of_lane[lane]
        return len(lane)

    def numbers(self, lane: U32, sequence: U64) -> I64:
        return np.arange(self._numbered, self._numbered + len(lane), dtype=np.int64)

    def accepted(self, lane: U32, envelope: Envelopes) -> None:
        for _ in range(len(lane)):
            self._free.popleft()
        self._awaited[lane] = self._next_sequence[lane]
        self._next_sequence[lane] += 1
        self._numbered += len(lane)
        self._envelopes[lane] = envelope

    # -- waiting ---------------------------------------------------------------------------------

    def arrived(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> tuple[U32, Envelopes]:
        """Lanes whose own message has arrived, and that message. Repeated and late ones free
        nobody."""
        wanted = np.asarray(producer, dtype=np.int64)
        at = self._lanes_of(wanted)
        is_own = self._member_of_lane[at] == wanted
        is_own &= self._awaited[at] == np.asarray(sequence, dtype=np.int64)
        lane = np.unique(at[is_own]).astype(np.uint32)
        self._release(lane)
        return lane, self._envelopes[lane]

    def are_here(self, producer: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which of these producers have a lane here."""
        found: npt.NDArray[np.bool_] = self._member_of_lane[self._lanes_of(producer)] == producer
        return found

    def _lanes_of(self, producer: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """The lane of each, if it has one at all."""
        rank = np.minimum(np.searchsorted(self._members, producer), len(self._members) - 1)
        lanes: npt.NDArray[np.intp] = self._lane_by_rank[rank]
        return lanes

    def give_up(self, before_ns: int) -> Envelopes:
        """Free whoever waits for a message that was sent before that moment; those messages."""
        is_late = (self._awaited != NOTHING) & (
            self._envelopes["sent_ns"].astype(np.int64) < before_ns
        )
        lane = np.flatnonzero(is_late).astype(np.uint32)
        self._release(lane)
        return self._envelopes[lane]

    def _release(self, lane: U32) -> None:
        self._awaited[lane] = NOTHING
        self._free.extend(lane[~self._is_down[lane]].tolist())

    # -- lanes that are down ---------------------------------------------------------------------

    def suspend(self, lane: int) -> None:
        self._is_down[lane] = True
        if lane in self._free:
            self._free.remove(lane)

    def resume(self, lane: int) -> None:
        self._is_down[lane] = False
        if self._awaited[lane] == NOTHING and lane not in self._free:
            self._free.append(lane)


# -- when a message was due ------------------------------------------------------------------------

OWED_WAIT_NS = 20_000_000
"""How often to look, once the whole schedule is due, for lanes that owe messages and are back."""


class Pacer(Protocol):
    """How many messages of an agent are due, and when a message was due."""

    total: int
    """Messages of the whole schedule."""
    last_due_ns: int
    """When the last of them is due."""

    def due(self, now_ns: int) -> int:
        """How many messages should have been sent by now."""

    def batch_complete_ns(self, due: int, now_ns: int) -> int:
        """Once so many are sent: when the last message of the next batch is due."""

    def stamp(self, envelope_words: I64, lane: U32, sent_ns: int) -> None:
        """Write when the messages of the next batch are sent, and when they were due."""


class Unpaced:
    """Without a schedule a message is due when it is sent, and any number may be."""

    total = 0
    last_due_ns = 0

    def due(self, now_ns: int) -> int:
        return NO_END

    def batch_complete_ns(self, due: int, now_ns: int) -> int:
        return 0

    def stamp(self, envelope_words: I64, lane: U32, sent_ns: int) -> None:
        stamp_sent(envelope_words, sent_ns, True)


class Paced:
    """By a schedule. Within the stretch of one rate that is looked at, a product or a quotient says
    what is due; the schedule is asked at its edges only."""

    def __init__(self, schedule: Pacing, start_ns: int, total: int, flow: NumberedFlow) -> None:
        self._schedule = schedule
        self._flow = flow
        self._start_ns = start_ns
        self.total = total
        self.last_due_ns = start_ns + schedule.intended_ns(total - 1) if total else 0
        self._first = self._end = 0
        """The stretch is messages [first, end); the first is due `first_ns` after the start."""
        self._first_ns = self._period_ns = 0.0
        self._batch = 0
        """How many messages of the stretch are sent together."""

    def _look_at(self, message: int) -> None:
        """At the stretch around that message."""
        first, end, self._first_ns, self._period_ns = self._schedule.stretch_of(message)
        self._first, self._end = first, min(end, self.total)
        self._batch = self._schedule.batch_from(first) if self._period_ns else 0

    def due(self, now_ns: int) -> int:
        if self._batch:
            # To within half a nanosecond: due times are rounded to whole ones.
            waited_ns = now_ns - self._start_ns - self._first_ns + 0.5
            due = self._first + int(waited_ns / self._period_ns + 1.0)
            if self._first < due < self._end:
                return due
        return min(self._schedule.messages_before(now_ns - self._start_ns + 1), self.total)

    def batch_complete_ns(self, due: int, now_ns: int) -> int:
        last = due + self._batch - 1
        if self._first <= due <= last < self._end:
            after_ns = self._first_ns + (last - self._first) * self._period_ns
            return self._start_ns + round(after_ns)
        if due >= self.total:
            # What is still unsent is owed by lanes that are down.
            return now_ns + OWED_WAIT_NS
        last = min(due + self._schedule.batch_from(due), self.total) - 1
        return self._start_ns + self._schedule.intended_ns(last)

    def stamp(self, envelope_words: I64, lane: U32, sent_ns: int) -> None:
        first = self._flow.next_number
        if first is not None:
            if not self._first <= first < self._end:
                self._look_at(first)
            if first + len(envelope_words) <= self._end:
                stamp_in_stretch(
                    envelope_words,
                    sent_ns,
                    first - self._first,
                    self._first_ns,
                    self._period_ns,
                    self._start_ns,
                )
                return
        # Lanes out of step, a change of rate within the batch, or a recorded schedule.
        envelope = envelopes_of_words(envelope_words)
        numbers = self._flow.numbers(lane, envelope["sequence"])
        envelope["intended_ns"] = self._schedule.intended_of_ns(numbers) + self._start_ns
        stamp_sent(envelope_words, sent_ns, False)
