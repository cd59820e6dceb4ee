"""Ctrl-C, SIGTERM and SIGHUP while Spark starts: quick, quiet, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

TIMEOUT_SECONDS = 60


def session_members(session: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def wait_for_jvm(session: int) -> None:
    """Until Spark's JVM is on its way: that is when an interruption used to leave it behind."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not any(process.name() == "java" for process in session_members(session)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def starting(tmp_path: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose JVM is on its way; `before`: what the command begins with."""
    script = "import sys; from bench_spark.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["run", "steady", "--broker", "loopback", "--store", str(tmp_path / "store")]
    program = subprocess.Popen(
        [*before, sys.executable, "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_jvm(program.pid)
        yield program
    finally:
        for process in session_members(program.pid):
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.fault(case=12)
def test_an_interrupted_start_leaves_nothing_behind(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with starting(tmp_path) as program:
        program.send_signal(number)
        out, err = program.communicate(timeout=TIMEOUT_SECONDS)
        assert program.returncode == code
        assert out == ""
        assert "Traceback" not in err
        assert session_members(program.pid) == []


def test_a_run_under_nohup_ignores_that_its_terminal_is_closed(tmp_path: Path) -> None:
    with starting(tmp_path, "nohup") as program:
        status = Path(f"/proc/{program.pid}/status").read_text()
        masks = dict(line.split(":\t", 1) for line in status.splitlines())
        is_ignored = int(masks["SigIgn"], 16) & 1 << (signal.SIGHUP - 1)
        assert is_ignored
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=TIMEOUT_SECONDS)
        assert program.returncode == 143
