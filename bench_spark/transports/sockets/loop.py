"""One epoll over the sockets of all lanes, timers, and blocking calls made in threads.

Nothing here knows a protocol. `pump` is the only place where a lane ever waits, and it waits in
`select` on the epoll's own descriptor: epoll alone rounds its timeout up to a millisecond, and
`select` alone fails from descriptor 1024 on. The epoll is therefore made before any socket, so that
its own number is small.

Looking up a name, connecting and encrypting cannot be had without waiting, and the one thread that
carries the load must not wait: `BackgroundCalls` makes them, and their results come back on the
loop.
"""

from __future__ import annotations

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

from bench_spark.process import watched

READABLE = select.EPOLLIN | select.EPOLLRDHUP
BROKEN = select.EPOLLERR | select.EPOLLHUP
"""Told whether asked for or not."""
_HIGHEST_FOR_SELECT = 1023


class Pollable(Protocol):
    def fileno(self) -> int: ...

    def on_ready(self, events: int) -> None: ...


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
        self._members: dict[int, Pollable] = {}
        self._watched: dict[int, int] = {}
        """By member's descriptor: the events that are waited for."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], object]] = deque()
        self._is_awake = False

    @property
    def descriptor(self) -> int:
        """Readable when a socket needs attention, or when the bell was rung."""
        return self._epoll.fileno()

    @property
    def is_closed(self) -> bool:
        return self._epoll.closed

    def add(self, member: Pollable) -> None:
        self._members[member.fileno()] = member
        self._watched[member.fileno()] = READABLE
        self._epoll.register(member.fileno(), READABLE)

    def remove(self, member: Pollable) -> None:
        if self._members.pop(member.fileno(), None) is not None:
            self._epoll.unregister(member.fileno())

    def watch_writing(self, member: Pollable, wanted: bool) -> None:
        self._watch(member, select.EPOLLOUT, wanted)

    def watch_reading(self, member: Pollable, wanted: bool) -> None:
        self._watch(member, READABLE, wanted)

    def _watch(self, member: Pollable, events: int, wanted: bool) -> None:
        descriptor = member.fileno()
        if descriptor in self._members:
            others = self._watched[descriptor] & ~events
            self._watched[descriptor] = others | events if wanted else others
            self._epoll.modify(descriptor, self._watched[descriptor])

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it at the end of the present or the next turn."""
        self._soon.append(callback)

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_seconds, next(self._order), timer))
        return timer

    @property
    def has_timers(self) -> bool:
        """Whether anything is still due later."""
        return any(timer.callback is not None for _, _, timer in self._timers)

    def wake(self) -> None:
        """Make the descriptor readable: something decoded earlier waits to be fetched."""
        if not self._is_awake:
            os.eventfd_write(self._wakeup, 1)
            self._is_awake = True

    def clear_wakeup(self) -> None:
        if self._is_awake:
            os.eventfd_read(self._wakeup)
            self._is_awake = False

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Wait at most that long for a socket, then serve every ready one once."""
        if timeout_seconds > 0:
            self._wait(timeout_seconds)
        ready = self._epoll.poll(0)
        for descriptor, events in ready:
            member = self._members.get(descriptor)
            if member is not None:
                member.on_ready(events)
        while self._soon:
            self._soon.popleft()()
        # Timers come after reading: a process that was itself stopped for a while must see what the
        # broker sent meanwhile before it concludes that the broker was silent.
        self._run_timers()

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

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()


ResultT = TypeVar("ResultT")


class BackgroundCalls:
    """A member of the loop, by a descriptor that is readable when somebody has come back."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._returned: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """What to do with each result, and how to be rid of it."""
        loop.add(self)

    def fileno(self) -> int:
        return self._wakeup

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
                    os.eventfd_write(self._wakeup, 1)
                    return
            discard(result)

        threading.Thread(target=watched(go), name="background call", daemon=True).start()

    def on_ready(self, events: int) -> None:
        os.eventfd_read(self._wakeup)
        while self._returned:
            use, _ = self._returned.popleft()
            use()

    def close(self) -> None:
        """Nobody is waited for: who is still out discards what he brings."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for _, discard in self._returned:
            discard()
        self._returned.clear()
        self._loop.remove(self)
        os.close(self._wakeup)
