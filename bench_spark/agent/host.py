"""The machine: what it is, how busy it is, and how little it disturbs the loop.

On a machine whose cores are all in use, a thread that wakes up to send waits until the scheduler
takes the core from another, milliseconds later. Since version 6.12 Linux lets a thread ask for a
shorter slice: it then gets no more of the processor, but gets it sooner when it wakes up. Needs no
privilege. Threads that are started afterwards inherit it. Older kernels ignore the wish, other
systems have no such call: the load runs all the same, with the lag that the machine gives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import select
import socket
import sys
from collections.abc import Iterator, Sequence
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
    """Every address of this host: shows whether the broker shares it."""
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


SLICE_NS = 100_000
"""The shortest slice that the kernel grants."""

# Numbers of the calls sched_setattr and sched_getattr, which the C library does not wrap.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_FAIR_POLICIES = (0, 3)  # SCHED_OTHER, SCHED_BATCH: the ones whose slice is a wish


class _Attributes(ctypes.Structure):
    """The first version of struct sched_attr, which every kernel knows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


@contextlib.contextmanager
def short_time_slice() -> Iterator[int | None]:
    """Ask for it for the calling thread; gives the slice in force in ns, None without a say."""
    before = _attributes()
    if before is None or before.policy not in _FAIR_POLICIES:
        yield None
        return
    wish = _Attributes.from_buffer_copy(before)
    wish.runtime_ns = SLICE_NS
    _set(wish)
    granted = _attributes()
    try:
        # A kernel without this setting reports no slice.
        yield (granted.runtime_ns or None) if granted is not None else None
    finally:
        _set(before)


def _attributes() -> _Attributes | None:
    found = _Attributes()
    size = ctypes.sizeof(found)
    return found if _call(1, 0, ctypes.byref(found), size, 0) else None


def _set(attributes: _Attributes) -> None:
    attributes.size = ctypes.sizeof(attributes)
    _call(0, 0, ctypes.byref(attributes), 0)


def _call(which: int, *arguments: object) -> bool:
    numbers = _CALLS.get(platform.machine())
    if numbers is None or not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0)


SWITCH_SECONDS = 0.0005


@contextlib.contextmanager
def without_interruptions() -> Iterator[None]:
    """No garbage collection and short thread switches while the load runs."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()


LONGEST_WAIT_NS = 20_000_000
"""Of the loop: some work becomes due without a descriptor that wakes it."""

_SELECTABLE = 1024
"""`select` takes no descriptor from here on."""


class Waiting:
    """Waits until one of its descriptors is readable.

    `epoll` rounds its time-out up to a whole millisecond, and `select` takes no high descriptors.
    Link and transports have low ones, as they make theirs before the connections, and `select`
    waits for these; where one is too high, it waits for the one descriptor of an `epoll`.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptors: list[int] = []
        self._are_selectable = True

    def add(self, *descriptors: int) -> None:
        """Those of null objects are negative, and left out."""
        # Both ends of a transport may have one descriptor between them.
        for descriptor in {one for one in descriptors if one >= 0}:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._descriptors.append(descriptor)
        self._are_selectable = max(self._descriptors, default=0) < _SELECTABLE

    def wait(self, timeout_seconds: float) -> Sequence[int]:
        """The descriptors that are readable; none when the time is up."""
        if self._are_selectable:
            return select.select(self._descriptors, (), (), timeout_seconds)[0]
        if self._epoll.fileno() < _SELECTABLE:
            select.select([self._epoll.fileno()], (), (), timeout_seconds)
            timeout_seconds = 0
        return [descriptor for descriptor, _ in self._epoll.poll(timeout_seconds)]

    def close(self) -> None:
        self._epoll.close()
