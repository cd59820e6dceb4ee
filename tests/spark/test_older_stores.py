"""Commands on a store that an older version wrote, with keys that scenarios may no longer have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from older_stores import FIRST_TREE, unpacked
from pyspark.sql import SparkSession

from bench_spark.cli import main
from bench_spark.store.delta import Store


class Commands:
    """Calls commands on the store, and returns what they print."""

    def __init__(self, store: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capfd = capfd

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capfd.readouterr()
        ended = main([*arguments, "--store", str(self.store)])
        said = self._capfd.readouterr()
        assert ended == code, said.err
        return said.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--format", "json"))


@pytest.fixture(scope="module")
def first_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("first_tree", tmp_path_factory.mktemp("older") / "store")


@pytest.fixture
def bench(first_tree: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(first_tree, capfd)


def test_its_runs_are_listed_and_shown(bench: Commands) -> None:
    listed = {row["run_id"]: row["status"] for row in bench.json("runs")}
    assert sorted(listed) == list(FIRST_TREE)
    for run in FIRST_TREE:
        shown = bench.json("show", run)
        assert shown["run_id"] == run
        assert shown["status"] == listed[run]
        assert shown["counts"]["received_once"] > 0
        assert bench("show", run)
    assert bench("show", "loopback-traced", "--format", "html").startswith("<!DOCTYPE html>")


def test_its_scenarios_have_the_keys_that_were_renamed_or_removed(bench: Commands) -> None:
    stored = Store(str(bench.store)).read("runs", columns=["scenario_json"])
    for scenario in map(json.loads, stored["scenario_json"].to_pylist()):
        assert "breakdown" in scenario
        assert {"patience_seconds", "fill_first"} <= scenario["load"].keys()
        assert "plane" in scenario["amqp"]


def test_a_killed_run_is_shown_as_far_as_its_events_go(bench: Commands) -> None:
    shown = bench.json("show", "kafka-killed")
    assert shown["is_partial"]
    assert shown["measures"].keys() >= {"latency", "send_lag"}


def test_its_runs_are_compared(bench: Commands) -> None:
    compared = bench.json("compare", "loopback-first", "kafka-confluent", "--across")
    [entry] = compared["comparisons"]
    assert entry["scenario_differences"] == {"kafka.plane": [None, "confluent"]}


def test_a_killed_run_is_watched_to_its_end(bench: Commands) -> None:
    assert "kafka" in bench("watch", "kafka-killed", "--quiet")


def test_its_tables_are_queried(bench: Commands, spark: SparkSession) -> None:
    query = "SELECT DISTINCT run_id FROM runs JOIN events USING (run_id) ORDER BY run_id"
    rows = bench.json("sql", query)
    assert [row["run_id"] for row in rows] == list(FIRST_TREE)


@pytest.mark.parametrize("run", ["kafka-killed", "loopback-traced"])
def test_its_metrics_are_rebuilt(bench: Commands, spark: SparkSession, run: str) -> None:
    bench("metrics", "rebuild", run)


def test_its_traced_messages_are_joined(bench: Commands, spark: SparkSession) -> None:
    assert bench.json("messages", "loopback-traced")["trace"]
