"""Rows of `events`, read by the executors' Python from the files that Spark names.

Spark decides which files a batch consists of, and who reads which; it hands over their names only.
By its own reader every bucket of every histogram would become an element of a row and then of an
Arrow list, one by one: several times the cost of all the rest (see benchmarks/many_agents.py).
Only where a store is a directory: for any other the JVM has the credentials, and Python has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench_spark.spark.merge import EVENT_COLUMNS, merge_event_batches
from bench_spark.tables import EVENTS

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
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=EVENT_COLUMNS):
                yield _complete(batch)


def _complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With nulls for columns that an older program did not write."""
    present = set(batch.schema.names)
    columns = [
        batch.column(name) if name in present else pa.nulls(batch.num_rows, EVENTS.field(name).type)
        for name in EVENT_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, EVENT_COLUMNS)
