"""Rows of `dataset.table`, read by Spark and put into the store in a form that agents can read.

Spark writes the columns that are needed as Parquet files, sorted if that is asked for; the driver
then turns these into plain columns, a batch at a time. Both are below `_datasets` in the store and
are deleted when the session's last run is over.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import extract, lit
from pyspark.sql.functions import round as rounded
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NumericType,
    StringType,
)

from bench_spark.config.broker import Broker
from bench_spark.config.sections import Dataset
from bench_spark.core.clock import NANOSECONDS
from bench_spark.data.carriers import make_carrier
from bench_spark.data.checking import found_in, with_found
from bench_spark.data.records import (
    BODY,
    DUE,
    HEADERS,
    KEY,
    ColumnRecords,
    ColumnWriter,
    RowFacts,
    encoded_headers,
)
from bench_spark.data.scanning import I64
from bench_spark.errors import ConfigurationError
from bench_spark.plan import Plan, with_rows
from bench_spark.spark.sql import one_line
from bench_spark.store.delta import Store
from bench_spark.transports.registry import kind_of

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


PLACE = "_datasets"


class DatasetRows:
    """The tables of a session's runs, each read once."""

    def __init__(self, spark: SparkSession, store: Store) -> None:
        self._spark = spark
        self._store = store
        self._place = Path(store.uri) / PLACE / secrets.token_hex(8)
        self._read: dict[Dataset, Path] = {}

    def given_to(self, plan: Plan, broker: Broker) -> Plan:
        """The plan with the rows of its table, if it has one; refuses rows that cannot be sent."""
        scenario = plan.scenario
        if scenario.dataset.table is None:
            return plan
        if not self._store.is_local:
            raise ConfigurationError(
                f"dataset.table: its rows go through the store, which {self._store.uri} cannot do; "
                "use a store that is a directory, shared by all machines"
            )
        directory = self._rows_of(scenario.dataset)
        carrier = make_carrier(scenario)
        assert carrier is not None, "a data set excludes envelopes"
        with closing(ColumnRecords(directory)) as source:
            found = found_in(source, carrier, kind_of(broker).size_limit(scenario))
        return with_rows(plan, with_found(scenario, found), str(directory))

    def _rows_of(self, dataset: Dataset) -> Path:
        directory = self._read.get(dataset)
        if directory is None:
            directory = self._place / str(len(self._read))
            directory.mkdir(parents=True)
            _put_down(self._selected(dataset), directory, dataset)
            self._read[dataset] = directory
        return directory

    def _selected(self, dataset: Dataset) -> DataFrame:
        try:
            frame = _opened(self._spark, dataset.table or "")
            if dataset.columns.sort is not None:
                frame = frame.sort(_column(frame, dataset.columns.sort, "sort"))
            return frame.select(*_wanted(frame, dataset))
        except PySparkException as error:
            raise _refusal(dataset, error) from error

    def close(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self._read.clear()


def _opened(spark: SparkSession, table: str) -> DataFrame:
    if "/" not in table:
        return spark.read.table(table)
    is_delta = (Path(table) / "_delta_log").is_dir()
    return spark.read.format("delta" if is_delta else "parquet").load(table)


def _refusal(dataset: Dataset, error: PySparkException) -> ConfigurationError:
    told = one_line(error.getMessage() or str(error))
    return ConfigurationError(f"dataset.table: {dataset.table}: {told}")


def _column(frame: DataFrame, name: str, key: str) -> Column:
    if name not in frame.columns:
        raise ConfigurationError(
            f"dataset.columns.{key}: the table has no column {name}; it has "
            f"{', '.join(frame.columns)}"
        )
    return frame[f"`{name}`"]


def _wanted(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    columns = dataset.columns
    yield _octets(frame, columns.body, BODY)
    if columns.key is not None:
        yield _octets(frame, columns.key, KEY)
    if columns.headers is not None:
        yield _headers(frame, columns.headers)
    if columns.interval is not None:
        yield _interval_ns(frame, columns.interval)


def _octets(frame: DataFrame, name: str, key: str) -> Column:
    column, kind = _column(frame, name, key), frame.schema[name].dataType
    if not isinstance(kind, StringType | BinaryType):
        raise _wrong_type(key, name, kind, "string or binary")
    return column.cast("binary").alias(key)


def _headers(frame: DataFrame, name: str) -> Column:
    column, kind = _column(frame, name, HEADERS), frame.schema[name].dataType
    if not (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, StringType | BinaryType)
    ):
        raise _wrong_type(HEADERS, name, kind, "a map of string to string or binary")
    return column.cast("map<string, binary>").alias(HEADERS)


def _interval_ns(frame: DataFrame, name: str) -> Column:
    column, kind = _column(frame, name, "interval"), frame.schema[name].dataType
    if isinstance(kind, DayTimeIntervalType):
        parts = (("DAY", 86_400), ("HOUR", 3_600), ("MINUTE", 60), ("SECOND", 1))
        seconds = sum((extract(lit(part), column) * length for part, length in parts), lit(0))
        return (seconds * NANOSECONDS).cast("bigint").alias(INTERVAL)
    if not isinstance(kind, NumericType):
        raise _wrong_type("interval", name, kind, "a number of seconds, or a day-time interval")
    return rounded(column.cast("double") * NANOSECONDS).cast("bigint").alias(INTERVAL)


def _wrong_type(key: str, name: str, kind: DataType, allowed: str) -> ConfigurationError:
    return ConfigurationError(
        f"dataset.columns.{key}: column {name} is {kind.simpleString()}; allowed: {allowed}"
    )


def _put_down(frame: DataFrame, directory: Path, dataset: Dataset) -> None:
    parquet = directory / "parquet"
    try:
        frame.write.parquet(f"file://{parquet}")
    except PySparkException as error:
        raise _refusal(dataset, error) from error
    write_columns(parquet, directory, dataset)
    shutil.rmtree(parquet)
