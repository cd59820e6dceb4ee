"""What received messages are: ours, foreign, malformed or unexpected; of which phase; new or seen
before.

A body may have been changed on its way, or forged. What its envelope says is therefore believed as
far as it can be true: the time it was sent, the time it was due, and its number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench_spark.agent.recorder_setup import RecorderSetup
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    TIMESTAMP_BYTES,
    Envelopes,
)
from bench_spark.core.sequences import SequenceSets, plausible
from bench_spark.transports.base import I64, U32, Bool

RECEIVED_DTYPE = np.dtype(
    [
        ("received_ns", "<i8"),
        ("subscription", "<i4"),
        ("size", "<u4"),
        ("redelivered", "?"),
        ("corrupted", "?"),
        ("head", ENVELOPE_DTYPE),
    ]
)


@dataclass(frozen=True)
class Judged:
    """Of each message."""

    ours: Bool
    malformed: Bool
    """It cannot be a message of this tool."""
    foreign: Bool
    """It is one of another run."""
    unexpected: Bool
    """It has a number that its producer has not used yet."""
    measured: Bool
    """It belongs to the measured phase, and not to the warm-up."""
    duplicate: Bool
    out_of_order: Bool
    sent_ns: I64
    intended_ns: I64
    has_times: Bool
    """It is ours, and known when it was sent and meant to be sent."""


EARLIEST_SENT_NS = 978_307_200 * NANOSECONDS
"""2001: no clock that is set shows an earlier year."""
FURTHEST_AHEAD_NS = 3600 * NANOSECONDS
"""How far a clock that is set may be ahead of ours: an hour is a wrong time zone already."""
CLOCKS_APART_NS = NANOSECONDS
"""By how much the clocks of two agents may differ at most, whatever was measured."""
SHORTEST_SENDING_NS = 20
"""No producer sends a message in less time."""


def possible_send_times(sent_ns: I64, received_ns: I64) -> Bool:
    """Which of these moments can be when a message was sent, whoever sent it."""
    possible: Bool = (sent_ns >= EARLIEST_SENT_NS) & (sent_ns <= received_ns + FURTHEST_AHEAD_NS)
    return possible


def possible_times(
    head: Envelopes, received_ns: I64, setup: RecorderSetup, timeline: Timeline
) -> Bool:
    """Which of these envelopes of the run can say the truth about when they were sent and due.

    On a schedule the number says when a message was due, so that a changed `intended_ns`, or a
    changed number, is always found. Without one both times are the same, and in the other loads a
    message is due between the start and its sending; then a message that seems to have been sent
    before the run began is believed to be as old as that, if it says when it was due.
    """
    sent_ns, intended_ns = head["sent_ns"].astype(np.int64), head["intended_ns"].astype(np.int64)
    possible = possible_send_times(sent_ns, received_ns)
    if setup.due_times is not None:
        due_ns, is_known = setup.due_times.of(head["producer"], head["sequence"].astype(np.int64))
        possible &= ~is_known | (intended_ns == due_ns)
        return possible
    in_time = intended_ns <= sent_ns if setup.has_schedule else intended_ns == sent_ns
    in_time |= (sent_ns < timeline.start_ns) & (intended_ns <= received_ns + CLOCKS_APART_NS)
    return possible & in_time & (intended_ns >= timeline.start_ns)


def judge(
    table: npt.NDArray[np.void],
    setup: RecorderSetup,
    timeline: Timeline,
    known: SequenceSets,
    sent_by_lane: I64,
) -> Judged:
    """`table` has the columns of `RECEIVED_DTYPE`; its messages are added to those `known`.
    `sent_by_lane`: how many messages this agent's own producers have sent by now."""
    rows = len(table)
    received_ns, head, size = table["received_ns"], table["head"], table["size"]
    sent_ns = head["sent_ns"].astype(np.int64)
    if setup.has_accounts:
        intended_ns = head["intended_ns"].astype(np.int64)
        malformed, foreign = _not_ours(head, size, setup)
        unexpected = _not_sent_yet(head, received_ns, setup, timeline, sent_by_lane)
        unexpected &= ~(malformed | foreign)
        if not setup.is_carried:
            # A number that nobody has used yet has no time at which it was due.
            is_in_doubt = ~(malformed | foreign | unexpected)
            is_possible = possible_times(head, received_ns, setup, timeline)
            malformed |= is_in_doubt & ~is_possible
    else:
        # Bodies too small for an envelope: the send time is all there is.
        intended_ns = sent_ns
        malformed = (size < TIMESTAMP_BYTES) | ~possible_send_times(sent_ns, received_ns)
        foreign, unexpected = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    ours = ~(malformed | foreign | unexpected)
    has_times = ours & (sent_ns > 0)
    measured = timeline.phase_of(np.where(has_times, intended_ns, received_ns))
    if setup.first_measured is not None:
        of_others = ours & ~has_times
        first = setup.first_measured[head["producer"][of_others]]
        measured[of_others] = head["sequence"][of_others].astype(np.int64) >= first
    duplicate = np.zeros(rows, np.bool_)
    out_of_order = np.zeros(rows, np.bool_)
    if setup.has_accounts and ours.any():
        producer = head["producer"][ours].astype(np.int64)
        subscription = table["subscription"][ours].astype(np.int64)
        group = subscription * setup.streams_per_subscription + setup.stream_of_producer[producer]
        added = known.add(group, head["sequence"][ours].astype(np.int64))
        duplicate[ours] = added.duplicate
        out_of_order[ours] = added.out_of_order
    return Judged(
        ours=ours,
        malformed=malformed,
        foreign=foreign,
        unexpected=unexpected,
        measured=measured,
        duplicate=duplicate,
        out_of_order=out_of_order,
        sent_ns=sent_ns,
        intended_ns=intended_ns,
        has_times=has_times,
    )


def _not_ours(head: Envelopes, size: U32, setup: RecorderSetup) -> tuple[Bool, Bool]:
    """Which are malformed, and which foreign."""
    nameless = head["run_tag"] == 0 if setup.is_carried else size < ENVELOPE_BYTES
    foreign = ~nameless & (head["run_tag"] != setup.run_tag)
    impossible = (head["producer"] >= setup.producers) | ~plausible(
        head["sequence"].astype(np.int64)
    )
    return nameless | (~foreign & impossible), foreign


def _not_sent_yet(
    head: Envelopes, received_ns: I64, setup: RecorderSetup, timeline: Timeline, sent_by_lane: I64
) -> Bool:
    """Which numbers are beyond those that their producers can have used.

    Of this agent's own producers that is known. Messages of others are due before they arrive;
    where there is no schedule, only what no producer could have sent since the start is refused
    here, and the driver finds the rest when all have said what they sent.
    """
    sequence = head["sequence"].astype(np.int64)
    elapsed_ns = received_ns - timeline.start_ns + CLOCKS_APART_NS
    most = np.maximum(elapsed_ns, 0) // SHORTEST_SENDING_NS
    unexpected: Bool = sequence >= most
    if setup.due_times is not None:
        due_ns, is_known = setup.due_times.of(head["producer"], sequence)
        # What is due after the end of all times is negative here.
        in_time = (due_ns >= timeline.start_ns) & (due_ns <= received_ns + CLOCKS_APART_NS)
        unexpected |= is_known & ~in_time
    if setup.own_producers:
        sent = np.full(setup.producers, -1, np.int64)
        sent[list(setup.own_producers)] = sent_by_lane
        own = sent[np.where(head["producer"] < setup.producers, head["producer"], 0)]
        unexpected = np.where(own >= 0, sequence >= own, unexpected)
    return unexpected
