"""What Spark itself costs: the driver and the session's JVM, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench_spark.spark.observer import SparkOverhead

BUSY, IDLE = "while True: pass", "import time; time.sleep(600)"


@pytest.fixture
def java_children(tmp_path: Path) -> Iterator[tuple[psutil.Popen, psutil.Popen]]:
    """Two children by the name of java: one that does nothing, and one that is busy."""
    java = tmp_path / "java"
    java.symlink_to(os.path.realpath(sys.executable))
    # Isolated: the program of a virtual environment is known by its path, which this is not.
    started = [psutil.Popen([str(java), "-I", "-S", "-c", code]) for code in (IDLE, BUSY)]
    yield started[0], started[1]
    for child in started:
        child.kill()
        child.wait()


def used_seconds(child: psutil.Popen) -> float:
    return float(sum(child.cpu_times()[:2]))


@pytest.mark.parametrize("is_jvm_busy", [False, True])
def test_other_java_programs_are_not_counted(
    java_children: tuple[psutil.Popen, psutil.Popen], is_jvm_busy: bool
) -> None:
    idle, busy = java_children
    assert "java" in busy.name()
    overhead = SparkOverhead(busy.pid if is_jvm_busy else idle.pid)
    began, used_before = time.monotonic(), used_seconds(busy)
    overhead.begin()
    while used_seconds(busy) - used_before < 0.5:
        time.sleep(0.05)
    overhead.end()
    assert overhead.cores is not None
    counted_seconds = overhead.cores * (time.monotonic() - began)
    assert (counted_seconds > 0.4) == is_jvm_busy, "the busy one has used half a second"


def test_a_jvm_that_has_ended_costs_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    overhead = SparkOverhead(ended.pid)
    overhead.begin()
    time.sleep(0.01)
    overhead.end()
    assert overhead.cores is not None
