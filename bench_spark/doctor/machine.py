"""The computer: cores, memory, open files, clock and scheduler."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench_spark.agent.host import SLICE_NS, short_time_slice
from bench_spark.doctor.examining import Check
from bench_spark.doctor.finding import Finding, failing, ok, warning

FEWEST_CORES = 2
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 1_500_000_000, 3_000_000_000
"""A local session's JVM has a heap of up to 2 GB, and agents have some 100 MB each."""
FEW_FILES = 4096
GOOD_CLOCK_SOURCES = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"}
MOST_CLOCK_ERROR_US = 100_000

_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_UNSYNCHRONISED = 0x40  # STA_UNSYNC


def machine_checks() -> list[Check]:
    return [
        Check("cores", lambda: cores_finding(len(os.sched_getaffinity(0)))),
        Check("memory", lambda: memory_finding(psutil.virtual_memory().available)),
        Check("open files", lambda: files_finding(resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        Check("clock", lambda: clock_finding(read_clock_state())),
        Check("clock source", lambda: clock_source_finding(_clock_source())),
        Check("time slice", _time_slice),
    ]


def cores_finding(cores: int) -> Finding:
    if cores < FEWEST_CORES:
        return warning(
            "cores",
            f"{cores} core: Spark and the load compete for it",
            f"use a machine with {FEWEST_CORES} or more, or agents on a cluster (docs/cluster.md)",
        )
    return ok("cores", f"{cores} cores")


def memory_finding(available_bytes: int) -> Finding:
    text = f"{available_bytes / 1e9:.1f} GB available"
    if available_bytes < LEAST_MEMORY_BYTES:
        return failing("memory", text, "end what uses it: Spark here needs some 2 GB")
    if available_bytes < GOOD_MEMORY_BYTES:
        return warning("memory", text, "end what uses it: 3 GB leave room for a broker beside it")
    return ok("memory", text)


def files_finding(hard_limit: int) -> Finding:
    """The soft limit is raised by whoever needs more; the hard one is the system's."""
    if hard_limit == resource.RLIM_INFINITY:
        return ok("open files", "as many as wanted")
    text = f"a process may open up to {hard_limit}"
    if hard_limit < FEW_FILES:
        return warning(
            "open files",
            f"{text}: enough for some {max(0, hard_limit - 200)} connections per agent",
            "raise the hard limit: `nofile` in /etc/security/limits.conf, or LimitNOFILE= of the "
            "service",
        )
    return ok("open files", text)


@dataclass(frozen=True)
class ClockState:
    """What the kernel says of its clock; offsets as NTP keeps them."""

    is_synchronised: bool
    most_error_us: int
    frequency_ppm: float


class _Timex(ctypes.Structure):
    """The head of struct timex; the kernel fills all 208 bytes of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def read_clock_state() -> ClockState | None:
    """None where the system does not tell. Reading needs no privilege."""
    if not sys.platform.startswith("linux"):
        return None
    asked = _Timex(modes=0)
    if ctypes.CDLL(None).adjtimex(ctypes.byref(asked)) < 0:
        return None
    return ClockState(
        is_synchronised=not asked.status & _UNSYNCHRONISED,
        most_error_us=asked.maxerror,
        frequency_ppm=asked.freq / 65536,
    )


def clock_finding(state: ClockState | None) -> Finding:
    mend = "start chrony or systemd-timesyncd; matters where agents run on several machines"
    if state is None:
        return warning("clock", "the system does not say whether it is synchronised", mend)
    if not state.is_synchronised:
        return warning("clock", "nobody keeps it synchronised (NTP)", mend)
    text = f"synchronised, off by at most {state.most_error_us / 1000:g} ms"
    drift = f"{text}; corrected by {state.frequency_ppm:+.1f} ppm"
    if state.most_error_us > MOST_CLOCK_ERROR_US:
        return warning("clock", drift, "look whether its time server is reachable and near")
    return ok("clock", drift)


def _clock_source() -> str | None:
    try:
        return _CLOCK_SOURCE.read_text().strip()
    except OSError:
        return None


def clock_source_finding(source: str | None) -> Finding:
    check = "clock source"
    if source is None:
        return ok(check, "the system does not name it")
    if source not in GOOD_CLOCK_SOURCES:
        return warning(
            check,
            f"{source}: reading it takes long, and every message is stamped",
            "boot with clocksource=tsc if the processor's counter is stable",
        )
    return ok(check, source)


def _time_slice() -> Finding:
    with short_time_slice() as granted_ns:
        return time_slice_finding(granted_ns)


def time_slice_finding(granted_ns: int | None) -> Finding:
    check = "time slice"
    if granted_ns is None:
        return warning(
            check,
            "this kernel does not grant short ones: on a busy machine agents wake up late",
            "use Linux 6.12 or newer, or keep the machine's cores idle beside the load",
        )
    if granted_ns > SLICE_NS:
        return warning(
            check,
            f"{granted_ns / 1e6:g} ms granted, {SLICE_NS / 1e6:g} ms asked for",
            "on a busy machine agents wake up late; keep its cores idle beside the load",
        )
    return ok(check, f"agents are granted {granted_ns / 1e6:g} ms")
