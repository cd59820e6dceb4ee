"""What received messages are: ours, foreign or malformed; of which phase; new or seen before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench_spark.agent.recorder_setup import RecorderSetup
from bench_spark.agent.timeline import Timeline
from bench_spark.measure.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    TIMESTAMP_BYTES,
    Envelopes,
)
from bench_spark.measure.sequences import SequenceSets, plausible
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
    measured: Bool
    """It belongs to the measured phase, and not to the warm-up."""
    duplicate: Bool
    out_of_order: Bool
    sent_ns: I64
    intended_ns: I64
    has_times: Bool
    """It is ours, and known when it was sent and meant to be sent."""


def judge(
    table: npt.NDArray[np.void],
    setup: RecorderSetup,
    timeline: Timeline,
    known: SequenceSets,
) -> Judged:
    """`table` has the columns of `RECEIVED_DTYPE`; its messages are added to those `known`."""
    rows = len(table)
    received_ns, head, size = table["received_ns"], table["head"], table["size"]
    sent_ns = head["sent_ns"].astype(np.int64)
    if setup.has_accounts:
        intended_ns = head["intended_ns"].astype(np.int64)
        malformed, foreign = _not_ours(head, size, setup)
    else:
        # Bodies too small for an envelope: the send time is all there is.
        intended_ns = sent_ns
        malformed = size < TIMESTAMP_BYTES
        foreign = np.zeros(rows, np.bool_)
    ours = ~(malformed | foreign)
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
