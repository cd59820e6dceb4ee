"""Reading less often where messages flow fast and nobody waits for a single one.

A broker writes a few messages at a time, and every wake-up for a few costs as much as one for many.
Under full load a lane that flows asks the system to be woken for `GATHERED_BYTES` only, and looks
by itself when `PERIOD_SECONDS` have passed without that: a third of the processor time per message,
for a receive time that is later by at most two periods. A load whose point is latency is never
gathered.
"""

from __future__ import annotations

import ctypes
import os
from typing import Protocol

from bench_spark.config.models import Scenario

GATHERED_BYTES = 128 * 1024
FLOWING_BYTES = 8 * 1024
"""A read that brings less than this is of a lane that does not flow."""
PERIOD_SECONDS = 0.002
LEAST_BACKLOG_BYTES = 8 * GATHERED_BYTES

_CLOCK_MONOTONIC = 1
_NANOSECONDS = 1_000_000_000


def is_gathered(scenario: Scenario, *, acknowledges: bool) -> bool:
    """Only where sending waits for nothing that is still to be read: neither a window, nor an
    acknowledgement, nor a short backlog, nor a slow consumer."""
    load = scenario.load
    return (
        load.mode == "maximum"
        and load.backlog_limit_bytes >= LEAST_BACKLOG_BYTES
        and not acknowledges
        and not scenario.consumer.is_slow
    )


class Gatherable(Protocol):
    def read(self) -> None: ...

    def wake_at(self, waiting_bytes: int) -> None:
        """Be readable only once so many bytes have arrived."""


class Gathering:
    """For the lanes of one loop; itself a member of it, by a timer that can be waited for."""

    def __init__(self) -> None:
        self._timer = PeriodicTimer()
        self._flowing: set[Gatherable] = set()
        self._just_read: set[Gatherable] = set()

    def fileno(self) -> int:
        return self._timer.descriptor

    def after_read(self, lane: Gatherable, count: int) -> None:
        """A lane has read so many bytes."""
        if count >= FLOWING_BYTES:
            if lane not in self._flowing:
                self._flowing.add(lane)
                lane.wake_at(GATHERED_BYTES)
                self._timer.start(PERIOD_SECONDS)
            self._just_read.add(lane)
        elif lane in self._flowing:
            self.forget(lane)
            lane.wake_at(1)

    def is_flowing(self, lane: Gatherable) -> bool:
        return lane in self._flowing

    def forget(self, lane: Gatherable) -> None:
        self._flowing.discard(lane)
        self._just_read.discard(lane)
        if not self._flowing:
            self._timer.stop()

    def on_ready(self, events: int) -> None:
        """Look after the lanes that were not woken since the last time."""
        self._timer.heard()
        overdue = self._flowing - self._just_read
        self._just_read.clear()
        for lane in overdue:
            lane.read()

    def close(self) -> None:
        self._timer.close()


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


class PeriodicTimer:
    """Linux's timer with a descriptor, which Python has from 3.13 on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.timerfd_create(
            _CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC
        )
        self._check(self.descriptor)
        self._is_running = False

    def start(self, period_seconds: float) -> None:
        if not self._is_running:
            self._set(int(period_seconds * _NANOSECONDS))

    def stop(self) -> None:
        if self._is_running:
            self._set(0)

    def heard(self) -> None:
        """Be silent until the next period ends."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return  # stopped meanwhile

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _set(self, period_ns: int) -> None:
        period = _TimeSpec(*divmod(period_ns, _NANOSECONDS))
        self._check(
            self._libc.timerfd_settime(
                self.descriptor, 0, ctypes.byref(_TimerSpec(period, period)), None
            )
        )
        self._is_running = period_ns > 0

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
