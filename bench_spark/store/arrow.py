"""Arrow schemas of the tables, made from `schema.py`; histograms as an Arrow column and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench_spark.core.hdr import TOTALS, SparseHistogram
from bench_spark.store.schema import HISTOGRAM, TABLES, Columns, Kind

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_type(kind: Kind) -> pa.DataType:
    """The Arrow type of an SQL type."""
    if not isinstance(kind, str):
        return pa.list_(pa.struct(list(arrow_schema(kind.of))))
    outer, _, inner = kind.removesuffix(">").partition("<")
    parts = [_TYPES[name] for name in (inner or outer).split(",")]
    return {"array": pa.list_, "map": pa.map_}[outer](*parts) if inner else parts[0]


def arrow_schema(columns: Columns) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns])


SCHEMAS: dict[str, pa.Schema] = {name: arrow_schema(columns) for name, columns in TABLES.items()}

RUNS, EVENTS, METRICS = SCHEMAS["runs"], SCHEMAS["events"], SCHEMAS["metrics"]
SUMMARY, SAMPLES = SCHEMAS["summary"], SCHEMAS["samples"]
RESOURCES, MESSAGES = SCHEMAS["resources"], SCHEMAS["messages"]
HISTOGRAMS = EVENTS.field("histograms").type


def histogram_array(rows: Sequence[dict[str, SparseHistogram]]) -> pa.ListArray:
    """The column `histograms`: per row its histograms by measure."""
    histograms = [histogram for row in rows for histogram in row.values()]
    structs = pa.StructArray.from_arrays(
        [
            pa.array([measure for row in rows for measure in row], pa.string()),
            *(
                pa.array([getattr(histogram, name) for histogram in histograms], pa.int64())
                for name in TOTALS
            ),
            _list_array([histogram.values_us for histogram in histograms], np.int32),
            _list_array([histogram.counts for histogram in histograms], np.int64),
        ],
        fields=list(arrow_schema(HISTOGRAM)),
    )
    return pa.ListArray.from_arrays(_offsets([len(row) for row in rows]), structs)


def _list_array(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> pa.ListArray:
    flat = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(
        _offsets([len(part) for part in parts]), pa.array(flat.astype(dtype, copy=False))
    )


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


class HistogramColumn:
    """A column `histograms` read without copying a bucket."""

    def __init__(self, column: pa.ListArray) -> None:
        self._present = column.is_valid().to_pylist()
        self._starts = column.offsets.to_pylist()
        structs = column.values
        self._measures = structs.field("measure").to_pylist()
        self._totals = {name: structs.field(name).to_pylist() for name in TOTALS}
        self._values = _Lists(structs.field("values_us"))
        self._counts = _Lists(structs.field("counts"))

    def of_row(self, row: int) -> Iterator[tuple[str, SparseHistogram]]:
        if not self._present[row]:
            return
        for index in range(self._starts[row], self._starts[row + 1]):
            totals = {name: column[index] for name, column in self._totals.items()}
            histogram = SparseHistogram(
                **totals, values_us=self._values[index], counts=self._counts[index]
            )
            yield self._measures[index], histogram


class _Lists:
    """A list column as numpy slices of its one flat buffer."""

    def __init__(self, column: pa.ListArray) -> None:
        self._starts = column.offsets.to_pylist()
        self._flat: npt.NDArray[Any] = column.values.to_numpy()

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        return self._flat[self._starts[index] : self._starts[index + 1]]
