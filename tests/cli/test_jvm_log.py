"""What the JVM says goes to a file, which is there when something failed and is named then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench_spark.store.delta import Store

pytestmark = pytest.mark.deployment

TIMEOUT_SECONDS = 300


def bench_spark(
    directory: Path, *arguments: str, **environment: str
) -> tuple[int, str, str, list[Path]]:
    """Exit code, standard output, standard error, and the logs that were left."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "bench_spark.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
    )
    return done.returncode, done.stdout, done.stderr, sorted(temporary.glob("bench-spark-jvm-*"))


def test_a_command_that_went_well_shows_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    Store(store).open()
    query = ("sql", "SELECT 41 + 1 AS answer", "--store", store)
    code, out, err, left = bench_spark(tmp_path, *query)
    assert code == 0, err
    assert "42" in out
    assert "WARNING" not in out + err
    assert left == []


def test_a_jvm_that_does_not_start_leaves_its_reason_in_a_file_that_is_named(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "store")
    Store(store).open()
    query = ("sql", "SELECT 1", "--store", store)
    code, out, err, left = bench_spark(tmp_path, *query, SPARK_SUBMIT_OPTS="-agentlib:nosuchagent")
    assert code == 3
    assert out == ""
    named = re.search(r"Spark did not start: .*; Spark's log: (\S+)", err)
    assert named is not None, err
    assert [Path(named[1])] == left
    assert "nosuchagent" in left[0].read_text()
    assert "nosuchagent" not in err
