"""A traced run from the command line: rows, join, objectives, and what can be asked afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench_spark.cli import main
from bench_spark.store.delta import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("traced")
    code = main(
        [
            *("run", "steady", "--broker", "loopback", "--run-id", "RUN", "--quiet"),
            *("--store", str(directory / "store"), "--duration", "1s"),
            *("--set", "trace=all", "--set", "phases.warmup_seconds=0.5"),
            *("--set", "load.rate_per_second=2000"),
            *("--slo", "trace.missing == 0", "--slo", "p50 < 1us"),
            *("--format", f"json={directory / 'result.json'}"),
            *("--format", f"html={directory / 'result.html'}"),
        ]
    )
    document = json.loads((directory / "result.json").read_text())
    # 4: a busy machine may not keep the rate.
    assert code == document["exit_code"]
    assert code == (1 if document["status"] == "valid" else 4)
    return directory, document


def test_every_message_is_joined_and_agrees_with_the_accounts(traced: tuple[Path, Any]) -> None:
    _, document = traced
    checks = {check["name"]: check["verdict"] for check in document["audit"]["checks"]}
    assert checks["trace"] == "pass"
    trace, counts = document["trace"], document["counts"]
    assert trace["sent"] == counts["sent"] > 0
    assert trace["received_once"] == counts["received_once"]
    assert trace["measures"]["latency"]["p99_us"] == document["measures"]["latency"]["p99_us"]
    assert document["agents"][0]["trace"]["rows"] >= 2 * counts["sent"]


def test_objectives_are_in_the_result_the_table_and_the_page(traced: tuple[Path, Any]) -> None:
    directory, document = traced
    assert [one["met"] for one in document["slo"]] == [True, False]
    row = Store(directory / "store").read("runs", columns=["slo"]).to_pylist()[0]
    assert [one["objective"] for one in row["slo"]] == ["trace.missing == 0", "p50 < 1us"]
    page = (directory / "result.html").read_text()
    assert "What the run was to reach" in page
    assert "Message by message" in page


def test_the_join_can_be_made_again(
    traced: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, document = traced
    store = ["--store", str(directory / "store"), "--quiet"]
    assert main(["messages", "RUN", *store, "--format", "json"]) == 0
    again = json.loads(capsys.readouterr().out)["trace"]
    assert again | {"join_seconds": 0} == document["trace"] | {"join_seconds": 0}


def test_files_of_messages_lie_in_a_directory_of_the_run(traced: tuple[Path, Any]) -> None:
    directory, _ = traced
    files = list((directory / "store" / "messages" / "RUN").iterdir())
    assert files
    assert all(file.name.startswith("0-0-") for file in files)


def test_what_cannot_end_a_run_is_refused_before_it_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["run", "steady", "--broker", "loopback"]
    assert main([*run, "--stop-on-slo", "--slo", "lost == 0"]) == 2
    assert main([*run, "--slo", "p98 < 1ms"]) == 2
    assert main([*run, "--duration", "8 hours"]) == 2
    told = capsys.readouterr().err
    assert "needs an objective of a measure or a rate" in told
    assert "--slo: 'p98 < 1ms'" in told
    assert "--duration: '8 hours'" in told
