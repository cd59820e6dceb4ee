"""Runs of one id that are started at once: one of them runs, whatever the store is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from object_store import BUCKET, s3_server

from bench_spark.store import Store

ATTEMPTS = 3
AT_ONCE = 3


@pytest.fixture
def directory(tmp_path: Path) -> tuple[str, Mapping[str, str]]:
    return str(tmp_path / "store"), {}


@pytest.fixture
def object_store(tmp_path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    with s3_server(tmp_path / "s3") as environment:
        yield f"s3://{BUCKET}/store", environment


@pytest.mark.parametrize("kind", ["directory", "object_store"])
def test_of_runs_with_one_id_that_start_at_once_one_runs(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java none comes to Spark: the one that has the id ends with 3, the others with 2."""
    uri, environment = request.getfixturevalue(kind)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Store(uri).open()
    without_java = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": str(tmp_path)}
    for attempt in range(ATTEMPTS):
        command = ["run", "steady", "--broker", "loopback", "--run-id", f"mine-{attempt}"]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "bench_spark.cli", *command, "--store", uri],
                env=without_java,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(AT_ONCE)
        ]
        ended = [(*one.communicate(timeout=600), one.returncode) for one in started]
        codes = sorted(code for _, _, code in ended)
        assert codes == [2] * (AT_ONCE - 1) + [3], ended
        refused = [said for _, said, code in ended if code == 2]
        assert all(f"has a run mine-{attempt} already" in said for said in refused), refused
        assert not any("starting Spark" in said for said in refused)
    rows = Store(uri).read("runs", columns=["run_id", "status", "exit_code"]).to_pylist()
    assert sorted(row["run_id"] for row in rows) == [f"mine-{n}" for n in range(ATTEMPTS)]
    assert {(row["status"], row["exit_code"]) for row in rows} == {("failed", 3)}
