"""A control group, version 2: what the kernel adds up for a service or a container."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench_spark.monitor.procfs import PROC, count_open_files, parse_net_dev
from bench_spark.monitor.reading import COUNTERS, GAUGES, Reading, Unreadable

ROOT = Path("/sys/fs/cgroup")

_MICROSECONDS = 1_000_000


def parse_flat(text: str) -> dict[str, int]:
    """`name value` lines, as in cpu.stat and memory.stat."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def parse_cpu_stat(text: str) -> dict[str, float]:
    found = parse_flat(text)
    return {
        ours: found[theirs] / _MICROSECONDS
        for theirs, ours in (
            ("user_usec", "cpu_user_seconds"),
            ("system_usec", "cpu_system_seconds"),
        )
        if theirs in found
    }


def parse_memory_stat(text: str) -> dict[str, int]:
    """Memory of processes and files they have mapped: what RSS is for one process.

    The group's `memory.current` is more: it has the page cache in it.
    """
    found = parse_flat(text)
    if "anon" not in found:
        return {}
    return {"rss_bytes": found["anon"] + found.get("file_mapped", 0)}


def parse_io_stat(text: str) -> dict[str, int]:
    """`8:0 rbytes=1 wbytes=2 ...`, a line per device."""
    totals = {"device_read_bytes": 0, "device_written_bytes": 0}
    for line in text.splitlines():
        fields = dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
        totals["device_read_bytes"] += int(fields.get("rbytes", 0))
        totals["device_written_bytes"] += int(fields.get("wbytes", 0))
    return totals


class CgroupSampler:
    def __init__(self, path: str, root: Path = ROOT, proc: Path = PROC) -> None:
        """`path`: the group's directory, or where it is below `root`."""
        given = Path(path)
        is_directory = given.is_absolute() and given.is_relative_to(root)
        self._directory = given if is_directory else root / path.lstrip("/")
        self._proc = proc

    def read(self) -> Reading:
        if not (self._directory / "cgroup.procs").is_file():
            raise Unreadable(f"{self._directory} is no control group of version 2")
        totals: dict[str, float] = {}
        for read in (
            lambda: parse_cpu_stat(self._text("cpu.stat")),
            lambda: parse_memory_stat(self._text("memory.stat")),
            lambda: parse_io_stat(self._text("io.stat")),
            lambda: {"threads": len(self._lines("cgroup.threads"))},
            self._of_processes,
        ):
            self._add(read, totals)
        wanted = (*COUNTERS, *GAUGES)
        return Reading(
            at_ns=time.monotonic_ns(),
            host=socket.gethostname(),
            cores=os.cpu_count() or 1,
            counters={name: totals[name] for name in COUNTERS if name in totals},
            gauges={name: totals[name] for name in GAUGES if name in totals},
            unreadable=tuple(name for name in wanted if name not in totals),
            identity=str(self._directory.stat().st_ino),
        )

    def close(self) -> None:
        pass

    @staticmethod
    def _add(read: Callable[[], Mapping[str, float]], totals: dict[str, float]) -> None:
        with contextlib.suppress(OSError):  # then missing, which is what names it as unreadable
            totals |= read()

    def _of_processes(self) -> dict[str, float]:
        pids = self._lines("cgroup.procs")
        found: dict[str, float] = {"processes": len(pids)}
        with contextlib.suppress(OSError):  # not ours to look at, or just ended
            found["open_files"] = sum(count_open_files(self._proc / pid) for pid in pids)
        if pids:
            found |= self._network(pids[0])
        return found

    def _network(self, pid: str) -> dict[str, float]:
        try:
            return dict(parse_net_dev((self._proc / pid / "net" / "dev").read_text()))
        except OSError:
            return {}

    def _text(self, name: str) -> str:
        return (self._directory / name).read_text()

    def _lines(self, name: str) -> list[str]:
        """Of the group and of all groups inside it."""
        return [
            line for file in self._directory.glob(f"**/{name}") for line in file.read_text().split()
        ]
