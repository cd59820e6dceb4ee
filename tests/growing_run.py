"""A run that grows in a real store as slowly as a test likes: its rows without its load."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.driver_process import this_process
from bench_spark.errors import BenchError
from bench_spark.plan import make_plan
from bench_spark.results.document import run_row
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store
from bench_spark.store.schema import COUNTERS, PERCENTILES

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WARMUP_SECONDS = 2


def scenario(name: str = "steady", agents: int = 2, measure_seconds: float = 6, **more: Any) -> Any:
    return Scenario.model_validate(
        {
            **{"name": name, "agents": agents, "producers": agents, "consumers": agents},
            **{"destinations": agents, "tags": {"branch": "main"}},
            "phases": {
                "warmup_seconds": WARMUP_SECONDS,
                "measure_seconds": measure_seconds,
                "drain_seconds": 1,
            },
            **more,
        }
    )


class GrowingRun:
    """Second `n` is the n-th of the load, counted from 0: two of warm-up come first."""

    def __init__(
        self, store: Store, run_id: str = "r1", loaded: Any = None, source: str = "node"
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.plan = make_plan(loaded or scenario(), run_id)
        self.source = source
        self._broker = Broker(name="mine", kind="loopback").masked()

    def begin(self) -> None:
        self.store.replace_run(run_row(self.plan, self._broker, STARTED))

    def add_second(self, number: int, rate: int = 1000) -> None:
        self.add_events(number, rate)
        self.add_window(number, rate)
        self.add_resources(number)

    def add_resources(self, number: int) -> None:
        self._append(
            "resources",
            {
                **{"at": _at(number + 1), "source": self.source, "interval_seconds": 1.0},
                **{"cpu_user_share_of_machine": 0.2, "cpu_system_share_of_machine": 0.1},
                **{"rss_bytes": 300_000_000, "written_bytes": 1000 * number},
                **{"phase": _phase(number), "device_written_bytes": None},
            },
        )

    def add_events(self, number: int, rate: int = 1000) -> None:
        agents = len(self.plan.assignments)
        self._append(
            "events",
            *(
                {
                    **{"agent": agent, "attempt": 0, "row_number": 2 * number + place},
                    **{"role": role, "phase": _phase(number), "tick": number},
                    **{"tick_start": _at(number), "tick_seconds": 1.0},
                    **dict.fromkeys(COUNTERS, 0),
                    ("sent" if role == "producer" else "received"): rate // agents + agent,
                    **{"cpu_seconds": 0.25, "host_busy_share": 0.5 if place else None},
                }
                for agent in range(agents)
                for place, role in enumerate(("producer", "consumer"))
            ),
        )

    def add_window(self, number: int, rate: int = 1000, p50_us: int = 500) -> None:
        names = [name for name, _ in PERCENTILES]
        self._append(
            "metrics",
            *(
                {
                    **{"window": window, "window_end": _at(number + 1), "measure": measure},
                    **{"window_start": _at(max(0, number - 9)), "batch_id": number},
                    **{"sent_per_second": float(rate), "received_per_second": rate - 10.0},
                    **{name: p50_us * 2**power for power, name in enumerate(names)},
                    **{"max_us": p50_us * 100, "written_at": datetime.now(UTC)},
                }
                for window in ("rolling", "interval")
                for measure in ("latency", "delivery_latency")
            ),
        )

    def lose_driver(self) -> None:
        """As if another process of this machine had begun the run and was killed."""
        row = run_row(self.plan, self._broker, STARTED)
        self.store.replace_run(row | {"driver_json": vanished_driver()})

    def measure_from(self, second: float) -> None:
        row = run_row(self.plan, self._broker, STARTED)
        self.store.replace_run(row | {"measured_from": _at(second)})

    def end(self, document: dict[str, Any]) -> None:
        whole = {**document, "run_id": self.run_id, "scenario": self.plan.scenario.dump()}
        row = run_row(self.plan, self._broker, STARTED)
        self.store.replace_run(
            row
            | {"status": whole["status"], "exit_code": whole["exit_code"]}
            | {"result_json": json.dumps(whole), "reasons": whole["reasons"]}
            | {"measured_from": _at(WARMUP_SECONDS), "measured_until": _at(8)}
        )

    def fail(self, failure: BenchError) -> None:
        self.store.replace_run(run_row(self.plan, self._broker, STARTED, failure=failure))

    def _append(self, table: str, *rows: dict[str, Any]) -> None:
        named = [{"run_id": self.run_id, **row} for row in rows]
        self.store.append(table, pa.Table.from_pylist(named, schema=SCHEMAS[table]))


def vanished_driver() -> str:
    """As `driver_json` names a process of this machine that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return json.dumps(json.loads(this_process()) | {"pid": ended.pid})


def _at(second: float) -> datetime:
    return STARTED + timedelta(seconds=10 + second)


def _phase(number: int) -> str:
    return "warmup" if number < WARMUP_SECONDS else "measure"
