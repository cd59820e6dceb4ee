"""`bench-spark search-window` end to end, in this process and on the shared Spark session."""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pyarrow as pa
import pytest
import yaml

from bench_spark.cli import main
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import EXIT_DEGRADED, EXIT_INTERRUPTED, EXIT_VALID
from bench_spark.results.document import RunSummary
from bench_spark.store.arrow import SAMPLES
from bench_spark.store.delta import Store
from bench_spark.suites.searches import transaction_messages
from bench_spark.suites.window import AS_GOOD

# A trial ends with its samples, however long a busy machine takes for them.
QUICK = (
    *("--set", "phases.warmup_seconds=0.1", "--set", "phases.measure_seconds=60"),
    *("--set", "sampling.samples=20", "--set", "phases.drain_seconds=2"),
)


@pytest.mark.usefixtures("spark")
def test_a_search_tells_its_time_its_trials_and_its_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plot, table = tmp_path / "curve.svg", tmp_path / "trials.csv"
    code = main(
        [
            *("search-window", "window", "--broker", "loopback", "--highest", "40", "--base", "4"),
            *("--store", str(tmp_path / "store"), "--plot", str(plot), "--tag", "why=test"),
            *("--format", "json", "--format", "terminal", "--format", f"csv={table}", *QUICK),
        ]
    )
    said = capfd.readouterr()
    assert code == EXIT_VALID, said.err
    document = json.loads(said.out)

    tried = [trial["in_flight"] for trial in document["trials"]]
    assert tried[:2] == [1, 4]
    assert max(tried) <= 40
    medians = {point["in_flight"]: point["median_per_second"] for point in document["curve"]}
    assert sorted(medians) == sorted(set(tried))
    assert all(median > 0 for median in medians.values())
    assert document["smallest_in_flight"] <= document["in_flight"]
    best = max(medians.values())
    assert medians[document["smallest_in_flight"]] >= (2 * AS_GOOD - 1) * best

    first, *lines = said.err.splitlines()
    assert first.startswith("searching the best window: probably 10 trials in about")
    assert sum(line.startswith("trial ") for line in lines) == len(tried)
    assert "window on loopback" in lines

    runs = Store(tmp_path / "store").read("runs").to_pylist(maps_as_pydicts="strict")
    stored = {run["run_id"]: run for run in runs}
    assert stored.keys() == {trial["run_id"] for trial in document["trials"]}
    for number, trial in enumerate(document["trials"], start=1):
        run = stored[trial["run_id"]]
        assert run["tags"]["why"] == "test"
        assert run["trial"] == number
        assert run["parameters"] == {"load.in_flight": str(trial["in_flight"])}
        assert json.loads(run["scenario_json"])["load"]["in_flight"] == trial["in_flight"]
    assert len({run["suite"] for run in runs}) == 1

    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert len(table.read_text().splitlines()) == len(tried) + 1


@pytest.mark.usefixtures("spark")
def test_the_shipped_study_runs_on_rabbitmq(
    rabbitmq_broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
    file = tmp_path / "rabbitmq.yaml"
    file.write_text(yaml.safe_dump(keys))
    code = main(
        [
            *("search-window", "amqp-throughput", "--broker", str(file), "--highest", "20"),
            *("--store", str(tmp_path / "store"), "--format", "json", *QUICK),
            *("--set", "amqp.producer_transaction=7"),
        ]
    )
    said = capfd.readouterr()
    assert code == EXIT_VALID, said.err
    document = json.loads(said.out)
    assert document["trials"][0]["in_flight"] == 10, "the first power that holds a transaction"
    assert 10 <= document["in_flight"] <= 20


# -- outcomes that a real broker does not give on demand ------------------------------------------


class SimulatedEngine:
    """Answers as the engine does, from tables by window: exit codes, and samples of each trial."""

    outcomes: ClassVar[dict[int, tuple[str, int]]] = {}
    samples: ClassVar[dict[int, list[list[float]]]] = {}

    def __init__(self, spark: object, store: Store, *_: object) -> None:
        self._store = store

    def run(self, request: Any) -> RunSummary:
        in_flight, run_id = request.plan.scenario.load.in_flight, request.plan.run_id
        status, exit_code = self.outcomes.get(in_flight, ("valid", 0))
        given = self.samples.get(in_flight)
        per_second = given.pop(0) if given else [1000.0 * min(in_flight, 100)] * 100
        rows = {
            **{"pair": 0, "agent": 0, "attempt": 0, "run_id": run_id, "seconds": 0.01},
            **{"started_at": datetime(2026, 1, 1, tzinfo=UTC)},
        }
        table = pa.Table.from_pylist(
            [
                rows | {"number": number, "messages": round(value / 100)}
                for number, value in enumerate(per_second)
            ],
            schema=SAMPLES,
        )
        self._store.append("samples", table, app_id=run_id, version=0)
        throughput = {"samples": len(per_second), "pairs": [{"pair": 0}]}
        return RunSummary({"status": status, "throughput": throughput}, exit_code, {})

    def close(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, without_session: None) -> type[SimulatedEngine]:
    monkeypatch.setattr("bench_spark.spark.engine.Engine", SimulatedEngine)
    monkeypatch.setattr(SimulatedEngine, "outcomes", {})
    monkeypatch.setattr(SimulatedEngine, "samples", {})
    return SimulatedEngine


def search(tmp_path: Path, *more: str) -> int:
    common = ("search-window", "window", "--broker", "loopback", "--store", str(tmp_path / "store"))
    return main([*common, *more])


def test_samples_at_the_consumer_decide(
    simulated: type[SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(tmp_path, "--format", "json") == EXIT_VALID
    document = json.loads(capsys.readouterr().out)
    assert 99 <= document["in_flight"] <= 110
    assert document["end"] == "plateau"
    assert {trial["samples"] for trial in document["trials"]} == {100}


def test_a_window_measured_twice_shows_the_median_of_all_its_samples(
    simulated: type[SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 seems lower than 1 by chance, so it is tried again: five slow samples and nine fast."""
    slow, fast = [100.0, 200.0, 300.0, 1900.0, 2000.0], [2500.0] * 9
    simulated.samples |= {1: [[700.0, 800.0, 900.0] * 3], 10: [slow, fast], 100: [[100.0] * 9]}
    search(tmp_path, "--format", "json", "--highest", "100")
    document = json.loads(capsys.readouterr().out)
    tried = [trial["in_flight"] for trial in document["trials"]]
    assert tried[:3] == [1, 10, 10]
    [point] = [point for point in document["curve"] if point["in_flight"] == 10]
    assert point["samples"] == 14
    assert point["median_per_second"] == statistics.median([*slow, *fast]) == 2500
    assert point["mean_per_second"] == pytest.approx(statistics.fmean([*slow, *fast]))
    assert point["low_per_second"] <= statistics.median(slow)


def test_windows_hold_no_more_than_the_backlog_limit(
    simulated: type[SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path, "--format", "json", "--set", "load.backlog_limit_bytes=50000")
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert max(trial["in_flight"] for trial in trials) == 50


def test_a_degraded_trial_is_named_and_decides_the_exit_code(
    simulated: type[SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated.outcomes[10] = ("degraded", EXIT_DEGRADED)
    assert search(tmp_path) == EXIT_DEGRADED
    said = capsys.readouterr()
    assert "degraded: 10 in flight; bench-spark show window-loopback-" in said.out
    assert "(10,000 to 10,000), degraded\n" in said.err


def test_an_interrupted_trial_ends_the_search(
    simulated: type[SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated.outcomes[100] = ("aborted", EXIT_INTERRUPTED)
    assert search(tmp_path) == EXIT_INTERRUPTED
    said = capsys.readouterr()
    assert said.out == ""
    assert "interrupted; 2 whole trials are in the store" in said.err


@pytest.mark.parametrize(
    ("kind", "expected"), [("amqp", 25), ("kafka", 50), ("loopback", 0), ("mqtt", 0)]
)
def test_windows_begin_with_the_transactions_of_the_brokers_protocol(
    kind: str, expected: int
) -> None:
    scenario = Scenario.model_validate(
        {"amqp": {"producer_transaction": 25}, "kafka": {"transaction_messages": 50}}
    )
    broker = Broker.model_construct(name="b", kind=kind)
    assert transaction_messages(scenario, broker) == expected
