"""Event rows of many agents, merged exactly into one row per run, role, phase and tick.

Runs on the executors inside `mapInArrow` and once more in the driver over the few rows that come
back. numpy and pyarrow do the work: merging needs no JVM, and no Python statement runs per bucket
(a real row has three histograms of some 3 000 buckets; they stay views of Arrow's buffers).

A merged row remembers which event rows it consists of. That makes merging exactly-once: a row that
comes twice within a partition is dropped here, and whoever unites merged rows of several partitions
can see an overlap (`TickRows.overlaps`) and go back to `events`.

Rows of `events`, read by the executors' Python from the files that Spark names. Spark decides which
files a batch consists of, and who reads which; it hands over their names only. By its own reader
every bucket of every histogram would become an element of a row and then of an Arrow list, one by
one: several times the cost of all the rest (see benchmarks/many_agents.py). Only where a store is a
directory: for any other the JVM has the credentials, and Python has not.

The last part is the batch read of `events` behind every result. The executors load this module, so
it does not import deltalake.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlparse

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench_spark.agent.timeline import PHASES
from bench_spark.core.hdr import SparseHistogram, merge_sparse
from bench_spark.spark.sql import arrow_table, read_table
from bench_spark.store.arrow import EVENTS, HistogramColumn, histogram_array
from bench_spark.store.schema import COUNTERS, MERGED_COLUMNS, ROW_IDENTITY, TICK_KEY

if TYPE_CHECKING:
    from bench_spark.store.delta import Store

FOLD_PARTS = 32
"""Histograms of one tick and measure that are held back, to be merged at once."""

FOLD_BYTES = 64 * 1024 * 1024
"""Event rows held back by one worker, in bytes of Arrow buffers: bounds its memory."""

TICK_ROWS = pa.schema(
    [
        *(EVENTS.field(name) for name in MERGED_COLUMNS if name not in ROW_IDENTITY),
        pa.field("rows", pa.list_(pa.struct([EVENTS.field(name) for name in ROW_IDENTITY]))),
    ]
)
"""What `merge_event_batches` yields; `rows` names the event rows that were added up."""


class TickKey(NamedTuple):
    run_id: str
    role: str
    phase: str
    tick: int


class RowIdentity(NamedTuple):
    """Names one row of `events` within its run; see the exactly-once rule in docs/architecture."""

    agent: int
    attempt: int
    row_number: int


@dataclass
class TickRows:
    """Everything that was counted for one run, role, phase and tick."""

    key: TickKey
    tick_start_us: int
    tick_seconds: float
    counters: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(COUNTERS), dtype=np.int64)
    )
    cpu_seconds: float = 0.0
    rows: set[RowIdentity] = field(default_factory=set)
    _parts: dict[str, list[SparseHistogram]] = field(default_factory=dict)

    @property
    def role(self) -> str:
        return self.key.role

    @property
    def phase(self) -> str:
        return self.key.phase

    @property
    def start_seconds(self) -> float:
        return self.tick_start_us / 1_000_000

    def counter(self, name: str) -> int:
        return int(self.counters[COUNTERS.index(name)])

    @property
    def measures(self) -> Iterable[str]:
        return self._parts.keys()

    def histogram(self, measure: str) -> SparseHistogram:
        parts = self._parts.get(measure)
        if not parts:
            return SparseHistogram.empty()
        if len(parts) > 1:
            parts[:] = [merge_sparse(parts)]
        return parts[0]

    def histograms(self) -> dict[str, SparseHistogram]:
        return {measure: self.histogram(measure) for measure in self._parts}

    def overlaps(self, other: TickRows) -> bool:
        return not self.rows.isdisjoint(other.rows)

    def add(self, other: TickRows) -> None:
        """Add rows of the same key that are not in yet: the caller has asked `overlaps`."""
        self.counters = self.counters + other.counters
        self.cpu_seconds += other.cpu_seconds
        self.rows |= other.rows
        for measure, parts in other._parts.items():
            for part in parts:
                self.add_histogram(measure, part)

    def add_histogram(self, measure: str, histogram: SparseHistogram) -> None:
        parts = self._parts.setdefault(measure, [])
        parts.append(histogram)
        if len(parts) >= FOLD_PARTS:
            parts[:] = [merge_sparse(parts)]

    def release_buffers(self) -> None:
        """Merge what is held back, so that no view keeps an Arrow batch alive."""
        for parts in self._parts.values():
            parts[:] = [merge_sparse(parts)]


def merge_event_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows of `events` in, rows of `TICK_ROWS` out, duplicates dropped."""
    merged: dict[TickKey, TickRows] = {}
    held_bytes = 0
    for batch in batches:
        for part in read_event_batch(batch):
            present = merged.setdefault(part.key, part)
            if present is not part and not present.overlaps(part):
                present.add(part)
        held_bytes += batch.nbytes
        if held_bytes >= FOLD_BYTES:
            held_bytes = 0
            for tick in merged.values():
                tick.release_buffers()
    if merged:
        yield tick_rows_batch(list(merged.values()))


def read_event_batch(batch: pa.RecordBatch) -> Iterator[TickRows]:
    """The rows of a batch of `events`, one by one; histograms are views of the batch."""
    identities = zip(
        *(batch.column(name).to_pylist() for name in ROW_IDENTITY),
        strict=True,
    )
    return _read(batch, [{RowIdentity(*identity)} for identity in identities])


def read_tick_rows(table: pa.Table) -> Iterator[TickRows]:
    """Rows of `TICK_ROWS`, as merged by one or several executors."""
    for batch in table.to_batches():
        rows = batch.column("rows")
        starts = rows.offsets.to_pylist()
        columns = (rows.values.field(name).to_pylist() for name in RowIdentity._fields)
        identities = [RowIdentity(*identity) for identity in zip(*columns, strict=True)]
        yield from _read(
            batch,
            [set(identities[first:last]) for first, last in itertools.pairwise(starts)],
        )


def unite(parts: Iterable[TickRows]) -> dict[TickKey, TickRows] | None:
    """Merge rows of several partitions; None when some event row is in two of them."""
    united: dict[TickKey, TickRows] = {}
    for part in parts:
        present = united.setdefault(part.key, part)
        if present is part:
            continue
        if present.overlaps(part):
            return None
        present.add(part)
    return united


def _read(batch: pa.RecordBatch, rows: Sequence[set[RowIdentity]]) -> Iterator[TickRows]:
    keys = zip(*(batch.column(name).to_pylist() for name in TickKey._fields), strict=True)
    starts_us = batch.column("tick_start").cast(pa.int64()).to_pylist()
    seconds = batch.column("tick_seconds").to_pylist()
    counters = np.column_stack(
        [pc.fill_null(batch.column(name), 0).to_numpy(zero_copy_only=False) for name in COUNTERS]
    )
    cpu_seconds = pc.fill_null(batch.column("cpu_seconds"), 0.0).to_pylist()
    histograms = HistogramColumn(batch.column("histograms"))
    for index, key in enumerate(keys):
        row = TickRows(
            key=TickKey(*key),
            tick_start_us=starts_us[index],
            tick_seconds=seconds[index],
            counters=counters[index],
            cpu_seconds=cpu_seconds[index],
            rows=rows[index],
        )
        for measure, histogram in histograms.of_row(index):
            row.add_histogram(measure, histogram)
        yield row


def tick_rows_batch(ticks: Sequence[TickRows]) -> pa.RecordBatch:
    """The rows as one Arrow batch of `TICK_ROWS`."""
    counters = np.array([tick.counters for tick in ticks], dtype=np.int64).T
    columns: dict[str, Any] = {
        **{name: [getattr(tick.key, name) for tick in ticks] for name in TICK_KEY},
        "tick_start": [tick.tick_start_us for tick in ticks],
        "tick_seconds": [tick.tick_seconds for tick in ticks],
        **dict(zip(COUNTERS, counters, strict=True)),
        "histograms": histogram_array([tick.histograms() for tick in ticks]),
        "cpu_seconds": [tick.cpu_seconds for tick in ticks],
        "rows": [[identity._asdict() for identity in sorted(tick.rows)] for tick in ticks],
    }
    return pa.RecordBatch.from_pydict(columns, schema=TICK_ROWS)


ROWS_AT_ONCE = 256
"""An event row may have 100 kB."""


def named_files(events: DataFrame) -> DataFrame:
    """Per row of `events` the file it is in, and where in that the part begins that it was read
    with: what `merge_event_files` needs, and no column of the table."""
    return events.select(
        f.input_file_name().alias("file"), f.input_file_block_start().alias("part_start")
    )


def merge_event_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows of `named_files` in, rows of `TICK_ROWS` out."""
    files: dict[str, None] = {}
    for batch in batches:
        # Of a large file that several tasks read in parts, whoever has the first part takes all.
        names = batch.filter(pc.equal(batch.column("part_start"), 0)).column("file")
        files.update(dict.fromkeys(names.unique().to_pylist()))
    yield from merge_event_batches(_rows_of(files))


def _rows_of(files: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for uri in files:
        with pq.ParquetFile(unquote(urlparse(uri).path), memory_map=True) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=MERGED_COLUMNS):
                yield _complete(batch)


def _complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With nulls for columns that an older program did not write."""
    present = set(batch.schema.names)
    columns = [
        batch.column(name) if name in present else pa.nulls(batch.num_rows, EVENTS.field(name).type)
        for name in MERGED_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, MERGED_COLUMNS)


# -- a stored run ----------------------------------------------------------------------------------

TICKS_AT_ONCE = 600
"""Ticks united in the driver at a time: some 100 kB per role, whatever the number of agents."""

STRETCH_TICKS = 60
"""Ticks merged in this process at a time: some 100 kB for each agent and role."""

TICK_ROWS_TYPE: StructType = from_arrow_schema(TICK_ROWS)


def merge_on_executors(events: DataFrame) -> DataFrame:
    """Rows of `events` as rows of `TICK_ROWS`, one per partition and key; batch or streaming."""
    return events.select(*MERGED_COLUMNS).mapInArrow(merge_event_batches, TICK_ROWS_TYPE)


def merge_files_on_executors(events: DataFrame) -> DataFrame:
    """The same for tables in a directory that executors share, at a fraction of the cost."""
    return named_files(events).mapInArrow(merge_event_files, TICK_ROWS_TYPE)


def merged_ticks_here(store: Store, run_id: str) -> list[TickRows]:
    """`merged_ticks` in this process: for a small run that is done before Spark has planned it."""
    return _merged_here(store.read("events", columns=MERGED_COLUMNS, run_id=run_id))


def ticks_here(
    store: Store, run_id: str, last: int, unwritten: pa.Table | None = None
) -> Iterator[TickRows]:
    """The same up to a tick, a stretch at a time: for a run of any length, without Spark.

    `unwritten`: rows that the store may not have; those that it has after all count once.
    """
    for begin in range(0, last + 1, STRETCH_TICKS):
        end = min(begin + STRETCH_TICKS - 1, last)
        stretch = ("tick", begin, end)
        events = store.read("events", columns=MERGED_COLUMNS, between=stretch, run_id=run_id)
        if unwritten is not None:
            ticks = unwritten["tick"]
            is_in = pc.and_(pc.greater_equal(ticks, begin), pc.less_equal(ticks, end))
            events = pa.concat_tables([events, unwritten.filter(is_in).select(MERGED_COLUMNS)])
        yield from _merged_here(events)


def ticks_and_unwritten(store: Store, run_id: str, unwritten: pa.Table) -> Iterator[TickRows]:
    """Every tick of a run whose store has not taken all of its rows."""
    stored = store.read("events", columns=["tick"], run_id=run_id)["tick"]
    last = max([*stored.to_pylist(), *unwritten["tick"].to_pylist()], default=-1)
    return ticks_here(store, run_id, last, unwritten)


def _merged_here(events: pa.Table) -> list[TickRows]:
    counted = events.filter(pc.is_in(events["phase"], pa.array(PHASES)))
    ticks = list(
        itertools.chain.from_iterable(
            read_tick_rows(pa.Table.from_batches([batch]))
            for batch in merge_event_batches(iter(counted.combine_chunks().to_batches()))
        )
    )
    return sorted(ticks, key=_in_order_of_time)


def merged_ticks(spark: SparkSession, store: Store, run_id: str) -> Iterator[TickRows]:
    """Every (role, phase, tick) of a run, merged exactly, in order of time.

    Reads a stretch of the run at a time, so that a soak of days needs no more memory than ten
    minutes of it: consume it as it comes.
    """
    # One narrow column, without a JVM: as a Spark job this would take longer than the merging.
    ticks = store.read("events", columns=["tick"], run_id=run_id)["tick"]
    bounds = pc.min_max(ticks)
    if not len(ticks):
        return
    first, last = max(0, bounds["min"].as_py()), bounds["max"].as_py()
    for begin in range(first, last + 1, TICKS_AT_ONCE):
        yield from ticks_between(spark, store, run_id, begin, min(begin + TICKS_AT_ONCE - 1, last))


def ticks_between(
    spark: SparkSession, store: Store, run_id: str, first: int, last: int
) -> list[TickRows]:
    """The merged rows of the ticks `first` to `last`, both included."""
    events = events_of(spark, store, run_id).where(f.col("tick").between(first, last))
    united = unite(read_tick_rows(arrow_table(merge_on_executors(events))))
    if united is None:
        # Some row is in two partitions. Bringing each tick's rows together lets the merge drop the
        # copies; that moves every bucket through a shuffle, so it is not the usual way.
        together = merge_on_executors(events.repartition("tick"))
        united = unite(read_tick_rows(arrow_table(together)))
        assert united is not None, "a tick's rows are in one partition"
    return sorted(united.values(), key=_in_order_of_time)


def events_of(spark: SparkSession, store: Store, run_id: str) -> DataFrame:
    """The rows that count: without the one that only wakes the rolling metrics."""
    events = read_table(spark, store, "events")
    return events.where((f.col("run_id") == run_id) & f.col("phase").isin(*PHASES))


def _in_order_of_time(ticks: TickRows) -> tuple[int, str, str]:
    return ticks.key.tick, ticks.role, ticks.phase
