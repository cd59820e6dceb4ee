"""A row per event of a message, for the table `messages`: columns in, files out.

The loop's side only copies columns into a buffer, as the recorder does. A thread of its own turns
full buffers into files and reports them on the link. The format of a file belongs to the
`TraceWriter` that is handed in, so that this module needs no library for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from resource import RUSAGE_SELF, getrusage
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import Timeline
from bench_spark.config.sections import traced_every
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_DTYPE, Envelopes
from bench_spark.core.sequences import plausible
from bench_spark.errors import BenchError, RunError
from bench_spark.plan import Assignment
from bench_spark.process import watched
from bench_spark.transports.base import Destination
from bench_spark.transports.batches import Batch, OutcomeKind, Outcomes, Received

CHUNK_ROWS = 65_536
FILE_CHUNKS = 3
"""Full buffers that go into one file, at most: some 200 000 rows."""
MOST_WAITING_CHUNKS = 64
"""Buffers (5 MB each) that may wait for the writer before the run is given up."""
FLUSH_NS = NANOSECONDS
SETTLED_FILES = 5
"""From the fifth file on the memory of the process should not grow any more."""

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class MessageEvent(IntEnum):
    """What happened to a message; the names, in lower case, are those of the table."""

    SENT = 0
    CONFIRMED = 1
    REFUSED = 2
    RETURNED = 3
    RECEIVED = 4


_EVENT_OF_OUTCOME = np.zeros(max(OutcomeKind) + 1, np.uint8)
_EVENT_OF_OUTCOME[OutcomeKind.CONFIRMED] = MessageEvent.CONFIRMED
_EVENT_OF_OUTCOME[OutcomeKind.REFUSED] = MessageEvent.REFUSED
_EVENT_OF_OUTCOME[OutcomeKind.RETURNED] = MessageEvent.RETURNED

TRACE_DTYPE = np.dtype(
    [
        ("envelope", ENVELOPE_DTYPE),
        ("at_ns", "<i8"),
        ("insert_ns", "<i8"),
        ("content_hash", "<i8"),
        ("place", "<i4"),
        ("size", "<u4"),
        ("kind", "u1"),
        ("is_ours", "?"),
        ("has_hash", "?"),
    ]
)
"""`place`: the producer's lane, or the place of the subscription a message came by. A message that
is not `is_ours` has no number that means anything here."""

Rows = npt.NDArray[np.void]


@dataclass(frozen=True)
class TraceSetup:
    """What must be known of an agent to write down its messages."""

    run_id: str
    run_tag: int
    agent: int
    attempt: int
    every: int
    """Of so many sequence numbers one is traced: both ends choose the same messages."""
    producers: int
    """Producers in the whole run."""
    timeline: Timeline
    destinations_by_producer: tuple[str, ...]
    """Per local producer lane."""
    subscriptions: tuple[int, ...]
    """Numbers in the whole run of the subscriptions this agent serves."""
    destinations_by_subscription: tuple[str, ...]
    first_measured: tuple[int, ...] | None = None
    """Per producer of the run, from which number on its messages belong to the measured phase: for
    those that say by IDs who they are, and not when they were due."""


def trace_setup(
    assignment: Assignment,
    timeline: Timeline,
    destinations: Mapping[int, Destination],
    attempt: int,
) -> TraceSetup:
    names = {index: destination.name or "" for index, destination in destinations.items()}
    return TraceSetup(
        run_id=assignment.run_id,
        run_tag=assignment.run_tag,
        agent=assignment.agent,
        attempt=attempt,
        every=traced_every(assignment.scenario.trace),
        producers=assignment.scenario.producers,
        timeline=timeline,
        destinations_by_producer=tuple(
            names[member.destinations[0]] for member in assignment.producers
        ),
        subscriptions=tuple(assignment.subscriptions),
        destinations_by_subscription=tuple(names[one] for one in assignment.first_destinations),
        first_measured=assignment.first_measured,
    )


@dataclass(frozen=True)
class MessageFile:
    """A file that lies in the directory of the table `messages`, and is to be added to it."""

    number: int
    """Of this agent's files, from 0."""
    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class TraceWriter(Protocol):
    def write(self, number: int, first_row: int, rows: Sequence[Rows]) -> MessageFile:
        """Write one file; raises a BenchError if that cannot be done."""


MakeMessageWriter = Callable[[TraceSetup], TraceWriter]

HasPossibleTimes = Callable[[Envelopes, I64], Mask]
"""Of which messages of the run, received then, it can be true when they say they were sent."""


def _any_times(envelope: Envelopes, received_ns: I64) -> Mask:
    return np.ones(len(envelope), np.bool_)


class Tracer:
    """Owned by the agent's loop, but for the thread that writes."""

    def __init__(
        self,
        setup: TraceSetup,
        writer: TraceWriter,
        on_file: Callable[[MessageFile], None],
        has_possible_times: HasPossibleTimes = _any_times,
    ) -> None:
        self._setup = setup
        self._has_possible_times = has_possible_times
        self._writer = writer
        self._on_file = on_file
        self._chunk = np.zeros(CHUNK_ROWS, TRACE_DTYPE)
        self._rows = 0
        self._next_flush_ns = 0
        self._waiting: deque[Rows] = deque()
        self._free: deque[Rows] = deque()
        self._has_work = threading.Event()
        self._is_closing = False
        self._most_waiting_rows = 0
        self._files = self._rows_written = 0
        self._memory_bytes: list[int] = []
        self.failure: BenchError | None = None
        self._thread = threading.Thread(target=watched(self._work), name="tracer", daemon=True)
        self._thread.start()

    # -- columns in ------------------------------------------------------------------------------

    def sent(self, batch: Batch, accepted: int, body_bytes: int, insert_ns: int) -> None:
        """Messages accepted by the transport, from the front of a batch, in one call that took
        `insert_ns`. `body_bytes`: of all of them, where the batch says nothing else."""
        lane, envelope = batch.lane[:accepted], batch.envelope[:accepted]
        sizes = body_bytes if batch.sizes is None else batch.sizes[:accepted]
        hashes = None if batch.hashes is None else batch.hashes[:accepted]
        chosen = self._chosen(envelope)
        if chosen is not None:
            lane, envelope = lane[chosen], envelope[chosen]
            sizes = sizes if isinstance(sizes, int) else sizes[chosen]
            hashes = None if hashes is None else hashes[chosen]
        for rows, part in self._room_for(len(envelope)):
            rows["envelope"] = envelope[part]
            rows["at_ns"] = rows["envelope"]["sent_ns"]
            rows["insert_ns"] = insert_ns
            rows["place"] = lane[part]
            rows["size"] = sizes if isinstance(sizes, int) else sizes[part]
            rows["kind"] = MessageEvent.SENT
            rows["is_ours"] = True
            _put_hashes(rows, hashes, part)

    def outcomes(self, outcomes: Outcomes) -> None:
        is_told = outcomes.kind != OutcomeKind.UNKNOWN
        chosen = self._chosen(outcomes.envelope)
        places = np.flatnonzero(is_told if chosen is None else is_told & chosen)
        envelope, at_ns, lane = (
            outcomes.envelope[places],
            outcomes.at_ns[places],
            outcomes.lane[places],
        )
        kind = _EVENT_OF_OUTCOME[outcomes.kind[places]]
        for rows, part in self._room_for(len(places)):
            rows["envelope"] = envelope[part]
            rows["at_ns"] = at_ns[part]
            rows["insert_ns"] = 0
            rows["place"] = lane[part]
            rows["size"] = 0
            rows["kind"] = kind[part]
            rows["is_ours"] = True
            rows["has_hash"] = False

    def received(self, received: Received) -> None:
        """Messages received; `subscription` is the place of the one each came by."""
        subscription = received.rows["subscription"]
        envelope, hashes = received.envelope, received.hashes
        is_ours = (
            (envelope["run_tag"] == self._setup.run_tag)
            & (envelope["producer"] < self._setup.producers)
            & plausible(envelope["sequence"].astype(np.int64))
        )
        is_ours &= self._has_possible_times(envelope, received.received_ns)
        at_ns, size = received.received_ns, received.size
        chosen = self._chosen(envelope)
        if chosen is not None:
            chosen &= is_ours
            envelope, at_ns, size, is_ours = (
                envelope[chosen],
                at_ns[chosen],
                size[chosen],
                is_ours[chosen],
            )
            subscription = subscription[chosen]
            hashes = None if hashes is None else hashes[chosen]
        for rows, part in self._room_for(len(envelope)):
            rows["envelope"] = envelope[part]
            rows["at_ns"] = at_ns[part]
            rows["insert_ns"] = 0
            rows["place"] = subscription[part]
            rows["size"] = size[part]
            rows["kind"] = MessageEvent.RECEIVED
            rows["is_ours"] = is_ours[part]
            _put_hashes(rows, hashes, part)

    def _chosen(self, envelope: Envelopes) -> Mask | None:
        """Which of these messages are traced; None for all."""
        if self._setup.every == 1:
            return None
        chosen: Mask = envelope["sequence"] % np.uint64(self._setup.every) == 0
        return chosen

    def _room_for(self, count: int) -> Iterator[tuple[Rows, slice]]:
        """Places for so many rows, in one stretch or several, and which of them go there.

        The caller fills each before it asks for the next, so a full buffer can be handed over.
        """
        first = 0
        while first < count:
            room = min(CHUNK_ROWS - self._rows, count - first)
            rows = self._chunk[self._rows : self._rows + room]
            yield rows, slice(first, first + room)
            self._rows += room
            first += room
            if self._rows == CHUNK_ROWS:
                self._hand_over()

    # -- handing over ----------------------------------------------------------------------------

    def flush_if_due(self, now_ns: int) -> None:
        """Once per second, so that what is in the table is never far behind."""
        if now_ns >= self._next_flush_ns:
            self._next_flush_ns = now_ns + FLUSH_NS
            self._hand_over()
            self._most_waiting_rows = max(self._most_waiting_rows, self._count_waiting())
            if len(self._waiting) > MOST_WAITING_CHUNKS and self.failure is None:
                self.failure = RunError(
                    "trace: rows of messages are written more slowly than they are made; use "
                    "sample 1/N, more agents, or a faster store"
                )

    def close(self) -> None:
        """Write what is left; all files are reported when this returns."""
        self._hand_over()
        self._is_closing = True
        self._has_work.set()
        self._thread.join()

    def _count_waiting(self) -> int:
        return sum(len(chunk) for chunk in tuple(self._waiting))

    def report(self) -> dict[str, int]:
        """How the writing went; to be asked when it is over."""
        first, last = (self._memory_bytes or [0])[0], (self._memory_bytes or [0])[-1]
        return {
            "rows": self._rows_written,
            "files": self._files,
            "most_waiting_rows": self._most_waiting_rows,
            "memory_growth_bytes": last - first,
        }

    def _hand_over(self) -> None:
        if not self._rows:
            return
        self._waiting.append(self._chunk[: self._rows])
        self._rows = 0
        self._chunk = self._free.popleft() if self._free else np.zeros(CHUNK_ROWS, TRACE_DTYPE)
        self._has_work.set()

    # -- the tracer's own thread -----------------------------------------------------------------

    def _work(self) -> None:
        number = first_row = 0
        while True:
            # Asked before the queue is looked at: what was handed over before closing is in it.
            is_closing = self._is_closing
            parts = [self._waiting.popleft() for _ in range(min(FILE_CHUNKS, len(self._waiting)))]
            if not parts:
                if is_closing:
                    return
                self._has_work.wait()
                self._has_work.clear()
                continue
            if self.failure is None:
                self._write(number, first_row, parts)
            number += 1
            first_row += sum(map(len, parts))
            self._free.extend(part.base for part in parts if part.base is not None)

    def _write(self, number: int, first_row: int, parts: Sequence[Rows]) -> None:
        try:
            file = self._writer.write(number, first_row, parts)
        except BenchError as error:
            # The loop finds it and ends the run; what comes after it is not written.
            self.failure = error
            return
        self._on_file(file)
        self._files += 1
        self._rows_written += file.rows
        if self._files >= SETTLED_FILES:
            peak_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
            self._memory_bytes = [*self._memory_bytes[:1], peak_bytes]


class NoTracer:
    """Where the scenario does not ask for single messages."""

    failure: BenchError | None = None

    def flush_if_due(self, now_ns: int) -> None: ...

    def close(self) -> None: ...

    def report(self) -> None: ...


def _put_hashes(rows: Rows, hashes: I64 | None, part: slice) -> None:
    rows["has_hash"] = hashes is not None
    if hashes is not None:
        rows["content_hash"] = hashes[part]
