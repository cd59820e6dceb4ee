"""What was measured, how it is shown, and whether it reaches the bar. Pure.

A turn of a contender gives one `Figures`; a comparison keeps those of all repetitions. What is
shown is their median with the smallest and the largest beside it, so that a disturbed repetition
is seen; ratios and verdicts are made from the medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    name: str
    decimals: int = 0


RATE = Measure("messages per second")
CLIENT_CPU = Measure("client CPU, us per message", 2)
WHOLE_CPU = Measure("with Spark and driver, us per message", 2)
TURNS = Measure("agent's turns per second")
SPARK_CORES = Measure("Spark and driver, cores", 2)
P50 = Measure("latency p50, us")
P99 = Measure("latency p99, us")
LAG_P99 = Measure("send_lag p99, us")

Figures = Mapping[Measure, float]
Results = Mapping[str, Sequence[Figures]]
"""Per contender the figures of its repetitions."""


@dataclass(frozen=True)
class Spread:
    median: float
    smallest: float
    largest: float


def spread(results: Results, contender: str, measure: Measure) -> Spread | None:
    """None where the contender has no such figure."""
    values = [figures[measure] for figures in results[contender] if measure in figures]
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def ratio(results: Results, of: str, beside: str, measure: Measure) -> float | None:
    """How many times the other's median; None where one of them has no figure, or the other 0."""
    ours, theirs = spread(results, of, measure), spread(results, beside, measure)
    return ours.median / theirs.median if ours and theirs and theirs.median else None


@dataclass(frozen=True)
class Bar:
    """What a contender should reach: a multiple of another's figure, a distance from it, or a
    figure of its own."""

    measure: Measure
    of: str
    beside: str | None = None
    """The contender whose figure is multiplied."""
    at_least: float | None = None
    at_most: float | None = None
    above: str | None = None
    """The contender whose figure is subtracted."""

    def reached(self, results: Results) -> float | None:
        if self.beside is not None:
            return ratio(results, self.of, self.beside, self.measure)
        found = spread(results, self.of, self.measure)
        if self.above is None or found is None:
            return found.median if found else None
        floor = spread(results, self.above, self.measure)
        return found.median - floor.median if floor else None

    def is_met(self, results: Results) -> bool | None:
        """None if it was not measured."""
        reached = self.reached(results)
        if reached is None:
            return None
        enough = self.at_least is None or reached >= self.at_least
        return enough and (self.at_most is None or reached <= self.at_most)

    @property
    def demand(self) -> str:
        other = f" x {self.beside}" if self.beside else f" above {self.above}" if self.above else ""
        limits = [
            f"{word} {limit:g}{other}"
            for word, limit in (("at least", self.at_least), ("at most", self.at_most))
            if limit is not None
        ]
        return f"{self.measure.name} of {self.of} {' and '.join(limits)}"


def verdict(bar: Bar, results: Results) -> str:
    """One item of a list: the bar, what was reached, and whether that is enough."""
    word = {True: "met", False: "missed", None: "not measured"}[bar.is_met(results)]
    reached = bar.reached(results)
    return f"- **{word}**: {bar.demand}{'' if reached is None else f' ({reached:.2f})'}"


def side_by_side(results: Results, measures: Sequence[Measure], baseline: str | None) -> list[str]:
    """A table with a column per contender, and below each measure its ratio to the baseline."""
    contenders = list(results)
    lines = [_row("", contenders), _rule(len(contenders))]
    for measure in measures:
        found = [spread(results, contender, measure) for contender in contenders]
        if not any(found):
            continue
        lines.append(_row(measure.name, [_cell(one, measure) for one in found]))
        if baseline is not None and spread(results, baseline, measure):
            ratios = [ratio(results, one, baseline, measure) for one in contenders]
            shown = ["" if one is None else f"{one:.2f}" for one in ratios]
            lines.append(_row(f"... x {baseline}", shown))
    return lines


def one_per_row(results: Results, measures: Sequence[Measure]) -> list[str]:
    """A table with a row per contender."""
    lines = [_row("", [measure.name for measure in measures]), _rule(len(measures))]
    for contender in results:
        cells = [_cell(spread(results, contender, one), one) for one in measures]
        lines.append(_row(contender, cells))
    return lines


def _cell(found: Spread | None, measure: Measure) -> str:
    if found is None:
        return "-"
    median, smallest, largest = (
        f"{value:,.{measure.decimals}f}" for value in (found.median, found.smallest, found.largest)
    )
    return f"{median} ({smallest} .. {largest})"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join((name, *cells))} |"


def _rule(columns: int) -> str:
    return "|---|" + "---:|" * columns
