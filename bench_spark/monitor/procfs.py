"""Processes as Linux shows them in /proc: parsers of its files, and a tree of processes summed up.

The tree is summed with the times and bytes of children that have ended, which the kernel adds to
their parents: so nothing is lost when a helper process ends between two readings.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_spark.config.fields import Pattern, TooSlow
from bench_spark.monitor.reading import COUNTERS, GAUGES, Reading, Unreadable

PROC = Path("/proc")

_IO_COUNTERS = {
    "rchar": "read_bytes",
    "wchar": "written_bytes",
    "read_bytes": "device_read_bytes",
    "write_bytes": "device_written_bytes",
}
_ENDED = ("Z", "X")


@dataclass(frozen=True)
class ProcessStat:
    """From /proc/PID/stat; CPU with that of children that have ended and were waited for."""

    pid: int
    name: str
    state: str
    parent: int
    user_ticks: int
    system_ticks: int
    birth_ticks: int

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED


def parse_stat(text: str) -> ProcessStat:
    """The name is in brackets and may itself contain brackets and spaces: the last one closes."""
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    return ProcessStat(
        pid=int(text[:opening]),
        name=text[opening + 1 : closing],
        state=fields[0],
        parent=int(fields[1]),
        user_ticks=int(fields[11]) + int(fields[13]),
        system_ticks=int(fields[12]) + int(fields[14]),
        birth_ticks=int(fields[19]),
    )


def parse_io(text: str) -> dict[str, int]:
    """/proc/PID/io: what was handed to the kernel, and what reached a device."""
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return {ours: int(found[theirs]) for theirs, ours in _IO_COUNTERS.items() if theirs in found}


def parse_status(text: str) -> dict[str, int]:
    """/proc/PID/status: resident memory and threads. One that is ending has no memory any more."""
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    gauges = {}
    if "VmRSS" in found:
        gauges["rss_bytes"] = int(found["VmRSS"].split()[0]) * 1024
    if "Threads" in found:
        gauges["threads"] = int(found["Threads"])
    return gauges


def parse_net_dev(text: str) -> dict[str, int]:
    """/proc/PID/net/dev: bytes over all interfaces of the network namespace but loopback."""
    received = sent = 0
    for line in text.splitlines():
        interface, colon, numbers = line.partition(":")
        if colon and interface.strip() != "lo":
            fields = numbers.split()
            received += int(fields[0])
            sent += int(fields[8])
    return {"network_received_bytes": received, "network_sent_bytes": sent}


def count_open_files(directory: Path) -> int:
    """`directory`: /proc/PID, of a process that we may look into."""
    return sum(1 for _ in (directory / "fd").iterdir())


Processes = Mapping[int, ProcessStat]
FindRoots = Callable[[Processes], Iterable[int]]


def with_descendants(roots: Iterable[int], processes: Processes) -> list[int]:
    """The roots and all that they have started, each once."""
    children: dict[int, list[int]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: dict[int, None] = {}
    waiting = [root for root in roots if root in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            waiting += children.get(pid, ())
    return sorted(found)


def with_ancestors(pid: int, processes: Processes) -> set[int]:
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def one_process(pid: int) -> FindRoots:
    """This process, and not one that is given the same number after it has ended."""
    birth_ticks: int | None = None

    def find(processes: Processes) -> list[int]:
        nonlocal birth_ticks
        stat = processes.get(pid)
        if stat is None or stat.has_ended:
            raise Unreadable(f"there is no process {pid}")
        birth_ticks = birth_ticks or stat.birth_ticks
        if stat.birth_ticks != birth_ticks:
            raise Unreadable(f"process {pid} has ended; its number belongs to another one")
        return [pid]

    return find


def matching(pattern: str, proc: Path = PROC, own_pid: int | None = None) -> FindRoots:
    """Processes whose name or command line the pattern is found in.

    Not this one, what it started and what started it: their command lines name the broker too.
    """
    expression = Pattern(pattern)
    own = own_pid or os.getpid()
    known: dict[tuple[int, int], bool] = {}

    def find(processes: Processes) -> list[int]:
        ours = with_ancestors(own, processes) | set(with_descendants([own], processes))
        found = []
        for pid, stat in processes.items():
            if pid in ours or stat.has_ended:
                continue
            key = (pid, stat.birth_ticks)
            if key not in known:
                try:
                    known[key] = bool(
                        expression.search(stat.name) or expression.search(_command_line(proc, pid))
                    )
                except TooSlow as error:
                    raise Unreadable(f"{error} on the command line of process {pid}") from None
            if known[key]:
                found.append(pid)
        if not found:
            raise Unreadable(f"no process matches {pattern}")
        return found

    return find


def _command_line(proc: Path, pid: int) -> str:
    try:
        return (
            (proc / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        return ""


class ProcessSampler:
    """Processes of this machine and all that they have started, as one."""

    def __init__(self, find_roots: FindRoots, proc: Path = PROC) -> None:
        self._find_roots = find_roots
        self._proc = proc
        self._tick_seconds = 1 / os.sysconf("SC_CLK_TCK")

    def read(self) -> Reading:
        processes = self._processes()
        roots = list(self._find_roots(processes))
        tree = with_descendants(roots, processes)
        oldest = min((processes[pid] for pid in roots), key=lambda stat: stat.birth_ticks)
        totals: dict[str, float] = {
            "cpu_user_seconds": sum(processes[pid].user_ticks for pid in tree) * self._tick_seconds,
            "cpu_system_seconds": sum(processes[pid].system_ticks for pid in tree)
            * self._tick_seconds,
        }
        unreadable: set[str] = set()
        living = [pid for pid in tree if not processes[pid].has_ended]
        for pid in living:
            self._add_details(pid, totals, unreadable)
        self._add_network(oldest.pid, totals, unreadable)
        totals["processes"] = len(living)
        told = {name: value for name, value in totals.items() if name not in unreadable}
        missing = (name for name in (*COUNTERS, *GAUGES) if name not in told)
        return Reading(
            at_ns=time.monotonic_ns(),
            host=socket.gethostname(),
            cores=os.cpu_count() or 1,
            counters={name: told[name] for name in COUNTERS if name in told},
            gauges={name: told[name] for name in GAUGES if name in told},
            unreadable=tuple(missing),
            identity=f"{oldest.pid}-{oldest.birth_ticks}",
        )

    def close(self) -> None:
        pass

    def _processes(self) -> Processes:
        found = {}
        for entry in self._proc.iterdir():
            if entry.name.isdecimal():
                try:
                    stat = parse_stat((entry / "stat").read_text(errors="replace"))
                except OSError:
                    continue  # It has ended since the directory was listed.
                found[stat.pid] = stat
        return found

    def _add_details(self, pid: int, totals: dict[str, float], unreadable: set[str]) -> None:
        """A sum with a part missing would be too small and look right: it is left out."""
        directory = self._proc / str(pid)
        parts: list[tuple[tuple[str, ...], Callable[[], Mapping[str, float]]]] = [
            (("rss_bytes", "threads"), lambda: parse_status((directory / "status").read_text())),
            (tuple(_IO_COUNTERS.values()), lambda: parse_io((directory / "io").read_text())),
            (("open_files",), lambda: {"open_files": count_open_files(directory)}),
        ]
        for names, read in parts:
            try:
                found = read()
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended since the tree was made, and took what it held with it.
            except OSError:
                unreadable.update(names)
                continue
            for name, value in found.items():
                totals[name] = totals.get(name, 0) + value

    def _add_network(self, pid: int, totals: dict[str, float], unreadable: set[str]) -> None:
        try:
            totals |= parse_net_dev((self._proc / str(pid) / "net" / "dev").read_text())
        except OSError:
            unreadable.update(("network_received_bytes", "network_sent_bytes"))
