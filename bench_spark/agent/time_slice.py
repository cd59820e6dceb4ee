"""A short time slice for the thread that keeps a schedule.

On a machine whose cores are all in use, a thread that wakes up to send waits until the scheduler
takes the core from another, milliseconds later. Since version 6.12 Linux lets a thread ask for a
shorter slice: it then gets no more of the processor, but gets it sooner when it wakes up. Needs no
privilege. Threads that are started afterwards inherit it. Older kernels ignore the wish, other
systems have no such call: the load runs all the same, with the lag that the machine gives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator

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
        # A kernel that does not know the wish tells no slice.
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
