"""What is done of a suite, from the rows of `runs`; in a real store where one is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench_spark.errors import ConfigurationError
from bench_spark.store.delta import Store
from bench_spark.suites.suite import (
    DIGEST_TAG,
    KEY_TAG,
    add_tags,
    newest_by_key,
    refuse_if_changed,
    runs_of_suite,
)

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)


def row(run_id: str, key: str, status: str, minute: int = 0, digest: str = "a") -> dict[str, Any]:
    return {
        "run_id": run_id,
        "suite": "grid",
        "broker": "here",
        "tags": [(KEY_TAG, key), (DIGEST_TAG, digest)],
        "status": status,
        "started_at": BEGAN + timedelta(minutes=minute),
        "reasons": ["because"],
        "result_json": '{"rates": {"receive_rate": 5}}' if status == "valid" else None,
    }


def test_the_newest_run_counts_but_a_finished_one_before_a_broken_one() -> None:
    rows = [
        row("old", "x", "valid", 1),
        row("new", "x", "valid", 2),
        row("broken", "x", "running", 3),
        row("first", "y", "failed", 1),
        row("second", "y", "running", 2),
    ]
    runs = newest_by_key(rows)
    assert {key: run.run_id for key, run in runs.items()} == {"x": "new", "y": "second"}
    assert runs["x"].is_finished
    assert not runs["y"].is_finished
    assert runs["x"].document == {"rates": {"receive_rate": 5}}


def test_loads_of_a_search_are_not_trials() -> None:
    searching = row("load", "x", "valid") | {"tags": [("search_of", "x")]}
    assert newest_by_key([searching]) == {}


def test_a_changed_suite_is_refused_once_it_has_results() -> None:
    runs = newest_by_key([row("one", "x", "valid", digest="a"), row("two", "y", "failed")])
    refuse_if_changed("grid", "a", runs)
    with pytest.raises(ConfigurationError, match="'grid' has changed since 1 of its trials"):
        refuse_if_changed("grid", "b", runs)


def test_results_without_any_finished_trial_bind_to_nothing() -> None:
    refuse_if_changed("grid", "b", newest_by_key([row("two", "y", "failed", digest="a")]))


def test_a_store_tells_the_runs_of_one_suite_on_one_broker(tmp_path: Path) -> None:
    store = Store(tmp_path).open()
    store.replace_run(row("mine", "x", "valid"))
    store.replace_run(row("elsewhere", "y", "valid") | {"broker": "there"})
    store.replace_run(row("another", "z", "valid") | {"suite": "line"})
    assert set(runs_of_suite(store, "grid", "here")) == {"x"}


def test_tags_are_added_to_a_run_that_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path).open()
    store.replace_run(row("mine", "x", "valid"))
    add_tags(store, "mine", {KEY_TAG: "y", "more": "so"})
    [after] = store.read("runs").to_pylist()
    assert dict(after["tags"]) == {KEY_TAG: "y", DIGEST_TAG: "a", "more": "so"}
    assert after["status"] == "valid"
