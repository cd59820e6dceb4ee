"""Room for connections: the limit of open files is raised where the system allows it."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_spark.brokers.base import Command, end, spawn
from bench_spark.process import raise_limit

FEW = 256

ASKING = """
import resource, sys
from bench_spark.process import make_room_for
from bench_spark.errors import EnvironmentNotReady
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
make_room_for(15, files_each=10)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 150)
try:
    make_room_for(400)
except EnvironmentNotReady as error:
    print(error)
"""


@pytest.fixture
def few_allowed() -> Iterator[int]:
    """A low limit that may be raised again; the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield hard if hard != resource.RLIM_INFINITY else sys.maxsize
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_as_far_as_wanted_and_never_lowered(few_allowed: int) -> None:
    wanted = min(FEW + 100, few_allowed)
    assert raise_limit(wanted) == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
    assert raise_limit(10) == wanted


def test_connections_that_the_system_does_not_allow_are_refused_with_both_numbers() -> None:
    # In a process of its own: a hard limit that was lowered stays low.
    asked = subprocess.run(
        [sys.executable, "-c", ASKING], check=True, capture_output=True, text=True
    )
    had_room, refusal = asked.stdout.splitlines()
    assert had_room == "True"
    assert "400 connections" in refusal
    assert "allows a process 300" in refusal
    assert "more agents" in refusal


def test_a_broker_may_open_more_files_than_the_shell_it_was_started_from(
    few_allowed: int, tmp_path: Path
) -> None:
    if few_allowed <= FEW:
        pytest.skip(f"this system allows {few_allowed} open files only")
    started = spawn(Command(["sleep", "60"]), tmp_path, tmp_path / "log")
    try:
        limits = Path(f"/proc/{started.pid}/limits").read_text()
    finally:
        end(started, patience_seconds=5)
    [allowed] = [line.split()[3] for line in limits.splitlines() if "open files" in line]
    assert allowed == "unlimited" or int(allowed) > FEW
