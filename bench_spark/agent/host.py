"""What kind of machine an agent runs on, for the record of the run (F6)."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

import psutil

from bench_spark.core.clock import boot_id
from bench_spark.core.kernels import are_compiled


def host_facts() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "link_speed_mbit": _link_speed_mbit(),
        "python": platform.python_version(),
        "has_compiled_kernels": are_compiled(),
        "boot_id": boot_id(),
    }


class HostLoad:
    """How busy all cores of this host were since the last question, whoever used them."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def busy_share(self) -> float | None:
        now, before = psutil.cpu_times(), self._before
        self._before = now
        passed = sum(now) - sum(before)
        idle = now.idle - before.idle + getattr(now, "iowait", 0) - getattr(before, "iowait", 0)
        return 1 - idle / passed if passed > 0 else None


def local_addresses() -> set[str]:
    """Every address of this host: tells whether the broker shares it."""
    return {
        address.address.split("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }


def is_this_host(host: str) -> bool:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found & local_addresses())


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # Not Linux: the generic name below is all there is.
    return platform.processor() or platform.machine()


def _link_speed_mbit() -> int | None:
    """The fastest real network interface that is up; None where the system does not say."""
    speeds = [
        stats.speed
        for name, stats in psutil.net_if_stats().items()
        if stats.isup and stats.speed > 0 and name != "lo"
    ]
    return max(speeds, default=None)
