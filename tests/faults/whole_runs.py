"""Whole runs on the shared Spark session, with something going wrong while the load runs."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from deltalake import DeltaTable

from bench_spark.agent.timeline import Timeline
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Plan, make_plan
from bench_spark.report.live import Steps
from bench_spark.runs import RunConfig, fit
from bench_spark.store.delta import Store

PHASES = {"warmup_seconds": 0.5, "measure_seconds": 3, "drain_seconds": 2}

_numbers = itertools.count()


@dataclass(frozen=True)
class Loading:
    """A load that has started."""

    run_id: str
    timeline: Timeline
    now_ns: Callable[[], int]

    def sleep_until(self, seconds: float) -> None:
        """Until so long after the beginning of the measured phase."""
        wanted_ns = self.timeline.measure_start_ns + round(seconds * NANOSECONDS)
        time.sleep(max(0.0, (wanted_ns - self.now_ns()) / NANOSECONDS))

    @property
    def elapsed_seconds(self) -> float:
        return (self.now_ns() - self.timeline.measure_start_ns) / NANOSECONDS


Meanwhile = Callable[[Loading], None]


@dataclass
class Outcome:
    """What came of a run."""

    run_id: str
    store: Store
    document: dict[str, Any]
    exit_code: int
    seconds: float
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self.document["counts"]

    @property
    def status(self) -> str:
        return str(self.document["status"])

    @property
    def events(self) -> pd.DataFrame:
        rows = DeltaTable(self.store.table_uri("events")).to_pandas()
        return rows[rows.run_id == self.run_id]

    def check(self, name: str) -> str:
        """The verdict and the text of one check of the audit; empty if it was not made."""
        found = (one for one in self.document["audit"]["checks"] if one["name"] == name)
        return " ".join(f"{one['verdict']}: {one['text']}" for one in found)

    @property
    def closes(self) -> bool:
        """Whether every message has one fate: the equation of docs/measures.md, without copies."""
        counts = self.counts
        fates = ("received_once", "left_in_broker", "lost", "indeterminate", "refused", "returned")
        return (
            counts["sent"] == sum(counts[name] for name in fates)
            and counts["received"] == counts["received_once"] + counts["duplicates"]
            and not self.check("accounts").startswith("fail")
        )


class _Watching(Steps):
    """Calls `meanwhile` in a thread of its own when the load has started."""

    def __init__(self, meanwhile: Meanwhile | None) -> None:
        super().__init__(io.StringIO())
        self._meanwhile = meanwhile
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def started(self, plan: Plan, timeline: Timeline, now_ns: Callable[[], int]) -> None:
        super().started(plan, timeline, now_ns)
        if self._meanwhile is not None:
            loading = Loading(plan.run_id, timeline, now_ns)
            self._thread = threading.Thread(target=self._work, args=(loading,), daemon=True)
            self._thread.start()

    def _work(self, loading: Loading) -> None:
        assert self._meanwhile is not None
        try:
            self._meanwhile(loading)
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(120)
        if self._error is not None:
            raise self._error


CarryOut = Callable[..., Outcome]


def carry_out_on(spark: Any, directory: Path) -> CarryOut:
    """A function that runs a scenario, given by its keys, on a broker, to its end."""

    from bench_spark.spark.engine import Engine

    def carry_out(
        broker: Broker,
        meanwhile: Meanwhile | None = None,
        store: Path | None = None,
        live: bool = False,
        **keys: Any,
    ) -> Outcome:
        scenario, ends = fit(Scenario.model_validate({"phases": PHASES} | keys), broker)
        run_id = f"faults-{time.time_ns()}-{next(_numbers)}"
        opened = Store(store or directory / "store").open()
        display = _Watching(meanwhile)
        engine = Engine(spark, opened, display)
        started = time.monotonic()
        try:
            summary = engine.run(RunConfig(make_plan(scenario, run_id), ends, live))
        finally:
            engine.close()
            display.join()
        seconds = time.monotonic() - started
        return Outcome(run_id, opened, summary.document, summary.exit_code, seconds)

    return carry_out


def workers_at(port: int, among: Iterable[psutil.Process] | None = None) -> list[psutil.Process]:
    """Python workers of Spark that are connected to this port: those that run agents.

    `among` these processes, or all that there are."""
    found = {}
    for process in psutil.process_iter() if among is None else among:
        try:
            if not any("pyspark.daemon" in part for part in process.cmdline()):
                continue
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue  # ended meanwhile
        if any(one.raddr and one.raddr.port == port for one in connections):
            found[process.pid] = process
    return [found[pid] for pid in sorted(found)]
