"""Bodies: measurement data in front, padding behind, and how large they are over time. Pure.

A message has the size of the moment at which it is sent, so that its size is known from its send
time alone: nobody needs to keep it.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import Timeline
from bench_spark.config.sections import Message
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.core.random_bytes import RandomBytes, RandomRows
from bench_spark.transports.batches import HEAD_ONLY, U8, Batch, Outcomes, Part, Received, Tails

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


def head_bytes(message: Message) -> int:
    """How much of the envelope fits: all 32 bytes, or only the send time in tiny bodies."""
    return ENVELOPE_BYTES if message.bytes >= ENVELOPE_BYTES else 8


class Bodies(Protocol):
    """Makes the bodies of messages, and knows messages again by them."""

    is_numbered: bool
    """Whether a message says which one it is, and of which run."""
    head_bytes: int
    """How much of a message's head goes into its body as it is."""

    @property
    def wants(self) -> frozenset[Part]:
        """What must be received of a message besides its head."""

    def set_size(self, body_bytes: int, messages: int) -> None:
        """From now on bodies have so many bytes, and at most so many are sent at once."""

    def tails(self, messages: int) -> Tails:
        """What follows the heads of a batch."""

    def prepare(self, batch: Batch) -> None:
        """Make the bodies of a batch; the times in its heads need not be known yet."""

    def accepted(self, batch: Batch, count: int) -> None:
        """The first of these messages are out."""

    def answered(self, outcomes: Outcomes) -> None:
        """What became of messages; answers may name their IDs."""

    def identify(self, received: Received) -> Received:
        """The same messages, with the heads they were sent with as far as they are known here."""


class PaddedBodies:
    """An envelope and padding. Random padding is drawn anew for every message that is sent, so that
    compression finds nothing between bodies.

    Which message gets which random bytes does not matter, so those that a transport did not accept
    serve the next batch: what is drawn is what is sent, however small the part of a batch is that
    a full socket takes. It is drawn when messages are out, and not while the next ones are due.
    """

    wants = HEAD_ONLY

    def __init__(self, message: Message, seed: int) -> None:
        self.head_bytes = head_bytes(message)
        self.is_numbered = self.head_bytes == ENVELOPE_BYTES
        self._random = None if message.padding == "zero" else RandomBytes(seed)
        self._zeros = b""
        self._rows: RandomRows | None = None

    def set_size(self, body_bytes: int, messages: int) -> None:
        padding_bytes = body_bytes - self.head_bytes
        if self._random is None:
            self._zeros = bytes(padding_bytes)
        else:
            self._rows = RandomRows(self._random, messages, padding_bytes)

    def tails(self, messages: int) -> bytes | U8:
        """One for all, or a row for each of the messages, always in the same memory."""
        return self._zeros if self._rows is None else self._rows.rows[:messages]

    def prepare(self, batch: Batch) -> None:
        """Its tails are what they must be."""

    def accepted(self, batch: Batch, count: int) -> None:
        if self._rows is not None:
            self._rows.renew(count)

    def answered(self, outcomes: Outcomes) -> None:
        """Envelopes need no answers."""

    def identify(self, received: Received) -> Received:
        return received
