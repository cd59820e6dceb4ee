"""Processes that outlive the command that started them: begin, recognise, end.

A process id alone proves nothing, since the kernel hands it out again; together with the time the
process began it is unique. Both are written down, so that a later command never signals a stranger.
Linux only (/proc), as the agents are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench_spark.descriptors import MOST_FOR_A_BROKER, raise_limit

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Command:
    """A program to start."""

    arguments: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to PATH, LANG and HOME, which are all that it inherits: no secret of the user's shell,
    and no variable that changes how a JVM or an Erlang node starts."""
    is_ready: Callable[[], bool] | None = None
    """What must hold before the next program is started."""


@dataclass(frozen=True)
class StartedProcess:
    pid: int
    birth_ticks: int
    """When it began, in clock ticks since the machine did."""

    @property
    def is_alive(self) -> bool:
        if child := _children.get(self.pid):
            child.poll()
        return _birth_ticks(self.pid) == self.birth_ticks


# Children of this very interpreter have to be waited for, or they stay as zombies when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


def run_to_end(command: Command, directory: Path, log: Path) -> int:
    """For a preparing step; returns its exit code."""
    with log.open("ab") as output:
        return subprocess.run(
            list(command.arguments),
            env=_environment(command, directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def spawn(command: Command, directory: Path, log: Path) -> StartedProcess:
    """Start it in a session of its own: neither Ctrl-C nor the end of this command reaches it.

    It may open as many files as the system allows it, within reason: a broker refuses connections
    beyond that, or leaves them waiting.
    """
    raise_limit(MOST_FOR_A_BROKER)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(command.arguments),
            env=_environment(command, directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    # Unreaped until somebody polls it, so it has an entry in /proc even if it ended at once.
    return StartedProcess(child.pid, _birth_ticks(child.pid, even_if_ended=True) or 0)


def end(process: StartedProcess, patience_seconds: float) -> None:
    """Ask it to end, insist if it does not, and return when it and all it started are gone."""
    if not process.is_alive:
        _reap(process)
        return
    descendants = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    if not _ended_within(process, patience_seconds):
        os.kill(process.pid, signal.SIGKILL)
        _ended_within(process, patience_seconds)
    # Helpers of a program usually end with it; psutil knows a process id that was handed out again.
    _, left = psutil.wait_procs(descendants, timeout=1)
    for helper in left:
        helper.kill()
    psutil.wait_procs(left, timeout=patience_seconds)
    _reap(process)


def last_lines(log: Path, count: int = 12) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-count:])
    except FileNotFoundError:
        return ""


def _environment(command: Command, directory: Path) -> dict[str, str]:
    inherited = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    return inherited | {"HOME": str(directory)} | dict(command.environment)


def _ended_within(process: StartedProcess, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reap(process: StartedProcess) -> None:
    if child := _children.pop(process.pid, None):
        child.wait()


def _birth_ticks(pid: int, even_if_ended: bool = False) -> int | None:
    """From /proc/PID/stat; None if there is no such process or (a zombie) it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the program's name, may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    state, threads, birth_ticks = fields[0], int(fields[17]), int(fields[19])
    # A killed JVM's first thread is a zombie while the others still hold its ports.
    has_ended = state in "ZX" and threads <= 1
    return None if has_ended and not even_if_ended else birth_ticks
