"""Processes of this machine: a tree of them summed up, and the network of one, which psutil lacks.

The tree is summed with the CPU time of children that have ended, which the kernel adds to their
parents: so nothing is lost when a helper process ends between two readings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from bench_spark.config.fields import Pattern, TooSlow
from bench_spark.monitor.reading import Reading, ResourceSampler, SourceUnreadable, reading_of

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_NETWORK = ("network_received_bytes", "network_sent_bytes")

Processes = Mapping[int, psutil.Process]
"""All processes by number, each with its `info`."""
FindRoots = Callable[[Processes], Iterable[int]]


def all_processes() -> Processes:
    found = psutil.process_iter(["ppid", "status", "cpu_times", "create_time"])
    return {process.pid: process for process in found}


def network_bytes(pid: int) -> dict[str, int]:
    """Bytes over all interfaces of the process's network namespace but loopback."""
    received = sent = 0
    with Path(psutil.PROCFS_PATH, str(pid), "net", "dev").open() as file:
        for line in file:
            interface, colon, numbers = line.partition(":")
            if colon and interface.strip() != "lo":
                fields = numbers.split()
                received += int(fields[0])
                sent += int(fields[8])
    return dict(zip(_NETWORK, (received, sent), strict=True))


def with_descendants(roots: Iterable[int], parents: Mapping[int, int]) -> list[int]:
    """The roots and all that they have started, each once; `parents`: of every process."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root for root in roots if root in parents]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return sorted(found)


def with_ancestors(pid: int, parents: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


def _parents(processes: Processes) -> dict[int, int]:
    return {pid: process.info["ppid"] for pid, process in processes.items()}


def _has_ended(process: psutil.Process) -> bool:
    return process.info["status"] in _ENDED


def one_process(pid: int) -> FindRoots:
    """This process, and not one that is given the same number after it has ended."""
    first: psutil.Process | None = None

    def find(processes: Processes) -> list[int]:
        nonlocal first
        if first is not None and not first.is_running() and pid in psutil.pids():
            raise SourceUnreadable(f"process {pid} has ended; its number belongs to another one")
        process = processes.get(pid)
        if process is None or _has_ended(process):
            raise SourceUnreadable(f"there is no process {pid}")
        first = first or process
        return [pid]

    return find


def matching(pattern: str, own_pid: int | None = None) -> FindRoots:
    """Processes whose name or command line the pattern is found in.

    Not this one, what it started and what started it: their command lines name the broker too.
    """
    expression = Pattern(pattern)
    own = own_pid or os.getpid()
    known: dict[psutil.Process, bool] = {}

    def find(processes: Processes) -> list[int]:
        parents = _parents(processes)
        ours = with_ancestors(own, parents) | set(with_descendants([own], parents))
        found = []
        for pid, process in processes.items():
            if pid in ours or _has_ended(process):
                continue
            if process not in known:
                try:
                    known[process] = any(map(expression.search, _names(process)))
                except TooSlow as error:
                    raise SourceUnreadable(
                        f"{error} on the command line of process {pid}"
                    ) from None
            if known[process]:
                found.append(pid)
        if not found:
            raise SourceUnreadable(f"no process matches {pattern}")
        return found

    return find


def _names(process: psutil.Process) -> list[str]:
    try:
        return [process.name(), " ".join(process.cmdline())]
    except (psutil.Error, OSError):
        return []


class ProcessSampler(ResourceSampler):
    """Processes of this machine and all that they have started, as one."""

    def __init__(self, find_roots: FindRoots) -> None:
        self._find_roots = find_roots

    def read(self) -> Reading:
        processes = all_processes()
        roots = [processes[pid] for pid in self._find_roots(processes)]
        oldest = min(roots, key=lambda process: process.info["create_time"])
        pids = with_descendants([root.pid for root in roots], _parents(processes))
        tree = [processes[pid] for pid in pids]
        living = [process for process in tree if not _has_ended(process)]
        times = [process.info["cpu_times"] for process in tree]
        found: dict[str, float] = {
            "cpu_user_seconds": sum(one.user + one.children_user for one in times),
            "cpu_system_seconds": sum(one.system + one.children_system for one in times),
            "processes": len(living),
        }
        unreadable: set[str] = set()
        for process in living:
            _add_details(process, found, unreadable)
        with suppress(OSError):
            found |= network_bytes(oldest.pid)
        return reading_of(
            {name: value for name, value in found.items() if name not in unreadable},
            identity=f"{oldest.pid}-{oldest.info['create_time']}",
        )


def _io(process: psutil.Process) -> tuple[int, ...]:
    found = process.io_counters()
    return found.read_chars, found.write_chars, found.read_bytes, found.write_bytes


_DETAILS: Mapping[tuple[str, ...], Callable[[psutil.Process], tuple[int, ...]]] = {
    ("rss_bytes",): lambda process: (process.memory_info().rss,),
    ("threads",): lambda process: (process.num_threads(),),
    ("read_bytes", "written_bytes", "device_read_bytes", "device_written_bytes"): _io,
    ("open_files",): lambda process: (process.num_fds(),),
}


def _add_details(process: psutil.Process, totals: dict[str, float], unreadable: set[str]) -> None:
    """A sum with a part missing would be too small and look right: it is left out."""
    for names, read in _DETAILS.items():
        try:
            values = read(process)
        except psutil.NoSuchProcess:
            continue  # It has ended since the tree was made, and took what it held with it.
        except (psutil.AccessDenied, OSError):
            unreadable.update(names)
            continue
        for name, value in zip(names, values, strict=True):
            totals[name] = totals.get(name, 0) + value
