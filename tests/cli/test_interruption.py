"""Ctrl-C and SIGTERM while Spark starts: quick, quiet, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.fault(case=12)
def test_an_interrupted_start_leaves_nothing_behind(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    script = "import sys; from bench_spark.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["run", "steady", "--broker", "loopback", "--store", str(tmp_path / "store")]
    program = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_jvm(program.pid)
        program.send_signal(number)
        out, err = program.communicate(timeout=TIMEOUT_SECONDS)
        assert program.returncode == code
        assert out == ""
        assert "Traceback" not in err
        assert session_members(program.pid) == []
    finally:
        for process in session_members(program.pid):
            process.kill()
