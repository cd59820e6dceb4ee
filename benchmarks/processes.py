"""Processes of other tools: their output line by line, and the CPU they used."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS_AT_MOST = 60
END_TIMEOUT_SECONDS = 10


def cpu_seconds(*processes: int) -> float:
    """User and system time of these processes and all their descendants so far."""
    total = 0.0
    for root in map(psutil.Process, processes):
        own = root.cpu_times()
        # Children that have ended and were waited for are in their parent's account.
        total += own.user + own.system + own.children_user + own.children_system
        for child in root.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it ended since it was listed, and is in its parent's account from now on
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True)
class Printed:
    """A line of a tool's output, when it came, and the CPU that the tool had used by then."""

    text: str
    at_seconds: float
    cpu_seconds: float


@contextmanager
def started(
    command: Sequence[str | Path], at_most_seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """A process for the length of a `with`; ended after it, or when it has taken too long."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        bufsize=1,
    )
    # Whoever reads its output would wait for ever for a tool that neither prints nor ends.
    watchdog = threading.Timer(at_most_seconds, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def printed(process: subprocess.Popen[str]) -> Iterator[Printed]:
    """What the process prints until it ends, each line with the CPU used when it came."""
    assert process.stdout is not None
    for text in process.stdout:
        try:
            cpu = cpu_seconds(process.pid)
        except psutil.NoSuchProcess:
            return
        yield Printed(text.rstrip("\n"), time.monotonic(), cpu)
