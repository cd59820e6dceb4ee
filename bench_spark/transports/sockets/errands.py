"""Blocking calls made in threads of their own; what they bring comes back on the loop.

Looking up a name, connecting and encrypting cannot be had without waiting, and the one thread that
carries the load must not wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from bench_spark.process import watched
from bench_spark.transports.sockets.loop import Loop

ResultT = TypeVar("ResultT")


class Errands:
    """A member of the loop, by a descriptor that is readable when somebody has come back."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._returned: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """What to do with each result, and how to be rid of it."""
        loop.add(self)

    def fileno(self) -> int:
        return self._bell

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
                    os.eventfd_write(self._bell, 1)
                    return
            discard(result)

        threading.Thread(target=watched(go), name="errand", daemon=True).start()

    def on_ready(self, events: int) -> None:
        os.eventfd_read(self._bell)
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
        os.close(self._bell)
