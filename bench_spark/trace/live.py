"""Latencies of messages that the agent which received them could not time, while the run goes on.

Where messages carry only an ID, the agent that received one may not know when another sent it. Both
ends' rows come to the driver's table within a second or two; here they are joined as they come, by
numpy, and folded into event rows, so that the rolling metrics show these latencies like any others.

Nothing here decides a result: what is too old to wait for is forgotten here, and found by the join
of the whole table when the run ends (`joining.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.timeline import CONSUMER, MEASURE, WARMUP
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.trace.joining import I64, SEQUENCE_BITS, JoinRule, Mask

PAGE_BITS = 12
_PAGE = 1 << PAGE_BITS
MOST_PAGES = 2_048
"""Pages of messages sent that are remembered: some 8 million messages, 140 MB."""
MOST_WAITING = 1_000_000
"""Arrivals that wait for the row of their sending."""
REMEMBERED_FILES = 120
"""Files that are read only once a message turns out to need them."""
DRIVER = -1
"""Whose event rows these are: no agent's."""

_COLUMNS = ["kind", "producer", "sequence", "subscription", "intended_ns", "sent_ns", "at_ns"]


@dataclass
class _Page:
    """Consecutive messages of a producer: when each was sent and due (0: not known), and at which
    subscriptions it has arrived."""

    sent_ns: I64 = field(default_factory=lambda: np.zeros(_PAGE, np.int64))
    intended_ns: I64 = field(default_factory=lambda: np.zeros(_PAGE, np.int64))
    seen: dict[int, Mask] = field(default_factory=dict)


@dataclass(frozen=True)
class _Arrivals:
    key: I64
    subscription: I64
    at_ns: I64
    due_ns: I64
    """0 where the agent did not know it: then nobody has recorded the time since."""

    def __len__(self) -> int:
        return len(self.key)

    def rows(self, places: npt.NDArray[np.int64] | Mask) -> _Arrivals:
        return _Arrivals(*(getattr(self, name)[places] for name in _ARRIVAL))


_ARRIVAL = ("key", "subscription", "at_ns", "due_ns")


class LiveJoin:
    """Used by one thread: the one that commits the files."""

    def __init__(self, rule: JoinRule) -> None:
        self._rule = rule
        self._shape = shape_for(rule.highest_us)
        self._pages: dict[int, _Page] = {}
        self._waiting: list[_Arrivals] = []
        self._cells: dict[tuple[int, str], dict[str, Histogram]] = {}
        self._row_number = 0

    def add(self, rows: pa.Table) -> None:
        """Rows of `messages`, in any order."""
        rows = rows.filter(pc.is_valid(rows["producer"]))
        kind = rows["kind"].cast(pa.string())
        self._add_sent(rows.filter(pc.equal(kind, "sent")))
        is_untimed = pc.and_(pc.equal(kind, "received"), pc.is_null(rows["sent_ns"]))
        untimed = rows.filter(is_untimed)
        if len(untimed):
            columns = (_column(untimed, name) for name in ("subscription", "at_ns", "intended_ns"))
            self._waiting.append(_Arrivals(_keys(untimed), *columns))
        self._match()

    def rows(self) -> list[EventRow]:
        """What was found since the last call, per tick and phase."""
        cells, self._cells = self._cells, {}
        made = []
        for (tick, phase), histograms in sorted(cells.items()):
            timeline = self._rule.timeline
            made.append(
                EventRow(
                    row_number=self._row_number,
                    role=CONSUMER,
                    phase=phase,
                    tick=tick,
                    tick_start_ns=timeline.tick_start_ns(tick),
                    tick_seconds=timeline.tick_seconds(tick),
                    counters={},
                    histograms={name: found.sparse() for name, found in histograms.items()},
                )
            )
            self._row_number += 1
        return made

    def _add_sent(self, sent: pa.Table) -> None:
        keys = _keys(sent)
        sent_ns, intended_ns = _column(sent, "sent_ns"), _column(sent, "intended_ns")
        for number, places in _by_page(keys):
            page = self._pages.setdefault(number, _Page())
            inside = keys[places] & (_PAGE - 1)
            page.sent_ns[inside] = sent_ns[places]
            page.intended_ns[inside] = intended_ns[places]
        while len(self._pages) > MOST_PAGES:
            self._pages.pop(next(iter(self._pages)))

    def _match(self) -> None:
        if not self._waiting:
            return
        arrivals = _Arrivals(
            *(np.concatenate([getattr(part, name) for part in self._waiting]) for name in _ARRIVAL)
        )
        # In order of time, so that the first arrival of a message is the one that counts.
        arrivals = arrivals.rows(np.argsort(arrivals.at_ns, kind="stable"))
        is_open = np.ones(len(arrivals), np.bool_)
        for number, places in _by_page(arrivals.key):
            page = self._pages.get(number)
            if page is None:
                continue
            inside = arrivals.key[places] & (_PAGE - 1)
            is_known = page.sent_ns[inside] > 0
            is_open[places[is_known]] = False
            self._record(page, arrivals.rows(places[is_known]), inside[is_known])
        still = arrivals.rows(np.flatnonzero(is_open)[-MOST_WAITING:])
        self._waiting = [still] if len(still) else []

    def _record(self, page: _Page, arrivals: _Arrivals, inside: I64) -> None:
        for subscription in np.unique(arrivals.subscription).tolist():
            seen = page.seen.setdefault(subscription, np.zeros(_PAGE, np.bool_))
            mine = np.flatnonzero(arrivals.subscription == subscription)
            _, first = np.unique(inside[mine], return_index=True)
            mine = mine[first]
            mine = mine[~seen[inside[mine]]]
            seen[inside[mine]] = True
            sent_ns, intended_ns = page.sent_ns[inside[mine]], page.intended_ns[inside[mine]]
            self._fold(arrivals.rows(mine), sent_ns, intended_ns)

    def _fold(self, arrivals: _Arrivals, sent_ns: I64, intended_ns: I64) -> None:
        at_ns = arrivals.at_ns
        timeline = self._rule.timeline
        code = timeline.tick_of(at_ns) * 2 + timeline.phase_of(intended_ns)
        for value in np.unique(code).tolist():
            chosen = code == value
            key = value >> 1, MEASURE if value & 1 else WARMUP
            self._histogram(key, "latency").record_ns((at_ns - sent_ns)[chosen])
            unknown_due = chosen & (arrivals.due_ns == 0)
            if self._rule.has_schedule and unknown_due.any():
                since_due_ns = (at_ns - intended_ns)[unknown_due]
                self._histogram(key, "delivery_latency").record_ns(since_due_ns)

    def _histogram(self, key: tuple[int, str], measure: str) -> Histogram:
        return self._cells.setdefault(key, {}).setdefault(measure, Histogram(self._shape))


class LiveFiles:
    """Files of messages that were just committed, read again only if some message needs it.

    A file's footer shows whether it has arrivals without a send time. Most runs have none, and then
    nothing is read; from the first one on, everything is, the last two minutes included.
    """

    def __init__(self, filesystem: fs.FileSystem, join: LiveJoin) -> None:
        self._filesystem = filesystem
        self._join = join
        self._unread: deque[str] = deque(maxlen=REMEMBERED_FILES)
        self._is_needed = False

    def added(self, paths: list[str]) -> list[EventRow]:
        self._unread.extend(paths)
        if not self._is_needed:
            self._is_needed = any(self._has_untimed(path) for path in paths)
        if not self._is_needed:
            return []
        while self._unread:
            path = self._unread.popleft()
            self._join.add(pq.read_table(path, columns=_COLUMNS, filesystem=self._filesystem))
        return self._join.rows()

    def _has_untimed(self, path: str) -> bool:
        with self._filesystem.open_input_file(path) as file:
            footer = pq.read_metadata(file)
        nulls = {"producer": 0, "sent_ns": 0}
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema in nulls:
                    nulls[column.path_in_schema] += column.statistics.null_count
        # A message without an ID has no send time either, and is not ours to time.
        return nulls["sent_ns"] > nulls["producer"]


def _column(rows: pa.Table, name: str) -> I64:
    column = rows[name].combine_chunks().cast(pa.int64()).fill_null(0)
    found: I64 = column.to_numpy(zero_copy_only=False)
    return found


def _keys(rows: pa.Table) -> I64:
    return _column(rows, "producer") << SEQUENCE_BITS | _column(rows, "sequence")


def _by_page(keys: I64) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Numbers of pages, each with the places of its keys, in their order."""
    if not len(keys):
        return
    pages = keys >> PAGE_BITS
    order = np.argsort(pages, kind="stable")
    starts = np.flatnonzero(np.diff(pages[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(pages[order[start]]), order[start:end]
