"""Metrics by name, and the intervals of a run that the bootstrap draws from.

An interval is a second of the run, or several where it has more of them than are needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER
from bench_spark.compare.estimates import (
    F64,
    IntervalHistograms,
    Resampled,
    block_length,
    block_weights,
    ratios,
)
from bench_spark.config.objectives import HEADLINE, MEASURES, Unit
from bench_spark.config.problems import nearest, shown_value
from bench_spark.core.hdr import SparseHistogram, merge_sparse
from bench_spark.errors import ConfigurationError
from bench_spark.report.formatting import Document
from bench_spark.results.totals import Tick
from bench_spark.store.schema import PERCENTILES

STATISTICS = (*(name.removesuffix("_us") for name, _ in PERCENTILES), "mean")
"""Not the maximum: one message decides it, and no resample of a run has a larger one."""


@dataclass(frozen=True)
class Metric:
    name: str
    unit: Unit
    higher_is_better: bool = False
    practical: float = 1.5
    """A change by this factor, up or down, is one that people would act on: an interval that holds
    both it and no change at all tells nothing."""


RATES = (
    Metric("receive_rate", "per_second", higher_is_better=True, practical=1.1),
    Metric("send_rate", "per_second", higher_is_better=True, practical=1.1),
)
COUNTED = (
    Metric("delivery_rate", "share", higher_is_better=True),
    Metric("lost", "count"),
    Metric("duplicates", "count"),
)
"""Exact counts, which have no interval."""
BROKER = (
    Metric("broker_cpu", "cpu_share"),
    Metric("broker_written", "bytes_per_second"),
    Metric("broker_device_written", "bytes_per_second"),
)
DURATIONS = tuple(
    Metric(f"{measure}.{statistic}", "us") for measure in MEASURES for statistic in STATISTICS
)
BY_NAME = {metric.name: metric for metric in (*RATES, *COUNTED, *DURATIONS, *BROKER)}


def named(name: str, where: str) -> tuple[Metric, ...]:
    """The metrics that a name may mean, the first that is there counts."""
    statistic = name.replace("99.9", "999")
    if statistic in STATISTICS:
        return tuple(BY_NAME[f"{measure}.{statistic}"] for measure in HEADLINE)
    if statistic in BY_NAME:
        return (BY_NAME[statistic],)
    guess = nearest(name, [*BY_NAME, *STATISTICS])
    rates = ", ".join(metric.name for metric in (*RATES, *COUNTED, *BROKER))
    raise ConfigurationError(
        f"{where}: {shown_value(name)} is not compared; allowed: {rates}, a statistic "
        f"({', '.join(STATISTICS)}), or MEASURE.STATISTIC with a measure of {', '.join(MEASURES)}"
        + (f"; did you mean {guess}?" if guess else "")
    )


def shown_metrics(available: Iterable[str]) -> list[str]:
    """In the order of this module; of durations the percentiles that people ask for."""
    known = set(available)
    usual = {"p50", "p95", "p99", "p999", "mean"}
    return [name for name in BY_NAME if name in known and name.partition(".")[2] in usual | {""}]


MOST_INTERVALS = 600
RESAMPLES = 2_000
_SAME_MOMENT_SECONDS = 2e-6

_PERCENTILE_OF = {name.removesuffix("_us"): percentile for name, percentile in PERCENTILES}
_BROKER_FIELDS = {
    "broker_cpu": ("cpu_user_share_of_machine", "cpu_system_share_of_machine"),
    "broker_written": ("written_bytes",),
    "broker_device_written": ("device_written_bytes",),
}


@dataclass(frozen=True, eq=False)
class Sums:
    """Per interval what is divided, and by what: messages and seconds, say."""

    above: F64
    below: F64

    @property
    def values(self) -> F64:
        return np.divide(
            self.above, self.below, out=np.zeros_like(self.above), where=self.below > 0
        )


@dataclass(frozen=True, eq=False)
class RunSeries:
    """One run: its result, and what it was made of."""

    document: Document
    sums: Mapping[str, Sums]
    """By the name of the metric: rates, and the broker's use of its machine."""
    histograms: Mapping[str, IntervalHistograms]
    """By measure."""

    def value(self, metric: str) -> float | None:
        """As the result has it; None where the run has no such number."""
        if metric in _BROKER_FIELDS:
            sums = self.sums.get(metric)
            total = float(sums.below.sum()) if sums is not None else 0.0
            return float(sums.above.sum()) / total if sums is not None and total else None
        document = self.document
        measure, _, statistic = metric.partition(".")
        if statistic:
            found = (document.get("measures") or {}).get(measure, {}).get(f"{statistic}_us")
        else:
            totals = {**document["counts"], **document["rates"]}
            found = {**totals, "delivery_rate": document.get("delivery_rate")}.get(metric)
        return None if found is None else float(found)

    def is_lower_bound(self, metric: str) -> bool:
        measure, _, statistic = metric.partition(".")
        found = (self.document.get("measures") or {}).get(measure) or {}
        return f"{statistic}_us" in (found.get("lower_bounds") or ())

    @cached_property
    def resamples(self) -> Mapping[str, Resampled]:
        """What each metric becomes in each resample. The same run gives the same ones."""
        random = np.random.default_rng(zlib.crc32(self.document["run_id"].encode()))
        drawn: dict[str, Resampled] = {}
        for name, sums in self.sums.items():
            length = block_length(sums.values)
            weights = block_weights(len(sums.above), length, RESAMPLES, random)
            samples = {name: ratios(weights, sums.above, sums.below)}
            drawn |= self._with_values(samples, len(sums.above) // length)
        for measure, histograms in self.histograms.items():
            intervals = len(histograms.counts)
            length = block_length(_means(histograms))
            weights = block_weights(intervals, length, RESAMPLES, random)
            rows = histograms.percentiles(weights, list(_PERCENTILE_OF.values()))
            samples = {
                f"{measure}.{name}": row for name, row in zip(_PERCENTILE_OF, rows, strict=True)
            }
            samples[f"{measure}.mean"] = histograms.means(weights)
            drawn |= self._with_values(samples, intervals // length)
        return drawn

    def _with_values(self, samples: Mapping[str, F64], blocks: int) -> dict[str, Resampled]:
        return {
            name: Resampled(value, row, blocks)
            for name, row in samples.items()
            if (value := self.value(name)) is not None
        }

    def resampled(self, metric: str) -> Resampled:
        """Of a metric that the run has; without samples if nothing says how it was made."""
        value = self.value(metric)
        assert value is not None
        return self.resamples.get(metric, Resampled(value, np.zeros(0), 0))


def _means(histograms: IntervalHistograms) -> F64:
    return histograms.means(np.eye(len(histograms.counts), dtype=np.int64))


def run_series(
    document: Document,
    ticks: Iterable[Tick],
    measured: tuple[float, float] | None,
    resources: Sequence[Mapping[str, Any]],
) -> RunSeries:
    """`measured`: the ends of the measured phase in seconds since the epoch; `resources`: the rows
    of that phase."""
    ticks = list(ticks)
    highest_us = round(document["scenario"]["histogram"]["highest_seconds"] * 1_000_000)
    sums = _broker_sums(resources)
    if measured is not None:
        inside = [tick for tick in ticks if _is_inside(tick, measured)]
        if inside:
            # As in a result: sent are messages of the measured phase, received is whatever came.
            of_phase = [tick for tick in inside if tick.phase == MEASURE]
            seconds = {tick.start_seconds: tick.tick_seconds for tick in inside}
            sums["send_rate"] = _rate_sums(of_phase, seconds, PRODUCER, "sent")
            sums["receive_rate"] = _rate_sums(inside, seconds, CONSUMER, "received")
    # A message belongs to its measure whenever it arrived, so seconds of the drain count as well.
    return RunSeries(
        document, sums, _histograms([tick for tick in ticks if tick.phase == MEASURE], highest_us)
    )


def _is_inside(tick: Tick, measured: tuple[float, float]) -> bool:
    return measured[0] <= tick.start_seconds + _SAME_MOMENT_SECONDS < measured[1]


def _rate_sums(
    ticks: Sequence[Tick], seconds: Mapping[float, float], role: str, counter: str
) -> Sums:
    messages: dict[float, float] = {}
    for tick in ticks:
        if tick.role == role:
            at = tick.start_seconds
            messages[at] = messages.get(at, 0.0) + tick.counter(counter)
    order = sorted(seconds)
    return _coarse(
        np.array([messages.get(at, 0.0) for at in order]), np.array([seconds[at] for at in order])
    )


def _broker_sums(resources: Sequence[Mapping[str, Any]]) -> dict[str, Sums]:
    """CPU as the mean over the broker's machines, bytes as their sum."""
    rows = sorted((row for row in resources if row["interval_seconds"]), key=lambda row: row["at"])
    found = {}
    for metric, fields in _BROKER_FIELDS.items():
        known = [row for row in rows if all(row[field] is not None for field in fields)]
        counted = _of_busiest_sources(known, fields)
        if not counted:
            continue
        seconds = np.array([row["interval_seconds"] for row in counted])
        values = np.array([_amount(row, fields) for row in counted])
        if metric == "broker_cpu":
            found[metric] = _coarse(values * seconds, seconds)
        else:
            hosts = len({row["host"] for row in counted})
            found[metric] = _coarse(values * hosts, seconds)
    return found


def _of_busiest_sources(
    rows: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Two sources on one machine may be about the same processes: the busiest counts."""
    totals: dict[tuple[Any, Any], float] = {}
    for row in rows:
        place = row["host"], row["source"]
        totals[place] = totals.get(place, 0.0) + _amount(row, fields)
    busiest = {host: source for (host, source), _ in sorted(totals.items(), key=_by_amount)}
    return [row for row in rows if busiest[row["host"]] == row["source"]]


def _by_amount(item: tuple[tuple[Any, Any], float]) -> float:
    return item[1]


def _amount(row: Mapping[str, Any], fields: Sequence[str]) -> float:
    return float(sum(row[field] for field in fields))


def _coarse(above: F64, below: F64) -> Sums:
    starts = _starts(len(above))
    return Sums(np.add.reduceat(above, starts), np.add.reduceat(below, starts))


def _starts(rows: int) -> list[int]:
    """Where intervals begin: as few rows to each as leave no more intervals than are needed."""
    return list(range(0, rows, -(-rows // MOST_INTERVALS)))


def _histograms(ticks: Sequence[Tick], highest_us: int) -> dict[str, IntervalHistograms]:
    by_measure: dict[str, dict[float, list[SparseHistogram]]] = {}
    for tick in ticks:
        for measure in tick.measures:
            of_moment = by_measure.setdefault(measure, {}).setdefault(tick.start_seconds, [])
            of_moment.append(tick.histogram(measure))
    return {
        measure: _matrix([parts[at] for at in sorted(parts)], highest_us)
        for measure, parts in by_measure.items()
    }


def _matrix(moments: Sequence[Sequence[SparseHistogram]], highest_us: int) -> IntervalHistograms:
    starts = _starts(len(moments))
    ends = [*starts[1:], len(moments)]
    merged = [
        merge_sparse([part for moment in moments[start:end] for part in moment])
        for start, end in zip(starts, ends, strict=True)
    ]
    values_us = np.unique(np.concatenate([found.values_us for found in merged])).astype(np.int64)
    counts = np.zeros((len(merged), len(values_us)), dtype=np.int64)
    for row, found in zip(counts, merged, strict=True):
        row[np.searchsorted(values_us, found.values_us)] = found.counts
    return IntervalHistograms(
        values_us,
        counts,
        np.array([found.overflow for found in merged]),
        np.array([float(found.sum_us) for found in merged]),
        highest_us,
        np.array([found.max_us for found in merged]),
    )
