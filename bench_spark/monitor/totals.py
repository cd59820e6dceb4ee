"""What the rows of one source add up to over the measured phase. Pure, and of constant size.

CPU shares are means over time, memory and the like are the highest seen, bytes are sums. A column
that some row lacks is named in `unreadable`; one that every row lacks is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench_spark.monitor.flow import flow_state, is_held_back
from bench_spark.monitor.reading import BYTE_COUNTERS, CPU_COLUMNS, GAUGES
from bench_spark.scenario.broker import FLOW_SOURCE

BROKER_MARK = "/"
"""Between a broker's name and a source of its, where there are several brokers; no name has it."""
SHARES = tuple(column for columns in CPU_COLUMNS.values() for column in columns)
SCHEDULER_PREFIX = "scheduler_"
"""Values called so are the utilisation of Erlang's schedulers, from a command of the user's."""


class SourceTotals:
    def __init__(self) -> None:
        self.problem: str | None = None
        self.has_been_read = False
        self._host: str | None = None
        self._seconds = 0.0
        self._rows = 0
        self._shares = {name: _Mean() for name in SHARES}
        self._most: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._values: dict[str, _Mean] = {}
        self._unreadable: dict[str, None] = {}
        self._polls = 0
        self._polls_held_back = 0

    def fail(self, problem: str) -> None:
        self.problem = problem

    def succeed(self) -> None:
        self.has_been_read = True

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of the measured phase."""
        seconds = row["interval_seconds"]
        self._rows += 1
        self._seconds += seconds
        self._host = row["host"]
        for name, mean in self._shares.items():
            if row[name] is not None:
                mean.add(row[name], seconds)
        for name in GAUGES:
            if row[name] is not None:
                self._most[name] = max(self._most.get(name, 0), row[name])
        for name in BYTE_COUNTERS:
            if row[name] is not None:
                self._sums[name] = self._sums.get(name, 0) + row[name]
        for name, value in row["values"].items():
            self._values.setdefault(name, _Mean()).add(value, 1.0)
        self._unreadable |= dict.fromkeys(row["unreadable"])
        held_back = is_held_back(row["values"])
        if held_back is not None:
            self._polls += 1
            self._polls_held_back += held_back

    def as_document(self) -> dict[str, Any]:
        return {
            "host": self._host,
            "rows": self._rows,
            "seconds": round(self._seconds, 3),
            **{name: mean.mean for name, mean in self._shares.items()},
            **{f"{name}_max": self._most.get(name) for name in GAUGES},
            **{name: self._sums.get(name) for name in BYTE_COUNTERS},
            "values": {name: found.as_document() for name, found in self._values.items()},
            "unreadable": list(self._unreadable),
            "problem": self.problem,
        }

    def as_flow(self) -> dict[str, Any]:
        share = self._polls_held_back / self._polls if self._polls else None
        return {"state": flow_state(share), "share": share, "polls": self._polls}

    def schedulers(self) -> dict[str, float | None]:
        return {
            name: found.mean
            for name, found in self._values.items()
            if name.startswith(SCHEDULER_PREFIX)
        }


class _Mean:
    def __init__(self) -> None:
        self._sum = self._weight = 0.0
        self._first: float | None = None
        self._last: float | None = None
        self._most: float | None = None

    def add(self, value: float, weight: float) -> None:
        self._sum += value * weight
        self._weight += weight
        self._first = value if self._first is None else self._first
        self._last = value
        self._most = value if self._most is None else max(self._most, value)

    @property
    def mean(self) -> float | None:
        return self._sum / self._weight if self._weight else None

    def as_document(self) -> dict[str, float | None]:
        """`last - first` is what a counter grew by between the first and the last reading."""
        return {"mean": self.mean, "max": self._most, "first": self._first, "last": self._last}


def is_flow(source: str) -> bool:
    """Whether a source is what a management API says."""
    return source.rpartition(BROKER_MARK)[2] == FLOW_SOURCE


def resources_document(totals: Mapping[str, SourceTotals]) -> dict[str, Any]:
    """The part of a result's `resources` that is about the broker. What nobody told is unknown; of
    several brokers that were asked about it, `flow` is that which held producers back most."""
    sources = {name: found for name, found in totals.items() if not is_flow(name)}
    flows = [found.as_flow() for name, found in totals.items() if is_flow(name)]
    flows = flows or [SourceTotals().as_flow()]
    schedulers: dict[str, float | None] = {}
    for found in sources.values():
        schedulers |= found.schedulers()
    return {
        "broker": {name: found.as_document() for name, found in sources.items()},
        "flow": max(flows, key=lambda flow: -1 if flow["share"] is None else flow["share"]),
        "scheduler_utilisation": schedulers or None,
    }


def never_read(totals: Mapping[str, SourceTotals]) -> Sequence[tuple[str, str]]:
    """Sources of which not a single reading was had, and why."""
    return [
        (name, found.problem)
        for name, found in totals.items()
        if not found.has_been_read and found.problem is not None
    ]
