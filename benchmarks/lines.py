"""A line: one question, asked of several contenders in turn.

Contenders of a comparison alternate, so that what disturbs one disturbs the others as well, and
each repetition begins with another one, so that none is always first. A line opens what all of them
need (a broker) for its whole length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import Bar, Figures, Measure, one_per_row, side_by_side, verdict
from benchmarks.progress import NoFigures

Turn = Callable[[], Figures]


@dataclass(frozen=True)
class Effort:
    """How long and how often."""

    warmup_seconds: int
    measure_seconds: int
    repetitions: int

    @property
    def length_text(self) -> str:
        return f"{self.measure_seconds} s each after {self.warmup_seconds} s of warm-up"


@dataclass(frozen=True)
class Comparison:
    title: str
    contenders: Mapping[str, Turn]
    measures: Sequence[Measure]
    baseline: str | None = None
    """The contender whose figures the others are shown as multiples of; None: no columns, a row per
    contender, because they do different work."""
    bars: Sequence[Bar] = ()


@dataclass(frozen=True)
class Opened:
    """A line whose broker runs."""

    comparisons: Sequence[Comparison]
    conditions: Sequence[str] = ()
    """Versions, and how long a turn takes."""


@dataclass(frozen=True)
class Line:
    name: str
    title: str
    about: str
    """What is compared, and how each figure is had."""
    open: Callable[[Effort, Path], AbstractContextManager[Opened]]
    """Start what the contenders need; the directory is for what they write."""


@dataclass(frozen=True)
class Taken:
    """What came of the turns of a line."""

    section: str
    failed_turns: int


def run_line(line: Line, effort: Effort, directory: Path, remark: str = "") -> Taken:
    """Give everybody their turns. One that fails is told in the section; the others go on."""
    failures: list[str] = []
    with line.open(effort, directory) as opened:
        taken: list[dict[str, list[Figures]]] = [
            {contender: [] for contender in comparison.contenders}
            for comparison in opened.comparisons
        ]
        for repetition in range(effort.repetitions):
            for comparison, results in zip(opened.comparisons, taken, strict=True):
                for contender in rotated(list(comparison.contenders), repetition):
                    turn = f"{comparison.title}, repetition {repetition + 1}, {contender}"
                    try:
                        figures = comparison.contenders[contender]()
                    except NoFigures as error:
                        _say(f"{line.name}, {turn} failed: {error}")
                        failures.append(f"- **failed**: {turn}: {str(error).splitlines()[0]}")
                        continue
                    results[contender].append(figures)
                    _say(f"{line.name}, {turn}: {_shown(figures)}")
        remarks = "\n".join([*failures, "", remark])
        text = section(line, opened, taken, effort.repetitions, remarks, datetime.now(UTC))
        return Taken(text, len(failures))


def rotated(names: Sequence[str], by: int) -> list[str]:
    first = by % len(names) if names else 0
    return [*names[first:], *names[:first]]


def section(
    line: Line,
    opened: Opened,
    taken: Sequence[Mapping[str, Sequence[Figures]]],
    repetitions: int,
    remarks: str,
    made_at: datetime,
) -> str:
    """The text of one line's results. Pure."""
    parts = [
        f"## {line.title}",
        "",
        line.about,
        "",
        f"Medians of {repetitions} alternating repetitions (smallest .. largest), "
        + ", ".join([*opened.conditions, f"{made_at:%Y-%m-%d %H:%M} UTC."]),
        "",
    ]
    for comparison, results in zip(opened.comparisons, taken, strict=True):
        parts += [f"### {comparison.title}", ""]
        if comparison.baseline is None:
            parts += one_per_row(results, comparison.measures)
        else:
            parts += side_by_side(results, comparison.measures, comparison.baseline)
        parts += ["", *(verdict(bar, results) for bar in comparison.bars)]
        parts += [""] if comparison.bars else []
    return "\n".join([*parts, remarks.strip()]).strip()


def _shown(figures: Figures) -> str:
    return "; ".join(
        f"{measure.name} {value:,.{measure.decimals}f}" for measure, value in figures.items()
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
