"""A result for programs and spreadsheets: JSON (the document as it is) and CSV.

CSV has one row per aggregation and measure, Parquet (`parquet.py`) the same ones. Columns, in this
order (units end their names; an empty cell is an unknown value):

    run_id scenario broker status exit_code measured_seconds
    aggregation       run, interval_max or interval_mean
    measure           latency, delivery_latency, confirm_latency, round_trip, send_lag,
                      insert_duration
    count negative overflow                    of the measure; `run` only
    min_us mean_us p50_us p75_us p90_us p95_us p99_us p999_us max_us
    lower_bounds      which of these to read as >=, separated by spaces
    send_rate receive_rate expected delivery_rate
    due unsent sent confirmed unconfirmed refused returned received received_once duplicates
    left_in_broker lost indeterminate acked redelivered out_of_order corrupted malformed foreign
    errors reconnects
    bytes_sent bytes_received unexpected repeats_dropped given_up

The last two groups are the run's and repeat in each of its rows. A run that measured nothing has
one row without aggregation and measure, so that its status is not lost.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, TextIO

from bench_spark.report.measures import (
    AGGREGATIONS,
    COUNTS,
    PERCENTILE_COLUMNS,
    Document,
    in_order,
    statistics_of,
)


def write_json(document: Document, writer: TextIO) -> None:
    # NaN is no JSON: a document that holds one is our bug, and better found here than by a reader.
    writer.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


_RUN = ("run_id", "scenario", "broker", "status", "exit_code", "measured_seconds")
_VALUES = ("min_us", "mean_us", *(field for field, _ in PERCENTILE_COLUMNS))
_MEASURE = ("aggregation", "measure", "count", "negative", "overflow", *_VALUES, "lower_bounds")
_RATES = ("send_rate", "receive_rate")
COLUMNS = (*_RUN, *_MEASURE, *_RATES, "expected", "delivery_rate", *COUNTS)


def write_csv(document: Document, writer: TextIO) -> None:
    table = csv.DictWriter(writer, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(result_rows(document))


def result_rows(document: Document) -> Iterator[dict[str, Any]]:
    """The rows of the table above, by column; what a row lacks is unknown."""
    of_run = _of_run(document)
    measures = in_order(document.get("measures") or {})
    for aggregation in AGGREGATIONS:
        for measure in measures:
            statistics = statistics_of(document, aggregation, measure)
            yield of_run | {
                "aggregation": aggregation,
                "measure": measure,
                **{name: statistics.get(name) for name in ("count", "negative", "overflow")},
                **{name: statistics.get(name) for name in _VALUES},
                "lower_bounds": " ".join(statistics.get("lower_bounds") or ()),
            }
    if not measures:
        yield of_run


def _of_run(document: Document) -> dict[str, Any]:
    counts, rates = document.get("counts") or {}, document.get("rates") or {}
    return {
        **{name: document.get(name) for name in _RUN},
        "scenario": document["scenario"]["name"],
        "broker": document["broker"]["name"],
        **{name: rates.get(name) for name in _RATES},
        **{name: document.get(name) for name in ("expected", "delivery_rate")},
        **{name: counts.get(name) for name in COUNTS},
    }
