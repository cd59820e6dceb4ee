"""Event rows on their way from an agent to the driver.

A row is plain counters plus sparse histograms. On the wire a list of rows is a JSON header and the
histograms' columns as raw little-endian numbers behind it: building it costs the agent no more than
a copy, and the driver turns it into Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench_spark.core.hdr import SparseHistogram


@dataclass
class EventRow:
    """What one agent saw of one role, phase and tick; rows of the same tick add up."""

    row_number: int
    role: str
    phase: str
    tick: int
    tick_start_ns: int
    tick_seconds: float
    counters: dict[str, int]
    destination: str | None = None
    cpu_seconds: float | None = None
    host_busy_share: float | None = None
    clock_offset_ns: int | None = None
    clock_bound_ns: int | None = None
    histograms: dict[str, SparseHistogram] = field(default_factory=dict)


_SCALARS = ("min_us", "max_us", "sum_us", "negative", "overflow")


def encode_rows(rows: list[EventRow]) -> tuple[list[dict[str, Any]], bytes]:
    """The rows as a JSON-ready header and the bytes that belong to it."""
    header: list[dict[str, Any]] = []
    columns: list[bytes] = []
    for row in rows:
        plain = {key: value for key, value in vars(row).items() if key != "histograms"}
        plain["histograms"] = [
            {"measure": measure, "buckets": len(histogram.values_us)}
            | {name: getattr(histogram, name) for name in _SCALARS}
            for measure, histogram in row.histograms.items()
        ]
        for histogram in row.histograms.values():
            columns.append(histogram.values_us.astype("<i4", copy=False).tobytes())
            columns.append(histogram.counts.astype("<i8", copy=False).tobytes())
        header.append(plain)
    return header, b"".join(columns)


def decode_rows(header: list[dict[str, Any]], columns: bytes) -> list[EventRow]:
    """Back from the wire; raises ValueError or KeyError when header and bytes do not fit."""
    try:
        return _decode(header, columns)
    except (AttributeError, OverflowError, TypeError) as error:
        raise ValueError("this is no header of event rows") from error


def _decode(header: list[dict[str, Any]], columns: bytes) -> list[EventRow]:
    rows: list[EventRow] = []
    at = 0
    for plain in header:
        histograms: dict[str, SparseHistogram] = {}
        for described in plain["histograms"]:
            buckets = int(described["buckets"])
            values = np.frombuffer(columns, "<i4", buckets, at)
            counts = np.frombuffer(columns, "<i8", buckets, at + 4 * buckets)
            at += 12 * buckets
            histograms[described["measure"]] = SparseHistogram(
                **{name: described[name] for name in _SCALARS}, values_us=values, counts=counts
            )
        rows.append(EventRow(**(plain | {"histograms": histograms})))
    if at != len(columns):
        raise ValueError(f"{len(columns) - at} bytes belong to no row")
    return rows
