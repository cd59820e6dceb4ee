"""From Parquet files to the plain columns that agents read, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench_spark.datasets.records import BODY, DUE, HEADERS, ColumnWriter, RowFacts, encoded_headers
from bench_spark.datasets.scanning import I64
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.dataset_section import Dataset

INTERVAL = "interval_ns"
"""The column that says how long after the row before a row was recorded."""
_BATCH_ROWS = 16_384


@dataclass
class _Times:
    """Intervals summed up over batches."""

    speed: float
    first_ns: int = 0
    elapsed_ns: int = 0
    rows: int = 0

    def due_ns(self, intervals: pa.ChunkedArray) -> I64:
        interval_ns = pc.fill_null(intervals, 0).to_numpy().astype(np.int64)
        if (interval_ns < 0).any():
            row = self.rows + int(np.argmax(interval_ns < 0)) + 1
            raise ConfigurationError(f"dataset.columns.interval: is below 0 in row {row}")
        if not self.rows:
            # Nothing comes before the first row but, once repeated, the last.
            self.first_ns, interval_ns[0] = int(interval_ns[0]), 0
        due_ns = self.elapsed_ns + np.cumsum(interval_ns)
        self.rows += len(due_ns)
        self.elapsed_ns = int(due_ns[-1])
        return np.rint(due_ns / self.speed).astype(np.int64)

    @property
    def lap_ns(self) -> int:
        """From one beginning to the next: where the first row does not say how long after the last
        it comes, that is the mean of the others."""
        gap_ns = self.first_ns or self.elapsed_ns / max(1, self.rows - 1)
        return round((self.elapsed_ns + gap_ns) / self.speed)


def write_columns(parquet: Path, directory: Path, dataset: Dataset) -> None:
    times = _Times(dataset.replay.speed) if dataset.is_recorded else None
    writers: dict[str, ColumnWriter] = {}
    rows = 0
    with (directory / DUE).open("wb") as due, ExitStack() as open_writers:
        for batch in _batches(parquet):
            for name in batch.column_names:
                if name == INTERVAL:
                    assert times is not None
                    due.write(times.due_ns(batch.column(name)).astype("<i8").tobytes())
                    continue
                if name not in writers:
                    writers[name] = ColumnWriter(directory, name)
                    open_writers.callback(writers[name].close)
                writers[name].append(*_values(batch.column(name), name, rows))
            rows += len(batch)
    if not rows:
        raise ConfigurationError(f"dataset.table: {dataset.table}: has no rows")
    if times is not None and not times.elapsed_ns:
        raise ConfigurationError(
            "dataset.columns.interval: all are 0, so that every row would be due at once"
        )
    RowFacts(
        dataset.table or "", rows, tuple(writers), None if times is None else times.lap_ns
    ).write(directory)


def _batches(parquet: Path) -> Iterator[pa.Table]:
    """In the order of Spark's partitions."""
    for file in sorted(parquet.glob("part-*.parquet")):
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_BATCH_ROWS):
                yield pa.Table.from_batches([batch])


def _values(column: pa.ChunkedArray, name: str, rows: int) -> tuple[bytes, I64]:
    """One behind the other, and how long each is."""
    if name == HEADERS:
        texts = [encoded_headers(dict(one or ())) for one in column.to_pylist()]
        return b"".join(texts), np.array([len(text) for text in texts], np.int64)
    if column.null_count and name == BODY:
        row = rows + pc.index(pc.is_null(column), True).as_py() + 1
        raise ConfigurationError(f"dataset.columns.body: is null in row {row}")
    filled = pc.fill_null(column, b"").combine_chunks()
    lengths = pc.binary_length(filled).to_numpy().astype(np.int64)
    return b"".join(filled.to_pylist()), lengths
