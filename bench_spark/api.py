"""bench-spark from Python: load a scenario, run it, and look at the result as DataFrames.

    from bench_spark import load_scenario, run

    result = run(load_scenario("steady", {"load.rate_per_second": 500}), "loopback")
    result.frames["summary"]

The same steps as `bench-spark run`, and the same tables. What is wrong is raised as one of the
errors in `bench_spark.errors`; a load that ran but went badly is no error: `Result.status` says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from bench_spark.cli.options import default_store
from bench_spark.cli.preparing import asked_of, choose_run_id
from bench_spark.cli.run import carried_out, launched
from bench_spark.config import loader
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import EXIT_INTERRUPTED, EXIT_VALID, ConfigurationError
from bench_spark.report.live import display_for, silent_display
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store

if TYPE_CHECKING:
    import pandas as pd

Reference = str | os.PathLike[str]
"""A path, or the name of a file that is shipped."""


def load_scenario(reference: Reference, changes: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario file, or a shipped one by its name, with some keys changed.

    Keys are dotted: `{"load.rate_per_second": 500, "kafka.producer.linger.ms": 5}`.
    """
    return loader.load_scenario(os.fspath(reference), _overrides(changes))


def load_broker(reference: Reference, changes: Mapping[str, Any] | None = None) -> Broker:
    """A broker file, or a shipped one by its name, with some keys changed."""
    return loader.load_broker(os.fspath(reference), _overrides(changes))


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    document: Mapping[str, Any]
    """All of it, as `--format json` prints it; docs/measures.md explains the keys."""
    exit_code: int
    """What the command would have ended with; 0 is valid."""
    frames: Frames
    """The rows of this run by table: `result.frames["metrics"]`."""

    @property
    def run_id(self) -> str:
        return str(self.document["run_id"])

    @property
    def status(self) -> str:
        """`valid`, `degraded` ..."""
        return str(self.document["status"])

    @property
    def is_valid(self) -> bool:
        return self.exit_code == EXIT_VALID


class Frames(Mapping[str, "pd.DataFrame"]):
    """The rows of one run as DataFrames, read from the store when they are asked for.

    Of `metrics`, which has a window again whenever it has changed, the newest rows only.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._read: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in SCHEMAS:
            raise KeyError(f"there is no table {name!r}; there are {', '.join(SCHEMAS)}")
        if name not in self._read:
            rows = self._store.read(name, run_id=self._run_id).to_pandas()
            self._read[name] = _newest(rows) if name == "metrics" else rows
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SCHEMAS)

    def __len__(self) -> int:
        return len(SCHEMAS)

    def __repr__(self) -> str:
        return f"Frames({', '.join(SCHEMAS)} of {self._run_id})"


def run(
    scenario: Scenario | Reference,
    broker: Broker | Reference | None = None,
    *,
    ingress: Sequence[Broker | Reference] = (),
    egress: Sequence[Broker | Reference] = (),
    store: Reference | None = None,
    master: str | None = None,
    run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    live: bool = True,
    progress: TextIO | None = None,
) -> Result:
    """Run a scenario on a broker. Beside a Spark session that is there already another one is made
    on its application; nothing of it changes.

    `ingress`, `egress`: where messages go in and come out again, if that is not one broker; unset:
    as the scenario says, else `broker`.
    `store`: directory or URI of the tables; unset: $BENCH_SPARK_STORE, else `bench-store` here.
    `master`: Spark master; unset: this machine. `live`: rolling metrics while the load runs,
    instead of afterwards. `progress`: where to tell how it goes, as `sys.stderr`; unset: nowhere.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    if tags:
        loaded = loader.with_tags(loaded, tags, "tags")
    if broker is not None and (ingress or loaded.ingress) and (egress or loaded.egress):
        raise ConfigurationError("broker: would not be used, as ingress and egress name others")
    named = None if broker is None else _given(broker)
    asked = asked_of(loaded, named, [*map(_given, ingress)], [*map(_given, egress)])
    chosen_id = choose_run_id(run_id, asked.scenario, asked.ends)
    place = default_store() if store is None else os.fspath(store)
    display = silent_display() if progress is None else display_for(progress, live)
    try:
        with launched(asked, chosen_id, place, master, display) as launch:
            summary = carried_out(launch, asked, display, live)
            return Result(summary.document, summary.exit_code, Frames(launch.store, chosen_id))
    except SystemExit as end:
        # How a command ends when Ctrl-C comes before or after the load; here it is Python's own.
        if end.code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


def _given(broker: Broker | Reference) -> Broker | str:
    return broker if isinstance(broker, Broker) else os.fspath(broker)


def _overrides(changes: Mapping[str, Any] | None) -> list[str]:
    """As `--set` takes them; JSON is YAML, and text in quotes stays text."""
    return [f"{key}={json.dumps(value)}" for key, value in (changes or {}).items()]


def _newest(metrics: pd.DataFrame) -> pd.DataFrame:
    """As the view `metrics_latest`."""
    window = ["window", "window_start", "window_end", "measure"]
    ordered = metrics.sort_values(["written_at", "batch_id"], kind="stable")
    newest = ordered.drop_duplicates(window, keep="last")
    return newest.sort_values(["window_end", "measure"], kind="stable").reset_index(drop=True)
