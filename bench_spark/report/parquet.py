"""A result as Parquet: the rows of `formats.py`, with types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from bench_spark.report.formats import COLUMNS, result_rows
from bench_spark.report.measures import Document

_TEXTS = frozenset(
    {"run_id", "scenario", "broker", "status", "aggregation", "measure", "lower_bounds"}
)
_DOUBLES = frozenset({"measured_seconds", "send_rate", "receive_rate", "delivery_rate"})


def _type_of(column: str) -> pa.DataType:
    if column in _TEXTS:
        return pa.string()
    # Means over intervals are no whole microseconds, so no duration is stored as one.
    return pa.float64() if column in _DOUBLES or column.endswith("_us") else pa.int64()


SCHEMA = pa.schema([(column, _type_of(column)) for column in COLUMNS])


def parquet_of(document: Document) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(result_rows(document)), schema=SCHEMA), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content
