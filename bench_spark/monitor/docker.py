"""A container, as the Docker daemon's `stats` tells it over its local socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from bench_spark.monitor.http_client import MOST_BYTES
from bench_spark.monitor.reading import COUNTERS, GAUGES, Reading, Unreadable

_NANOSECONDS = 1_000_000_000


def parse_stats(stats: Mapping[str, Any]) -> dict[str, float]:
    """Counters and gauges of the answer; parts that this daemon does not tell are left out."""
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


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("docker", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerSampler:
    def __init__(self, container: str, socket_path: str, timeout_seconds: float) -> None:
        self._container = container
        self._socket_path = socket_path
        self._timeout_seconds = timeout_seconds

    def read(self) -> Reading:
        stats = self._stats()
        at_ns = time.monotonic_ns()
        try:
            found = parse_stats(stats)
        except (KeyError, TypeError, AttributeError) as error:
            raise Unreadable("the Docker daemon's statistics have an unknown form") from error
        wanted = (*COUNTERS, *GAUGES)
        return Reading(
            at_ns=at_ns,
            host=socket.gethostname(),
            cores=int(_section(stats, "cpu_stats").get("online_cpus") or os.cpu_count() or 1),
            counters={name: found[name] for name in COUNTERS if name in found},
            gauges={name: found[name] for name in GAUGES if name in found},
            unreadable=tuple(name for name in wanted if name not in found),
            identity=str(stats.get("id", "")),
        )

    def close(self) -> None:
        pass

    def _stats(self) -> Mapping[str, Any]:
        connection = _UnixConnection(self._socket_path, self._timeout_seconds)
        name = urllib.parse.quote(self._container, safe="")
        try:
            connection.request("GET", f"/containers/{name}/stats?stream=false&one-shot=true")
            answer = connection.getresponse()
            body = answer.read(MOST_BYTES)
            stats = json.loads(body)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise Unreadable(f"Docker at {self._socket_path}: {reason}") from None
        except ValueError:
            raise Unreadable(f"Docker at {self._socket_path} does not answer in JSON") from None
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK or not isinstance(stats, dict):
            raise Unreadable(f"Docker answers {answer.status} for container {self._container}")
        return stats
