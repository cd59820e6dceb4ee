"""Runs of one id that are started at once: one of them runs, whatever the store is."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from object_store import BUCKET, s3_server

from bench_spark.store.delta import Store

AT_ONCE = 2


@pytest.fixture
def directory(tmp_path: Path) -> tuple[str, Mapping[str, str]]:
    return str(tmp_path / "store"), {}


@pytest.fixture
def object_store(tmp_path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    with s3_server(tmp_path / "s3") as environment:
        yield f"s3://{BUCKET}/store", environment


@pytest.mark.parametrize(("kind", "attempts"), [("directory", 2), ("object_store", 1)])
def test_of_runs_with_one_id_that_start_at_once_one_runs(
    kind: str,
    attempts: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that has the id asks a broker that does not answer, until the others were refused.
    It is refused in the end, so that the next attempt may have the same id."""
    uri, environment = request.getfixturevalue(kind)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Store(uri).open()
    for _ in range(attempts):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            broker = tmp_path / "silent.yaml"
            address = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
            broker.write_text(f"kind: amqp\nuri: {address}\nconnect_timeout_seconds: 60\n")
            command = ["run", "steady", "--broker", str(broker), "--run-id", "mine"]
            started = [
                subprocess.Popen(
                    [sys.executable, "-m", "bench_spark.cli", *command, "--store", uri],
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(AT_ONCE)
            ]
            first = _first_to_end(started, AT_ONCE - 1)
            [running] = [one for one in started if one not in first]
            said = [one.communicate()[1] for one in first]
            assert [one.returncode for one in first] == [2] * (AT_ONCE - 1), said
            assert all("has a run mine already" in text for text in said), said
        # Nobody listens any more: who had been waiting is refused.
        _, why = running.communicate(timeout=600)
        assert running.returncode == 3, why
        assert "starting Spark" not in why
    rows = Store(uri).read("runs", columns=["run_id", "status", "exit_code"]).to_pylist()
    assert rows == [{"run_id": "mine", "status": "failed", "exit_code": 3}]


def _first_to_end(processes: list[subprocess.Popen[str]], count: int) -> list[Any]:
    deadline = time.monotonic() + 600
    while len(ended := [one for one in processes if one.poll() is not None]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ended
