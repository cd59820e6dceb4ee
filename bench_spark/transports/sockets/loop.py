"""One epoll over many sockets, timers, and blocking calls made in threads.

Nothing here knows a protocol. `pump` is the only place where anything ever waits, and it waits in
`select` on the epoll's own descriptor: epoll alone rounds its timeout up to a millisecond, and
`select` alone fails from descriptor 1024 on. The epoll is therefore made before any socket, so that
its own number is small.

Looking up a name, connecting and encrypting cannot be had without waiting, and the one thread that
carries the load must not wait: `BackgroundCalls` makes them, and their results come back on the
loop.

Under full load, where nobody waits for a single message, sockets are read less often (`Gathering`):
a broker writes a few messages at a time, and every wake-up for a few costs as much as one for many.
A connection that flows asks the system to be woken for `GATHERED_BYTES` only, and looks by itself
when `PERIOD_SECONDS` have passed without that: a third of the processor time per message, for a
receive time that is later by at most two periods. A load whose point is latency is never gathered.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from bench_spark.config.models import Scenario
from bench_spark.process import watched

READABLE = select.EPOLLIN | select.EPOLLRDHUP
BROKEN = select.EPOLLERR | select.EPOLLHUP
"""Reported whether asked for or not."""
_HIGHEST_FOR_SELECT = 1023


class Pollable(Protocol):
    def fileno(self) -> int: ...

    def on_ready(self, events: int) -> None:
        """It may be ready. One that is served alone is asked without a look at its socket, so it
        must bear to be asked in vain."""


class Timer:
    """A call due later; cancelled by forgetting what it should call."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._pollables: dict[int, Pollable] = {}
        self._watched: dict[int, int] = {}
        """By descriptor: the events that are waited for."""
        self._alone: Pollable | None = None
        """The only one, where it is to be read: whoever serves the loop knows that it is ready, and
        epoll need not say it again."""
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap, by when they are due."""
        self._order = itertools.count()
        self._soon: deque[Callable[[], object]] = deque()
        self._poll = self._epoll.poll
        self._is_awake = False
        """Whether the descriptor is readable because of `wake`."""
        self.is_closed = False

    @property
    def descriptor(self) -> int:
        """Readable when a socket needs attention, or after `wake` until sockets are served next."""
        return self._epoll.fileno()

    def add(self, pollable: Pollable) -> None:
        self._pollables[pollable.fileno()] = pollable
        self._watched[pollable.fileno()] = READABLE
        self._epoll.register(pollable.fileno(), READABLE)
        self._look_who_is_alone()

    def remove(self, pollable: Pollable) -> None:
        if self._pollables.pop(pollable.fileno(), None) is not None:
            self._epoll.unregister(pollable.fileno())
            self._look_who_is_alone()

    def _look_who_is_alone(self) -> None:
        self._alone = None
        if len(self._pollables) == 1:
            [(descriptor, pollable)] = self._pollables.items()
            if self._watched[descriptor] & READABLE:
                self._alone = pollable

    def watch_writing(self, pollable: Pollable, wanted: bool) -> None:
        self._watch(pollable, select.EPOLLOUT, wanted)

    def watch_reading(self, pollable: Pollable, wanted: bool) -> None:
        self._watch(pollable, READABLE, wanted)

    def _watch(self, pollable: Pollable, events: int, wanted: bool) -> None:
        descriptor = pollable.fileno()
        if descriptor in self._pollables:
            others = self._watched[descriptor] & ~events
            self._watched[descriptor] = others | events if wanted else others
            self._epoll.modify(descriptor, self._watched[descriptor])
            self._look_who_is_alone()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it at the end of the present or the next turn."""
        self._soon.append(callback)

    def call_from_thread(self, callback: Callable[[], object]) -> None:
        """The same for other threads, which must not call it once the loop is closed."""
        self._soon.append(callback)
        os.eventfd_write(self._wakeup, 1)
        self._is_awake = True

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_seconds, next(self._order), timer))
        return timer

    def wake(self) -> None:
        """Make the descriptor readable: something decoded earlier waits to be fetched."""
        if not self._is_awake and not self.is_closed:
            os.eventfd_write(self._wakeup, 1)
            self._is_awake = True

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Wait at most that long for a socket, then serve every ready one once."""
        if self.is_closed:
            return
        if self._is_awake:
            self._is_awake = False
            with contextlib.suppress(BlockingIOError):  # a thread was faster than its own note
                os.eventfd_read(self._wakeup)
        if timeout_seconds > 0:
            self._wait(timeout_seconds)
        if self._alone is not None:
            self._alone.on_ready(READABLE)
        else:
            for descriptor, events in self._poll(0):
                pollable = self._pollables.get(descriptor)
                if pollable is not None:
                    pollable.on_ready(events)
        while self._soon:
            self._soon.popleft()()
        # Timers come after reading: a process that was itself stopped for a while must see what the
        # broker sent meanwhile before it concludes that the broker was silent.
        timers = self._timers
        while timers and timers[0][0] <= time.monotonic():
            callback = heapq.heappop(timers)[2].callback
            if callback is not None:
                callback()

    def run_until(self, is_done: Callable[[], object], timeout_seconds: float) -> bool:
        """Serve sockets until the condition holds; whether it did in time."""
        deadline = time.monotonic() + timeout_seconds
        while not is_done():
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                return False
            self.pump(left_seconds)
        return True

    def run_down(
        self, count_left: Callable[[], int], patience_seconds: float, most_seconds: float = math.inf
    ) -> bool:
        """Serve sockets until nothing is left to wait for; whether it came so far.

        The patience is with each step: a thousand answers may take their time as long as the next
        one comes. `most_seconds` bounds the whole.
        """
        started = moved = time.monotonic()
        left = count_left()
        while left > 0:
            deadline = min(moved + patience_seconds, started + most_seconds)
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                return False
            self.pump(left_seconds)
            still_left = count_left()
            if still_left < left:
                left, moved = still_left, time.monotonic()
        return True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._timers.clear()
            self._soon.clear()
            self._epoll.close()
            os.close(self._wakeup)

    def _wait(self, timeout_seconds: float) -> None:
        if self._soon:
            return
        if self._timers:
            timeout_seconds = min(timeout_seconds, max(0, self._timers[0][0] - time.monotonic()))
        if self.descriptor <= _HIGHEST_FOR_SELECT:
            select.select([self.descriptor], [], [], timeout_seconds)
        else:
            waiter = select.poll()
            waiter.register(self.descriptor, select.POLLIN)
            waiter.poll(timeout_seconds * 1000)


ResultT = TypeVar("ResultT")


class BackgroundCalls:
    """Calls made in threads, whose results come back on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._is_closed = False
        self._returned: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """What to do with each result, and how to be rid of it."""

    def run(
        self,
        work: Callable[[], ResultT],
        then: Callable[[ResultT], None],
        discard: Callable[[ResultT], None] = lambda result: None,
    ) -> None:
        """Call `work` in a thread and `then` on the loop; `discard` where it comes too late."""

        def go() -> None:
            result = work()
            with self._lock:
                if not self._is_closed:
                    self._returned.append((lambda: then(result), lambda: discard(result)))
                    self._loop.call_from_thread(self._use_returned)
                    return
            discard(result)

        threading.Thread(target=watched(go), name="background call", daemon=True).start()

    def _use_returned(self) -> None:
        while self._returned:
            use, _ = self._returned.popleft()
            use()

    def close(self) -> None:
        """Does not wait for running calls; their results are dropped."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for _, discard in self._returned:
            discard()
        self._returned.clear()


# -- gathering -------------------------------------------------------------------------------------


GATHERED_BYTES = 128 * 1024
FLOWING_BYTES = 8 * 1024
"""A read that brings less than this is of a connection that does not flow."""
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
    """For the connections of one loop, which serves it too, by a timer that can be waited for."""

    def __init__(self) -> None:
        self._timer = PeriodicTimer()
        self._flowing: set[Gatherable] = set()
        self._just_read: set[Gatherable] = set()

    def fileno(self) -> int:
        return self._timer.descriptor

    def after_read(self, connection: Gatherable, count: int) -> None:
        """A connection has read so many bytes."""
        if count >= FLOWING_BYTES:
            if connection not in self._flowing:
                self._flowing.add(connection)
                connection.wake_at(GATHERED_BYTES)
                self._timer.start(PERIOD_SECONDS)
            self._just_read.add(connection)
        elif connection in self._flowing:
            self.forget(connection)
            connection.wake_at(1)

    def is_flowing(self, connection: Gatherable) -> bool:
        return connection in self._flowing

    def forget(self, connection: Gatherable) -> None:
        self._flowing.discard(connection)
        self._just_read.discard(connection)
        if not self._flowing:
            self._timer.stop()

    def on_ready(self, events: int) -> None:
        """Look after the connections that were not woken since the last time."""
        self._timer.clear()
        overdue = self._flowing - self._just_read
        self._just_read.clear()
        for connection in overdue:
            connection.read()

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

    def clear(self) -> None:
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
