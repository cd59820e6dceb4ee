"""A container's resources, from its control group or from the Docker daemon."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench_spark.monitor.processes import network_bytes
from bench_spark.monitor.reading import Reading, ResourceSampler, SourceUnreadable, reading_of
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable

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


class CgroupSampler(ResourceSampler):
    def __init__(self, path: str, root: Path = ROOT) -> None:
        """`path`: the group's directory, or where it is below `root`."""
        given = Path(path)
        is_directory = given.is_absolute() and given.is_relative_to(root)
        self._directory = given if is_directory else root / path.lstrip("/")

    def read(self) -> Reading:
        if not (self._directory / "cgroup.procs").is_file():
            raise SourceUnreadable(f"{self._directory} is no control group of version 2")
        totals: dict[str, float] = {}
        for read in (
            lambda: parse_cpu_stat(self._text("cpu.stat")),
            lambda: parse_memory_stat(self._text("memory.stat")),
            lambda: parse_io_stat(self._text("io.stat")),
            lambda: {"threads": len(self._lines("cgroup.threads"))},
            self._of_processes,
        ):
            self._add(read, totals)
        return reading_of(totals, str(self._directory.stat().st_ino))

    @staticmethod
    def _add(read: Callable[[], Mapping[str, float]], totals: dict[str, float]) -> None:
        with contextlib.suppress(OSError):  # then missing, which is what names it as unreadable
            totals |= read()

    def _of_processes(self) -> dict[str, float]:
        pids = [int(pid) for pid in self._lines("cgroup.procs")]
        found: dict[str, float] = {"processes": len(pids)}
        with contextlib.suppress(psutil.Error, OSError):  # not ours to look at, or just ended
            found["open_files"] = sum(psutil.Process(pid).num_fds() for pid in pids)
        if pids:
            with contextlib.suppress(OSError):
                found |= network_bytes(pids[0])
        return found

    def _text(self, name: str) -> str:
        return (self._directory / name).read_text()

    def _lines(self, name: str) -> list[str]:
        """Of the group and of all groups inside it."""
        return [
            line for file in self._directory.glob(f"**/{name}") for line in file.read_text().split()
        ]


_NANOSECONDS = 1_000_000_000


def parse_stats(stats: Mapping[str, Any]) -> dict[str, float]:
    """Counters and gauges of the answer; parts that this daemon does not give are left out."""
    found: dict[str, float] = {}
    usage = _section(stats, "cpu_stats", "cpu_usage")
    for theirs, ours in (
        ("usage_in_usermode", "cpu_user_seconds"),
        ("usage_in_kernelmode", "cpu_system_seconds"),
    ):
        if theirs in usage:
            found[ours] = usage[theirs] / _NANOSECONDS
    memory = _section(stats, "memory_stats", "stats")
    if "anon" in memory:
        found["rss_bytes"] = memory["anon"] + memory.get("file_mapped", 0)
    elif "rss" in memory:  # control groups of version 1
        found["rss_bytes"] = memory["rss"] + memory.get("mapped_file", 0)
    if "current" in _section(stats, "pids_stats"):
        found["threads"] = stats["pids_stats"]["current"]
    # A container on the host's network has no section of its own; one without I/O yet has null.
    networks = _section(stats, "networks")
    if networks:
        found["network_received_bytes"] = sum(net["rx_bytes"] for net in networks.values())
        found["network_sent_bytes"] = sum(net["tx_bytes"] for net in networks.values())
    if "io_service_bytes_recursive" in _section(stats, "blkio_stats"):
        entries = stats["blkio_stats"]["io_service_bytes_recursive"] or []
        for operation, name in (("read", "device_read_bytes"), ("write", "device_written_bytes")):
            found[name] = sum(
                entry["value"] for entry in entries if entry["op"].lower() == operation
            )
    return found


def _section(stats: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    section: Any = stats
    for name in path:
        section = section.get(name) or {}
    return section if isinstance(section, Mapping) else {}


class DockerSampler(ResourceSampler):
    def __init__(self, container: str, socket_path: str, timeout_seconds: float) -> None:
        self._container = container
        self._socket_path = socket_path
        self._http = DirectHttp("http://docker", timeout_seconds, unix_socket=socket_path)

    def read(self) -> Reading:
        stats = self._stats()
        try:
            found = parse_stats(stats)
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceUnreadable("the Docker daemon's statistics have an unknown form") from error
        cores = _section(stats, "cpu_stats").get("online_cpus")
        return reading_of(found, str(stats.get("id", "")), int(cores) if cores else None)

    def _stats(self) -> Mapping[str, Any]:
        name = urllib.parse.quote(self._container, safe="")
        try:
            body = self._http.ask(f"/containers/{name}/stats?stream=false&one-shot=true")
            stats = json.loads(body)
        except HttpRefusal as error:
            raise SourceUnreadable(
                f"Docker answers {error.status} for container {self._container}"
            ) from None
        except HttpUnreachable as error:
            reason = getattr(error.cause, "strerror", None) or type(error.cause).__name__
            raise SourceUnreadable(f"Docker at {self._socket_path}: {reason}") from None
        except ValueError:
            raise SourceUnreadable(
                f"Docker at {self._socket_path} does not answer in JSON"
            ) from None
        if not isinstance(stats, dict):
            raise SourceUnreadable(f"Docker answers 200 for container {self._container}")
        return stats
