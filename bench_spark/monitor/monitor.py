"""Samples every source of a broker once a second while a load runs, into the table `resources`.

Each source has a thread of its own: one that is slow or silent costs only its own rows. Readings
are taken on whole seconds since the start, so that a row belongs to one phase. Nothing that fails
here ends a run; what was not read is said in the rows and in the result.

CPU shares are means over time, memory and the like are the highest seen, bytes are sums. A column
that some row lacks is named in `unreadable`; one that every row lacks is null.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.config.broker import FLOW_SOURCE
from bench_spark.config.ends import Ends
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.errors import BenchError
from bench_spark.monitor.endpoints import flow_state, is_held_back
from bench_spark.monitor.reading import (
    BYTE_COUNTERS,
    COLUMNS,
    CPU_COLUMNS,
    GAUGES,
    Reading,
    ResourceSampler,
    SourceUnreadable,
    usage_between,
)
from bench_spark.monitor.sources import samplers_of
from bench_spark.process import watched
from bench_spark.store.arrow import RESOURCES
from bench_spark.store.delta import Store

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
    """The part of a result's `resources` that is about the broker. What no source reported is
    unknown; of several brokers that were asked about it, `flow` is that which held producers back
    most."""
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


APPEND_SECONDS = 5.0
SHORTEST_LAST_NS = NANOSECONDS // 2
"""When the load ends, one more reading is taken if the last one is older than this."""
CLOSING_SECONDS = 2.0
FLOW_REST = 3
"""The management API is work for the broker, more with every connection: it is left alone three
times as long as its last answer took."""


class Monitor:
    def __init__(self, ends: Ends, run_id: str, store: Store, now_ns: NowNs) -> None:
        """Opens what has to be open before the load starts, and reads nothing yet."""
        self._run_id = run_id
        self._store = store
        self._now_ns = now_ns
        self._samplers = _samplers_of_all(ends, run_id)
        self._totals = {name: SourceTotals() for name in self._samplers}
        self._threads: list[threading.Thread] = []
        self._writer: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._store_problem: str | None = None

    def begin(self, timeline: Timeline) -> None:
        """The load starts at the moment the timeline says."""
        if not self._samplers:
            return
        for name, sampler in self._samplers.items():
            thread = threading.Thread(
                target=watched(self._watch),
                args=(name, sampler, timeline),
                name=f"monitor-{name}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
        self._writer = threading.Thread(target=watched(self._write), name="monitor", daemon=True)
        self._writer.start()

    def end(self) -> None:
        """The last message is sent. Does not wait."""
        self._ended.set()

    def close(self) -> None:
        """Write what is left. A source that hangs is left to its own time limit."""
        self.end()
        deadline = time.monotonic() + CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._writer is not None:
            self._writer.join()
        self._append()
        for sampler in self._samplers.values():
            sampler.close()

    def document(self) -> dict[str, Any]:
        with self._lock:
            return resources_document(self._totals)

    def problems(self) -> list[str]:
        """For the reader of the result: sources that were never read, rows that were not kept."""
        with self._lock:
            silent = never_read(self._totals)
        found = [f"resources of {name} could not be read: {problem}" for name, problem in silent]
        if self._store_problem is not None:
            found.append(f"rows of resources are missing: {self._store_problem}")
        return found

    # -- one source ------------------------------------------------------------------------------

    def _watch(self, name: str, sampler: ResourceSampler, timeline: Timeline) -> None:
        before: Reading | None = None
        next_ns = timeline.start_ns
        last_ns = took_ns = 0
        rest = FLOW_REST if is_flow(name) else 0
        while not self._ended.wait(max(0, next_ns - self._now_ns()) / NANOSECONDS):
            began_ns = self._now_ns()
            before = self._sample(name, sampler, timeline, before)
            last_ns = self._now_ns()
            took_ns = last_ns - began_ns
            passed = (last_ns + rest * took_ns - timeline.start_ns) // NANOSECONDS
            next_ns = timeline.start_ns + (passed + 1) * NANOSECONDS
        is_due = self._now_ns() - last_ns >= SHORTEST_LAST_NS
        if before is not None and is_due and took_ns < SHORTEST_LAST_NS:
            self._sample(name, sampler, timeline, before)

    def _sample(
        self, name: str, sampler: ResourceSampler, timeline: Timeline, before: Reading | None
    ) -> Reading | None:
        """Read once; returns the reading that the next one is compared with."""
        try:
            reading = sampler.read()
        except (SourceUnreadable, OSError, ValueError) as error:
            self._take(name, timeline, 0.0, _nothing(before, str(error)))
            return before
        if before is not None:
            usage = usage_between(before, reading) | {"host": reading.host, "problem": None}
            self._take(name, timeline, usage["interval_seconds"], usage)
        with self._lock:
            self._totals[name].has_been_read = True
        return reading

    def _take(
        self, name: str, timeline: Timeline, seconds: float, usage: Mapping[str, Any]
    ) -> None:
        """Keep what the last `seconds` brought, in the phase that most of them lie in."""
        at_ns = self._now_ns()
        middle_ns = at_ns - round(seconds * NANOSECONDS / 2)
        if middle_ns >= timeline.measure_end_ns:
            return  # the last messages are on their way; nothing of that is in the result
        row = {
            "run_id": self._run_id,
            "at": datetime.fromtimestamp(at_ns / NANOSECONDS, UTC),
            "source": name,
            "phase": MEASURE if middle_ns >= timeline.measure_start_ns else WARMUP,
            **usage,
        }
        with self._lock:
            self._waiting.append(row)
            if row["problem"] is not None:
                self._totals[name].problem = row["problem"]
            elif row["phase"] == MEASURE:
                self._totals[name].add(row)

    # -- the table -------------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._ended.wait(APPEND_SECONDS):
            self._append()

    def _append(self) -> None:
        with self._lock:
            rows, self._waiting = self._waiting, []
        if not rows:
            return
        for row in rows:
            row["values"] = list(row["values"].items())
        try:
            self._store.append("resources", pa.Table.from_pylist(rows, schema=RESOURCES))
        except BenchError as error:
            self._store_problem = str(error)


def _samplers_of_all(ends: Ends, run_id: str) -> dict[str, ResourceSampler]:
    """Of several brokers, each source by the broker's name and its own."""
    is_alone = len(ends.once) == 1
    return {
        name if is_alone else f"{end.broker.name}{BROKER_MARK}{name}": sampler
        for end in ends.once
        for name, sampler in samplers_of(end.broker, end.credentials, end.run_id(run_id)).items()
    }


def _nothing(before: Reading | None, problem: str) -> dict[str, Any]:
    """The columns of a moment at which a source could not be read."""
    return {
        **dict.fromkeys(COLUMNS),
        "host": before.host if before is not None else None,
        "interval_seconds": None,
        "values": {},
        "unreadable": list(COLUMNS),
        "problem": problem,
    }
