"""What is being added up: counters and histograms by tick, role, phase and destination.

A cell lives from the first message that falls into it until its tick is over; then it leaves as an
event row. What comes for it later makes a new cell, and another row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.core.hdr import Histogram, HistogramShape
from bench_spark.transports.base import I64, Bool


@dataclass
class Cell:
    shape: HistogramShape
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def histogram(self, measure: str) -> Histogram:
        if measure not in self.histograms:
            self.histograms[measure] = Histogram(self.shape)
        return self.histograms[measure]


CellKey = tuple[int, str, str, str | None]
"""Tick, role, phase, destination."""


class Cells:
    def __init__(
        self, shape: HistogramShape, timeline: Timeline, places: Mapping[str, tuple[str, ...]]
    ) -> None:
        """`places`: by role the destinations of its lanes or subscriptions, if these are to be kept
        apart; else none."""
        self._shape = shape
        self._timeline = timeline
        self._places = places
        self._cells: dict[CellKey, Cell] = {}
        self._row_number = 0

    def of_rows(
        self,
        role: str,
        measured: Bool,
        tick: I64,
        place: I64 | None,
        within: Bool | None = None,
    ) -> list[tuple[Cell, Bool]]:
        """The cells that these rows fall into, each with the mask of its rows.

        Nearly always that is one cell: a fold spans some milliseconds. `place` is the lane or
        subscription, where rows are kept apart by destination.
        """
        names = self._places.get(role, ()) if place is not None else ()
        code = tick * 2 + measured
        if names and place is not None:
            code = code * len(names) + place
        chosen = code if within is None else code[within]
        found: list[tuple[Cell, Bool]] = []
        is_one = len(chosen) > 0 and chosen.min() == chosen.max()
        for value in chosen[:1] if is_one else np.unique(chosen):
            mask = code == value
            if within is not None:
                mask &= within
            rest, name = divmod(int(value), len(names)) if names else (int(value), None)
            phase = MEASURE if rest & 1 else WARMUP
            key = (rest >> 1, role, phase, names[name] if name is not None else None)
            found.append((self._cell(key), mask))
        return found

    def count(self, role: str, phase: str, at_ns: int, counter: str, amount: int) -> None:
        cell = self._cell((self._timeline.tick_at(at_ns), role, phase, None))
        cell.counters[counter] += amount

    def _cell(self, key: CellKey) -> Cell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(self._shape)
        return cell

    def take_before(self, tick: int) -> list[EventRow]:
        """Rows of the ticks before that one."""
        return self._take([key for key in self._cells if key[0] < tick])

    def take_all(self) -> list[EventRow]:
        return self._take(list(self._cells))

    def _take(self, keys: list[CellKey]) -> list[EventRow]:
        rows = []
        for key in sorted(keys, key=lambda key: (key[0], key[1], key[2], key[3] or "")):
            tick, role, phase, destination = key
            cell = self._cells.pop(key)
            rows.append(
                EventRow(
                    row_number=self._row_number,
                    role=role,
                    phase=phase,
                    tick=tick,
                    tick_start_ns=self._timeline.tick_start_ns(tick),
                    tick_seconds=self._timeline.tick_seconds(tick),
                    destination=destination,
                    counters=dict(cell.counters),
                    histograms={
                        measure: histogram.sparse()
                        for measure, histogram in cell.histograms.items()
                        if histogram.count
                    },
                )
            )
            self._row_number += 1
        return rows
