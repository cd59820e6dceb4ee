"""Sparse histograms as the Arrow column `histograms`, without a Python statement per bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench_spark.core.hdr import TOTALS, SparseHistogram
from bench_spark.tables import HISTOGRAM


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
        fields=list(HISTOGRAM),
    )
    return pa.ListArray.from_arrays(_offsets([len(row) for row in rows]), structs)


def _list_array(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> pa.ListArray:
    flat = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(
        _offsets([len(part) for part in parts]), pa.array(flat.astype(dtype, copy=False))
    )


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
