"""What rows of single messages add up to, joined by the ID of the message. Pure: numpy and Arrow.

`join_parts` runs on the executors, inside `mapInArrow`, over rows that were brought together by
producer and block of sequence numbers, so that all rows of a message are in one place; `unite` adds
up, in the driver, the few rows that come back. Nothing is estimated: every message is looked at.

The order of arrival cannot be judged block by block, but whether there is anything to judge can:
where the blocks of a stream arrived one after the other, each in order, all of it did. Else
`spark/run_messages.py` looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import MessageEvent
from bench_spark.core.hdr import TOTALS, Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.store.arrow import HISTOGRAMS, histogram_array

COUNTS = ("sent", "confirmed", "received", "received_once", "corrupted", "unexpected", "untimed")
"""Of messages of the measured phase, but for `unexpected`, whose phase nobody knows. `untimed` is
how many of `received_once` had a send time that the receiving agent did not know."""

ROWS = pa.schema(
    [
        ("agent", pa.int32()),
        ("kind", pa.int8()),
        ("is_measured", pa.bool_()),
        ("producer", pa.int32()),
        ("sequence", pa.int64()),
        ("subscription", pa.int32()),
        ("intended_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("at_ns", pa.int64()),
        ("number", pa.int64()),
        ("content_hash", pa.int64()),
    ]
)
"""What joining needs of `messages`; `kind` is a number of `MessageEvent`."""

_STRETCH = pa.struct(
    [
        ("agent", pa.int32()),
        ("subscription", pa.int32()),
        ("block", pa.int64()),
        ("first_number", pa.int64()),
        ("last_number", pa.int64()),
        ("is_in_order", pa.bool_()),
    ]
)
"""The arrivals of one block of a producer's messages, by one subscription in one agent."""

PARTS = pa.schema(
    [
        ("producer", pa.int32()),  # null in rows with histograms, and of messages without an ID
        ("tick", pa.int32()),  # of rows with histograms
        *((name, pa.int64()) for name in COUNTS),
        ("histograms", HISTOGRAMS),
        ("stretches", pa.list_(_STRETCH)),
    ]
)
"""What `join_parts` yields: per producer what was counted and how it arrived, per tick what was
measured."""

BLOCK_MESSAGES = 65_536
"""Consecutive messages of a producer that are joined in one place."""

SEQUENCE_BITS = 40
_NO_PRODUCER = -1

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinRule:
    """What must be known of the run."""

    timeline: Timeline
    highest_us: int
    has_schedule: bool


@dataclass(frozen=True)
class JoinedMessages:
    """All messages of a run, looked at one by one."""

    by_producer: Mapping[int | None, Mapping[str, int]]
    """The `COUNTS`; None for messages without an ID."""
    ticks: Mapping[str, Mapping[int, SparseHistogram]]
    """Per measure, by the tick in which it ended."""
    is_in_order: bool = True
    """Whether all that arrived did so in the order in which it was sent."""
    out_of_order: Mapping[int, int] = field(default_factory=dict)
    """Per producer that has any."""

    def total(self, name: str) -> int:
        return sum(counts[name] for counts in self.by_producer.values())

    @property
    def duplicates(self) -> int:
        return self.total("received") - self.total("received_once")

    def missing(self, copies: int) -> int:
        """Deliveries that did not arrive."""
        return self.total("sent") * copies - self.total("received_once")

    def histogram(self, measure: str) -> SparseHistogram:
        return merge_sparse(list(self.ticks.get(measure, {}).values()))


def join_parts(batches: Iterable[pa.RecordBatch], rule: JoinRule) -> Iterator[pa.RecordBatch]:
    """Rows of `ROWS` in, rows of `PARTS` out; the batches hold all rows of every message."""
    table = pa.Table.from_batches(batches, schema=ROWS)
    if table.num_rows:
        yield _joined(_Columns(table), rule)


class _Columns:
    """The rows as arrays; what is null is 0 there, and False in `known`."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        column = self._table[name].combine_chunks()
        if column.null_count:
            column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
        found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found

    def known(self, name: str) -> Mask:
        found: Mask = self._table[name].is_valid().to_numpy()
        return found


def _joined(columns: _Columns, rule: JoinRule) -> pa.RecordBatch:
    kind, is_measured, at_ns = columns["kind"], columns["is_measured"], columns["at_ns"]
    has_id = columns.known("producer")
    key = columns["producer"].astype(np.int64) << SEQUENCE_BITS | columns["sequence"]
    sent_ns, intended_ns = columns["sent_ns"], columns["intended_ns"]
    content, has_hash = columns["content_hash"], columns.known("content_hash")

    sent = np.flatnonzero(kind == MessageEvent.SENT)
    sent = sent[np.argsort(key[sent], kind="stable")]
    sent_keys = key[sent]

    def sender_of(rows: I64) -> tuple[Mask, I64]:
        """Whether the messages of these rows were sent, and the rows that say so."""
        if not len(sent):
            return np.zeros(len(rows), np.bool_), rows
        place = np.minimum(np.searchsorted(sent_keys, key[rows]), len(sent) - 1)
        return has_id[rows] & (sent_keys[place] == key[rows]), sent[place]

    arrived = np.flatnonzero(kind == MessageEvent.RECEIVED)
    was_sent, _ = sender_of(arrived)
    unexpected = arrived[~was_sent]
    arrived = arrived[was_sent]
    _, sender = sender_of(arrived)
    counted = is_measured[sender]
    arrived, sender = arrived[counted], sender[counted]
    is_corrupted = has_hash[arrived] & has_hash[sender] & (content[arrived] != content[sender])
    # The first arrival of each message at each subscription.
    subscription = columns["subscription"][arrived]
    order = np.lexsort((columns["number"][arrived], at_ns[arrived], key[arrived], subscription))
    by_delivery, where = key[arrived][order], subscription[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (by_delivery[1:] != by_delivery[:-1]) | (where[1:] != where[:-1])
    first = order[is_first]
    once, once_sender = arrived[first], sender[first]

    confirmed = np.flatnonzero(kind == MessageEvent.CONFIRMED)
    was_sent, confirmed_sender = sender_of(confirmed)
    is_counted = was_sent & is_measured[confirmed_sender]
    confirmed, confirmed_sender = confirmed[is_counted], confirmed_sender[is_counted]

    producer = np.where(has_id, columns["producer"], _NO_PRODUCER)
    tallies = {
        "sent": sent[is_measured[sent]],
        "confirmed": confirmed,
        "received": arrived,
        "received_once": once,
        "corrupted": arrived[is_corrupted],
        "unexpected": unexpected,
        "untimed": once[~columns.known("sent_ns")[once]],
    }
    durations = {
        "latency": (at_ns[once], at_ns[once] - sent_ns[once_sender]),
        "confirm_latency": (at_ns[confirmed], at_ns[confirmed] - sent_ns[confirmed_sender]),
    }
    if rule.has_schedule:
        since_due_ns = at_ns[once] - intended_ns[once_sender]
        durations["delivery_latency"] = (at_ns[once], since_due_ns)
    counts = _by_producer({name: producer[rows] for name, rows in tallies.items()})
    stretches = _stretches(columns, np.flatnonzero((kind == MessageEvent.RECEIVED) & has_id))
    return _batch(counts, _by_tick(durations, rule), stretches)


def _stretches(columns: _Columns, arrived: I64) -> dict[int, list[dict[str, Any]]]:
    """Per producer how its messages arrived."""
    if not len(arrived):
        return {}
    names = ("producer", "agent", "subscription", "sequence", "number")
    producer, agent, subscription, sequence, number = (columns[name][arrived] for name in names)
    block = sequence // BLOCK_MESSAGES
    order = np.lexsort((number, block, subscription, agent, producer))
    keys = [key[order] for key in (producer, agent, subscription, block)]
    is_start = np.ones(len(order), np.bool_)
    is_start[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    sequence, number = sequence[order], number[order]
    # A message that comes again right behind itself is in order; further behind, it is looked at.
    goes_back = np.zeros(len(order), np.bool_)
    goes_back[1:] = (sequence[1:] < sequence[:-1]) & ~is_start[1:]
    starts = np.flatnonzero(is_start)
    ends = np.append(starts[1:], len(order)) - 1
    is_in_order = np.add.reduceat(goes_back, starts) == 0
    found: dict[int, list[dict[str, Any]]] = {}
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        found.setdefault(int(keys[0][start]), []).append(
            {
                "agent": int(keys[1][start]),
                "subscription": int(keys[2][start]),
                "block": int(keys[3][start]),
                "first_number": int(number[start]),
                "last_number": int(number[end]),
                "is_in_order": bool(is_in_order[place]),
            }
        )
    return found


def _by_producer(producers: Mapping[str, npt.NDArray[Any]]) -> dict[int, dict[str, int]]:
    counts: dict[int, dict[str, int]] = {}
    for name, members in producers.items():
        for producer, count in zip(*np.unique(members, return_counts=True), strict=True):
            counts.setdefault(int(producer), {})[name] = int(count)
    return counts


def _by_tick(
    durations: Mapping[str, tuple[I64, I64]], rule: JoinRule
) -> dict[int, dict[str, SparseHistogram]]:
    shape = shape_for(rule.highest_us)
    found: dict[int, dict[str, SparseHistogram]] = {}
    for measure, (ended_ns, lasted_ns) in durations.items():
        ticks = rule.timeline.tick_of(ended_ns)
        for tick in np.unique(ticks).tolist():
            histogram = Histogram(shape)
            histogram.record_ns(lasted_ns[ticks == tick])
            found.setdefault(tick, {})[measure] = histogram.sparse()
    return found


def _batch(
    counts: Mapping[int, Mapping[str, int]],
    ticks: Mapping[int, dict[str, SparseHistogram]],
    stretches: Mapping[int, list[dict[str, Any]]],
) -> pa.RecordBatch:
    producers: list[int | None] = [None if one == _NO_PRODUCER else one for one in counts]
    nothing = [0] * len(ticks)
    columns = [
        pa.array([*producers, *([None] * len(ticks))], pa.int32()),
        pa.array([*([None] * len(counts)), *ticks], pa.int32()),
        *(
            pa.array([*(found.get(name, 0) for found in counts.values()), *nothing], pa.int64())
            for name in COUNTS
        ),
        histogram_array([*({} for _ in counts), *ticks.values()]),
        pa.array(
            [*(stretches.get(one, []) for one in counts), *([] for _ in ticks)],
            pa.list_(_STRETCH),
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARTS)


def unite(parts: pa.Table) -> JoinedMessages:
    """Rows of `PARTS`, of any number of partitions, as one answer."""
    by_producer: dict[int | None, dict[str, int]] = {}
    ticks: dict[str, dict[int, list[SparseHistogram]]] = {}
    streams: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in parts.to_pylist():
        for stretch in row["stretches"]:
            stream = row["producer"], stretch["agent"], stretch["subscription"]
            streams.setdefault(stream, []).append(stretch)
        if row["tick"] is None:
            counts = by_producer.setdefault(row["producer"], dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                counts[name] += row[name]
        for found in row["histograms"]:
            histogram = SparseHistogram(
                **{name: found[name] for name in TOTALS},
                values_us=np.array(found["values_us"], np.int32),
                counts=np.array(found["counts"], np.int64),
            )
            ticks.setdefault(found["measure"], {}).setdefault(row["tick"], []).append(histogram)
    return JoinedMessages(
        by_producer,
        {
            measure: {tick: merge_sparse(part) for tick, part in sorted(of_measure.items())}
            for measure, of_measure in sorted(ticks.items())
        },
        all(map(_follow, streams.values())),
    )


def _follow(stretches: list[dict[str, Any]]) -> bool:
    """Whether the blocks of a stream arrived one after the other, each in order."""
    stretches.sort(key=lambda stretch: int(stretch["block"]))
    return all(stretch["is_in_order"] for stretch in stretches) and all(
        before["last_number"] < after["first_number"] for before, after in pairwise(stretches)
    )
