"""Kernels that record messages: which of those received are ours, foreign, malformed or unexpected,
of which phase, new or seen before, and how long they took.

A body may have been changed on its way, or forged. What its envelope says is therefore believed as
far as it can be true: the time it was sent, the time it was due, and its number.

What is recorded message by message lies in an interval: a run of 64-bit words that say which
messages belong to it, then counters, then histograms. Every kernel takes rows from the `first` on,
records each whole or not at all, and returns the first that it did not record: because it belongs
to another interval, because the sequence sets have no room, or because its producer's schedule has
another rate at that message.

All but rows come as words, which cost a call a quarter of what an array of a structured type costs;
kernels that are called for a few messages look at them as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import PRODUCER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_DTYPE, TIMESTAMP_BYTES
from bench_spark.core.hdr_kernels import record_value_ns
from bench_spark.core.kernels import inlined, kernel
from bench_spark.core.sequences import (
    DUPLICATE,
    NEW,
    NO_ROOM,
    OUT_OF_ORDER,
    SEQUENCE_LIMIT,
    add_sequence,
)
from bench_spark.transports.batches import OutcomeKind

Rows = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

# The first words of an interval.
TICK_FROM = 0
TICK_END = 1
IS_MEASURED = 2
DESTINATION = 3
"""The number of the only destination whose messages belong here, or ANY_DESTINATION."""
SECOND_HISTOGRAM = 4
"""Where the second one begins; the first begins at FIRST_HISTOGRAM."""
HAS_HISTOGRAMS = 5
MEASURED_FROM = 6
"""When the measured phase begins."""
IS_BY_SENDING = 7
"""Whether messages belong to the phase in which they were sent, not to that of their due time."""
ONCE = 8
"""Different messages received: no column of its own."""
COUNTERS = 9
FIRST_HISTOGRAM = COUNTERS + 12

ANY_DESTINATION = -1


@inlined
def belongs(interval: I64, at_ns: int, is_measured: int, destination: int) -> bool:
    """Whether a message of this moment, phase and destination is recorded here."""
    return bool(
        interval[TICK_FROM] <= at_ns < interval[TICK_END]
        and interval[IS_MEASURED] == is_measured
        and (interval[DESTINATION] == ANY_DESTINATION or interval[DESTINATION] == destination)
    )


@dataclass(frozen=True)
class RecordedKind:
    """What a kernel records: the names of its counters and of up to two histograms."""

    role: str
    counters: tuple[str, ...]
    measures: tuple[str, ...]


EARLIEST_SENT_NS = 978_307_200 * NANOSECONDS
"""2001: no clock that is set shows an earlier year."""
FURTHEST_AHEAD_NS = 3600 * NANOSECONDS
"""How far a clock that is set may be ahead of ours: an hour is a wrong time zone already."""
CLOCKS_APART_NS = NANOSECONDS
"""By how much the clocks of two agents may differ at most, whatever was measured."""
SHORTEST_SENDING_NS = 20
"""No producer sends a message in less time."""

RUN_DTYPE = np.dtype(
    [
        ("run_tag", "<i8"),
        ("producers", "<i8"),
        ("streams", "<i8"),
        ("start_ns", "<i8"),
        ("measured_from_ns", "<i8"),
        ("first_producer", "<i8"),
        ("first_subscription", "<i8"),
        ("has_accounts", "<i8"),
        ("is_carried", "<i8"),
        ("has_schedule", "<i8"),
        ("has_due_times", "<i8"),
        ("has_first_measured", "<i8"),
        ("stamp_bytes", "<i8"),
        ("stamp_unit_ns", "<i8"),
        ("received_measured", "<i8"),
        ("first_received_ns", "<i8"),
        ("last_received_ns", "<i8"),
        ("stopped_by", "<i8"),
        ("at_ns", "<i8"),
        ("is_measured", "<i8"),
        ("destination", "<i8"),
    ]
)
"""What must be known of the run to classify a message, totals over all intervals, and of the
message that a kernel stopped at: why, and to which interval it belongs."""

OTHER_INTERVAL = 1
FULL_SETS = 2
OTHER_RATE = 3

PARTY_DTYPE = np.dtype(
    [
        ("destination", "<i8"),
        ("sent_in_warmup", "<i8"),
        ("sent_in_measure", "<i8"),
        ("confirmed", "<i8"),
        ("failed", "<i8"),
        ("received_once", "<i8"),
        ("stream", "<i8"),
        ("lane", "<i8"),
        ("first_measured", "<i8"),
        ("is_scheduled", "<i8"),
        ("place", "<i8"),
        ("places", "<i8"),
        ("rate_first", "<i8"),
        ("rate_end", "<i8"),
        ("rate_first_ns", "<f8"),
        ("period_ns", "<f8"),
    ]
)
"""Who sends and receives: a record for each lane of this agent's producers, then one for each
producer of the run, then one for each subscription served here. Each uses the fields of its kind.

Of producers: the rank among those of its group, its lane here or -1, from which sequence on its
messages are measured; and of its schedule, place and number of the producers that share it, and the
stretch of one rate that is looked at: messages [rate_first, rate_end) of the schedule, of which
the first is due at `rate_first_ns` after the start."""

RUN_WORDS = RUN_DTYPE.itemsize // 8
"""How many words of an agent's books are a record of RUN_DTYPE; those of PARTY_DTYPE follow."""

NOT_DUE = 1 << 62
"""When a message is due that is due after the end of all times."""
NO_SCHEDULE = -1
BEYOND_STRETCH = -2

ANSWERED = max(OutcomeKind) + 1
"""Beside what brokers say of messages: that the sender of one has it back."""

_CONFIRMED = int(OutcomeKind.CONFIRMED)
_REFUSED = int(OutcomeKind.REFUSED)
_RETURNED = int(OutcomeKind.RETURNED)

# Counters of what is received, and of what is sent.
RECEIVED = COUNTERS
BYTES = COUNTERS + 1
REDELIVERED = COUNTERS + 2
MALFORMED = COUNTERS + 3
FOREIGN = COUNTERS + 4
UNEXPECTED = COUNTERS + 5
DUPLICATES = COUNTERS + 6
OUT_OF_ORDER_COUNT = COUNTERS + 7
CORRUPTED = COUNTERS + 8
RECEIVED_COUNTERS = (
    "received",
    "bytes",
    "redelivered",
    "malformed",
    "foreign",
    "unexpected",
    "duplicates",
    "out_of_order",
    "corrupted",
)
SENT = COUNTERS
SENT_COUNTERS = ("sent", "bytes")
OUTCOME_KIND = RecordedKind(
    PRODUCER, ("confirmed", "refused", "returned"), ("confirm_latency", "round_trip")
)
"""The counters are in the order of `OutcomeKind`."""
INSERT_KIND = RecordedKind(PRODUCER, (), ("insert_duration",))


# -- received --------------------------------------------------------------------------------------


@inlined
def signed(number: int) -> int:
    """A 64-bit number of an envelope, read as one with a sign."""
    return int(np.uint64(number).view(np.int64))


@inlined
def can_be_sent_at(sent_ns: int, received_ns: int) -> bool:
    """Whether a message can have been sent at this moment, whoever sent it."""
    return EARLIEST_SENT_NS <= sent_ns <= received_ns + FURTHEST_AHEAD_NS


@inlined
def due_ns_of(run: Any, party: Any, sequence: int) -> int:
    """When a producer's message is due, or NO_SCHEDULE, BEYOND_STRETCH or NOT_DUE."""
    if not party["is_scheduled"]:
        return NO_SCHEDULE
    if not 0 <= sequence < SEQUENCE_LIMIT:
        return NOT_DUE
    message = sequence * party["places"] + party["place"]
    if not party["rate_first"] <= message < party["rate_end"]:
        return BEYOND_STRETCH
    after_ns = np.rint(
        party["rate_first_ns"] + np.float64(message - party["rate_first"]) * party["period_ns"]
    )
    if after_ns >= 4.0e18:
        return NOT_DUE
    return int(run["start_ns"]) + int(after_ns)


@inlined
def can_be_due_at(run: Any, due_ns: int, sent_ns: int, intended_ns: int, received_ns: int) -> bool:
    """Whether an envelope of the run can say the truth about when it was sent and due.

    On a schedule the number says when a message was due, so that a changed `intended_ns`, or a
    changed number, is always found. Without one both times are the same, and in the other loads a
    message is due between the start and its sending; then a message that seems to have been sent
    before the run began is believed to be as old as that, if it says when it was due.
    """
    if not can_be_sent_at(sent_ns, received_ns):
        return False
    if run["has_due_times"]:
        return due_ns == NO_SCHEDULE or intended_ns == due_ns
    start_ns = run["start_ns"]
    in_time = intended_ns <= sent_ns if run["has_schedule"] else intended_ns == sent_ns
    if sent_ns < start_ns and intended_ns <= received_ns + CLOCKS_APART_NS:
        in_time = True
    return bool(in_time and intended_ns >= start_ns)


@inlined
def is_not_sent_yet(
    run: Any, parties: Rows, party: Any, sequence: int, due_ns: int, received_ns: int
) -> bool:
    """Whether a number is beyond those that its producer can have used.

    Of this agent's own producers that is known. Messages of others are due before they arrive;
    where there is no schedule, only what no producer could have sent since the start is refused
    here, and the driver finds the rest when all have said what they sent.
    """
    if party["lane"] >= 0:
        own = parties[party["lane"]]
        return bool(sequence >= own["sent_in_warmup"] + own["sent_in_measure"])
    start_ns = run["start_ns"]
    elapsed_ns = received_ns - start_ns + CLOCKS_APART_NS
    if sequence >= max(elapsed_ns, 0) // SHORTEST_SENDING_NS:
        return True
    if due_ns == NO_SCHEDULE:
        return False
    return not start_ns <= due_ns <= received_ns + CLOCKS_APART_NS


@inlined
def class_of(run: Any, parties: Rows, row: Any) -> int:
    """The counter of a received message: RECEIVED if it is ours; BEYOND_STRETCH if its schedule
    must be looked up first."""
    envelope, received_ns, size = row["envelope"], row["received_ns"], row["size"]
    sent_ns = signed(envelope["sent_ns"])
    if not run["has_accounts"]:
        # Bodies too small for an envelope: the send time is all there is.
        is_possible = size >= TIMESTAMP_BYTES and can_be_sent_at(sent_ns, received_ns)
        return RECEIVED if is_possible else MALFORMED
    is_carried = run["is_carried"]
    if (is_carried and envelope["run_tag"] == 0) or (not is_carried and size < ENVELOPE_BYTES):
        return MALFORMED
    if envelope["run_tag"] != run["run_tag"]:
        return FOREIGN
    producer, sequence = np.int64(envelope["producer"]), signed(envelope["sequence"])
    if producer >= run["producers"] or not 0 <= sequence < SEQUENCE_LIMIT:
        return MALFORMED
    party = parties[run["first_producer"] + producer]
    due_ns = due_ns_of(run, party, sequence)
    if due_ns == BEYOND_STRETCH:
        return BEYOND_STRETCH
    if is_not_sent_yet(run, parties, party, sequence, due_ns, received_ns):
        return UNEXPECTED
    intended_ns = signed(envelope["intended_ns"])
    if not is_carried and not can_be_due_at(run, due_ns, sent_ns, intended_ns, received_ns):
        return MALFORMED
    return RECEIVED


@inlined
def is_of_measured_phase(run: Any, parties: Rows, row: Any, is_ours: bool) -> int:
    """Whether a received message counts to the measured phase: by the moment at which it was due,
    or by its number, or else by that at which it arrived."""
    envelope = row["envelope"]
    if is_ours and signed(envelope["sent_ns"]) > 0:
        is_whole = run["has_accounts"]
        due_ns = signed(envelope["intended_ns"]) if is_whole else signed(envelope["sent_ns"])
        return int(due_ns >= run["measured_from_ns"])
    if is_ours and run["has_first_measured"]:
        producer = parties[run["first_producer"] + np.int64(envelope["producer"])]
        return int(signed(envelope["sequence"]) >= producer["first_measured"])
    return int(row["received_ns"] >= run["measured_from_ns"])


@inlined
def stop(run: Any, why: int, at_ns: int, is_measured: int, destination: int) -> None:
    """Note why a kernel stops, and the interval of the message that it stops at."""
    run["stopped_by"] = why
    run["at_ns"] = at_ns
    run["is_measured"] = is_measured
    run["destination"] = destination


@kernel
def record_received(
    rows: Rows, first: int, books: I64, interval: I64, sets: I64
) -> tuple[int, int]:
    """Classify received messages and record them; returns how far it came, and how many of these
    bear the tag of this run."""
    run, parties = books[:RUN_WORDS].view(RUN_DTYPE)[0], books[RUN_WORDS:].view(PARTY_DTYPE)
    tagged = 0
    latency, delivery_latency = interval[FIRST_HISTOGRAM:], interval[interval[SECOND_HISTOGRAM] :]
    for at in range(first, len(rows)):
        row = rows[at]
        received_ns = row["received_ns"]
        what = class_of(run, parties, row)
        if what == BEYOND_STRETCH:
            stop(run, OTHER_RATE, received_ns, 0, 0)
            return at, tagged
        is_ours = what == RECEIVED
        is_measured = is_of_measured_phase(run, parties, row, is_ours)
        place = run["first_subscription"] + row["subscription"]
        destination = parties[place]["destination"]
        if not belongs(interval, received_ns, is_measured, destination):
            stop(run, OTHER_INTERVAL, received_ns, is_measured, destination)
            return at, tagged
        known = NEW
        if is_ours and run["has_accounts"]:
            producer = parties[run["first_producer"] + np.int64(row["envelope"]["producer"])]
            group = row["subscription"] * run["streams"] + producer["stream"]
            known = add_sequence(sets, group, signed(row["envelope"]["sequence"]))
            if known == NO_ROOM:
                stop(run, FULL_SETS, received_ns, is_measured, destination)
                return at, tagged
        tagged += row["envelope"]["run_tag"] == run["run_tag"]
        interval[what] += 1
        if row["redelivered"]:
            interval[REDELIVERED] += 1
        if not is_ours:
            continue
        interval[BYTES] += np.int64(row["size"])
        if row["corrupted"]:
            interval[CORRUPTED] += 1
        if received_ns >= run["measured_from_ns"]:
            run["received_measured"] += 1
        if known == DUPLICATE:
            interval[DUPLICATES] += 1
            continue
        if known == OUT_OF_ORDER:
            interval[OUT_OF_ORDER_COUNT] += 1
        interval[ONCE] += 1
        parties[place]["received_once"] += 1
        # Not in a function of its own: numba would count references to each view passed on.
        sent_ns = signed(row["envelope"]["sent_ns"])
        if sent_ns > 0:
            record_value_ns(latency, received_ns - sent_ns, 1)
        if run["has_schedule"] and run["has_accounts"]:
            # When it was due may be known of a message that another agent sent.
            intended_ns = signed(row["envelope"]["intended_ns"])
            if intended_ns > 0 if run["is_carried"] else sent_ns > 0:
                record_value_ns(delivery_latency, received_ns - intended_ns, 1)
    return len(rows), tagged


@kernel
def fill_subscriptions(rows: Rows, table: I64) -> None:
    """Note of received messages by which subscription they came: by their lane and route."""
    for at in range(len(rows)):
        rows[at]["subscription"] = table[rows[at]["lane"], rows[at]["route"]]


@kernel
def stamp_of(run: Any, envelope: Any) -> int:
    """When the program of another maker says that it sent a message; -1 where that cannot be."""
    sent = signed(envelope["sent_ns"])
    if run["stamp_bytes"] > TIMESTAMP_BYTES:
        # PerfTest: a number of four bytes, then the moment in eight, both big-endian.
        high, low = sent >> 32 & 0xFFFFFFFF, signed(envelope["intended_ns"]) & 0xFFFFFFFF
        sent = 0
        for byte in range(4):
            sent |= (high >> 8 * byte & 0xFF) << (56 - 8 * byte)
            sent |= (low >> 8 * byte & 0xFF) << (24 - 8 * byte)
    unit_ns = run["stamp_unit_ns"]
    return int(sent * unit_ns) if 0 <= sent < (2**63 - 1) // unit_ns else -1


@kernel
def record_any(rows: Rows, first: int, books: I64, interval: I64) -> int:
    """Record messages of whoever; returns how far it came. Each belongs to the phase in which it
    arrived. What the broker had pushed before the start is received at the start."""
    run, parties = books[:RUN_WORDS].view(RUN_DTYPE)[0], books[RUN_WORDS:].view(PARTY_DTYPE)
    latency = interval[FIRST_HISTOGRAM:]
    for at in range(first, len(rows)):
        row = rows[at]
        received_ns = max(row["received_ns"], run["start_ns"])
        is_measured = int(received_ns >= run["measured_from_ns"])
        place = run["first_subscription"] + row["subscription"]
        destination = parties[place]["destination"]
        if not belongs(interval, received_ns, is_measured, destination):
            stop(run, OTHER_INTERVAL, received_ns, is_measured, destination)
            return at
        interval[RECEIVED] += 1
        interval[ONCE] += 1
        interval[BYTES] += np.int64(row["size"])
        if row["redelivered"]:
            interval[REDELIVERED] += 1
        if is_measured:
            if not run["received_measured"]:
                run["first_received_ns"] = received_ns
                run["last_received_ns"] = received_ns
            run["received_measured"] += 1
            run["first_received_ns"] = min(run["first_received_ns"], received_ns)
            run["last_received_ns"] = max(run["last_received_ns"], received_ns)
        if not run["stamp_bytes"]:
            continue
        sent_ns = stamp_of(run, row["envelope"])
        has_stamp = row["size"] >= run["stamp_bytes"]
        if has_stamp and can_be_sent_at(sent_ns, row["received_ns"]):
            record_value_ns(latency, row["received_ns"] - sent_ns, 1)
        else:
            interval[MALFORMED] += 1
    return len(rows)


@kernel
def find_possible_times(envelopes: Rows, received_ns: I64, books: I64, found: Any) -> int:
    """Of which messages of the run it can be true when they say they were sent and due; returns how
    far it came."""
    run, parties = books[:RUN_WORDS].view(RUN_DTYPE)[0], books[RUN_WORDS:].view(PARTY_DTYPE)
    for at in range(len(envelopes)):
        envelope = envelopes[at]
        due_ns, producer = NO_SCHEDULE, np.int64(envelope["producer"])
        if producer < run["producers"]:
            party = parties[run["first_producer"] + producer]
            due_ns = due_ns_of(run, party, signed(envelope["sequence"]))
        if due_ns == BEYOND_STRETCH:
            return at
        sent_ns, intended_ns = signed(envelope["sent_ns"]), signed(envelope["intended_ns"])
        found[at] = can_be_due_at(run, due_ns, sent_ns, intended_ns, received_ns[at])
    return len(envelopes)


# -- sent ------------------------------------------------------------------------------------------


@inlined
def is_measured_by(interval: I64, envelope: Any) -> int:
    """Whether a message that was sent here belongs to the measured phase."""
    sent_ns, intended_ns = signed(envelope["sent_ns"]), signed(envelope["intended_ns"])
    phase_ns = sent_ns if interval[IS_BY_SENDING] else intended_ns
    return int(phase_ns >= interval[MEASURED_FROM])


@kernel
def record_sent(
    words: I64,
    first: int,
    lanes: U32,
    sizes: U32,
    insert_ns: int,
    books: I64,
    interval: I64,
    inserting: I64,
) -> int:
    """Record messages that a transport has accepted at once, and then how long that took: one step
    more than there are messages. Returns how far it came. `sizes`: of each, or one of all."""
    envelopes, parties = words.view(ENVELOPE_DTYPE)[:, 0], books[RUN_WORDS:].view(PARTY_DTYPE)
    send_lag, last_size = interval[FIRST_HISTOGRAM:], len(sizes) - 1
    if not len(envelopes):
        return 1
    for at in range(first, len(envelopes)):
        envelope, lane = envelopes[at], lanes[at]
        sent_ns = signed(envelope["sent_ns"])
        is_measured = is_measured_by(interval, envelope)
        if not belongs(interval, sent_ns, is_measured, parties[lane]["destination"]):
            return at
        if is_measured:
            parties[lane]["sent_in_measure"] += 1
        else:
            parties[lane]["sent_in_warmup"] += 1
        interval[SENT] += 1
        interval[BYTES] += np.int64(sizes[min(at, last_size)])
        if interval[HAS_HISTOGRAMS]:
            send_lag_ns = sent_ns - signed(envelope["intended_ns"])
            record_value_ns(send_lag, send_lag_ns, 1)
    if not inserting[TICK_FROM] <= signed(envelopes[-1]["sent_ns"]) < inserting[TICK_END]:
        return len(envelopes)
    record_value_ns(inserting[FIRST_HISTOGRAM:], insert_ns, len(envelopes))
    return len(envelopes) + 1


@kernel
def record_outcomes(
    rows: Rows, first: int, books: I64, interval: I64, confirmed: I64, failed: I64
) -> tuple[int, int]:
    """Record what became of messages; returns how far it came, and how many of these have failed.
    Sets of length 0: no accounts."""
    parties, failures = books[RUN_WORDS:].view(PARTY_DTYPE), 0
    confirm_latency, round_trip = interval[FIRST_HISTOGRAM:], interval[interval[SECOND_HISTOGRAM] :]
    for at in range(first, len(rows)):
        row = rows[at]
        envelope, lane, kind = row["envelope"], int(np.int64(row["lane"])), row["kind"]
        is_measured = is_measured_by(interval, envelope)
        if not belongs(interval, row["at_ns"], is_measured, parties[lane]["destination"]):
            return at, failures
        latency_ns = row["at_ns"] - signed(envelope["sent_ns"])
        if kind == _CONFIRMED:
            if (
                len(confirmed)
                and add_sequence(confirmed, lane, signed(envelope["sequence"])) == NO_ROOM
            ):
                return at, failures
            parties[lane]["confirmed"] += 1
            record_value_ns(confirm_latency, latency_ns, 1)
        elif kind in (_REFUSED, _RETURNED):
            if len(failed) and add_sequence(failed, lane, signed(envelope["sequence"])) == NO_ROOM:
                return at, failures
            parties[lane]["failed"] += 1
            failures += 1
        elif kind == ANSWERED:
            record_value_ns(round_trip, latency_ns, 1)
        if kind <= _RETURNED:
            interval[COUNTERS + np.int64(kind)] += 1
    return len(rows), failures
