"""Where every message of the measured phase went.

The unit is the expected delivery, a message for a subscription; a fan-out has several of each
message, and each has its own fate:

    sent x copies = received_once + failed + left_in_broker + lost + indeterminate
    received = received_once + duplicates

Agents report which sequence numbers they saw as sets, and the driver unites them, so a duplicate in
one agent cannot hide a loss in another. *Lost* is a claim about the broker and made only where it
holds: the message was confirmed (or confirms were not used), it was not received, and nothing is
left for its subscription. Where that cannot be known the message is *indeterminate*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench_spark.core.sequences import SEQUENCE_LIMIT, SequencePages, SequenceSets
from bench_spark.scenario.topologies import Wiring


@dataclass(frozen=True)
class Sent:
    """What one producer sent; sequence numbers of the measured phase follow those of warm-up."""

    producer: int
    warmup: int
    measured: int


@dataclass(frozen=True)
class Accounts:
    """All but `sent` count deliveries."""

    sent: int = 0
    """Messages."""
    received_once: int = 0
    failed: int = 0
    """Of messages that were refused or returned, and not received all the same."""
    left_in_broker: int = 0
    lost: int = 0
    indeterminate: int = 0
    missing: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Per producer the first ranges of sequence numbers that never arrived, at one of its
    subscriptions."""
    copies: int = 1
    unexpected: int = 0
    """Numbers received that their producers have not sent, as far as no agent could know that when
    they arrived."""
    is_reported: bool = True
    """Whether every agent has told which numbers it saw; one that was killed has not."""

    @property
    def settled(self) -> int:
        return (
            self.received_once + self.failed + self.left_in_broker + self.lost + self.indeterminate
        )

    @property
    def closes(self) -> bool:
        return self.sent * self.copies == self.settled


def completed(known: Accounts, sent: int, received: int, duplicates: int) -> Accounts:
    """The accounts where agents ended without a report, by what the events have counted.

    Each agent has told its own duplicates from the rest; what two agents received of one message is
    counted twice here, but never as more than was sent. What became of the others nobody knows.
    """
    others = known.failed + known.left_in_broker + known.lost
    open_deliveries = max(0, sent * known.copies - others)
    received_once = min(received - duplicates, open_deliveries)
    return replace(
        known,
        sent=sent,
        received_once=received_once,
        indeterminate=open_deliveries - received_once,
    )


class Ledger:
    """Unites what all agents report, then draws up the accounts."""

    def __init__(self, wiring: Wiring, confirms: bool) -> None:
        self._wiring = wiring
        self._streams = wiring.streams
        self._stream_of = wiring.stream_of_producer
        self._confirms = confirms
        self._received = SequenceSets(wiring.subscriptions * self._streams)
        self._confirmed = SequenceSets(wiring.producers)
        self._failed = SequenceSets(wiring.producers)
        self._sent: dict[int, Sent] = {}

    def add_sent(self, sent: Sequence[Sent]) -> None:
        self._sent |= {entry.producer: entry for entry in sent}

    def add_pages(self, received: bytes, confirmed: bytes, failed: bytes) -> None:
        """Raises ValueError when the bytes are not what an agent sends."""
        self._received.absorb(SequencePages.from_bytes(received))
        self._confirmed.absorb(SequencePages.from_bytes(confirmed))
        self._failed.absorb(SequencePages.from_bytes(failed))

    def accounts(self, depths: Mapping[int, int | None], is_complete: bool) -> Accounts:
        """`depths`: messages left per subscription (None or absent: unknown). `is_complete`: every
        consumer reported, and all that was on its way has arrived, so a message that nobody
        reported was not received."""
        parts = [
            self._subscription(index, depths.get(index) if is_complete else None)
            for index in range(self._wiring.subscriptions)
        ]
        return Accounts(
            sent=sum(entry.measured for entry in self._sent.values()),
            received_once=sum(part.received_once for part in parts),
            failed=sum(part.failed for part in parts),
            left_in_broker=sum(part.left_in_broker for part in parts),
            lost=sum(part.lost for part in parts),
            indeterminate=sum(part.indeterminate for part in parts),
            missing={key: value for part in parts for key, value in part.missing.items()},
            copies=self._wiring.copies,
            unexpected=self._unexpected(),
        )

    def _unexpected(self) -> int:
        return sum(
            self._received.count(
                index * self._streams + int(self._stream_of[sent.producer]),
                sent.warmup + sent.measured,
                SEQUENCE_LIMIT,
            )
            for index in range(self._wiring.subscriptions)
            for sent in self._senders_to(index)
        )

    def _senders_to(self, subscription: int) -> Iterator[Sent]:
        group = self._wiring.group_of_subscription(subscription)
        for producer in self._wiring.producers_of_group(group):
            sent = self._sent.get(producer)
            if sent is not None and sent.measured:
                yield sent

    def _subscription(self, index: int, depth: int | None) -> Accounts:
        received_once = failed = sure = unsure = 0
        missing: dict[int, list[tuple[int, int]]] = {}
        for sent in self._senders_to(index):
            group = index * self._streams + int(self._stream_of[sent.producer])
            first, end = sent.warmup, sent.warmup + sent.measured
            arrived = self._received.count(group, first, end)
            received_once += arrived
            if arrived == sent.measured:
                continue
            absent = ~self._received.members(group, first, end)
            has_failed = self._failed.members(sent.producer, first, end) & absent
            is_open = absent & ~has_failed
            failed += int(np.count_nonzero(has_failed))
            is_sure = is_open
            if self._confirms:
                is_sure = is_open & self._confirmed.members(sent.producer, first, end)
            sure += int(np.count_nonzero(is_sure))
            unsure += int(np.count_nonzero(is_open)) - int(np.count_nonzero(is_sure))
            missing[sent.producer] = self._received.missing(group, first, end)
        if depth is None:
            return Accounts(0, received_once, failed, 0, 0, sure + unsure, missing)
        # What is still in the broker is not lost: it excuses confirmed messages first.
        left = min(depth, sure + unsure)
        lost = max(0, sure - left)
        return Accounts(
            sent=0,
            received_once=received_once,
            failed=failed,
            left_in_broker=left,
            lost=lost,
            indeterminate=sure + unsure - left - lost,
            missing=missing,
        )
