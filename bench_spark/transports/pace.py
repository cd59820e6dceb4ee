"""How fast connections are opened: thousands at once are an attack on most brokers."""

from __future__ import annotations

import time
from collections.abc import Callable

OPENED_TOGETHER = 32
"""Connections that shake hands side by side: enough to hide round trips, below any accept queue."""

_BURST_SECONDS = 0.05
"""How much of the rate is opened at once."""


class OpeningPace:
    """Lets connections be opened in groups: as fast as they open, or so many per second."""

    def __init__(
        self,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._next = 0.0

    def take(self, wanted: int) -> int:
        """How many of those wanted may be opened together now; waits until there is one."""
        if self._per_second is None:
            return min(wanted, OPENED_TOGETHER)
        together = max(1, min(wanted, OPENED_TOGETHER, int(self._per_second * _BURST_SECONDS)))
        begin = max(self._clock(), self._next)
        if begin > self._clock():
            self._sleep(begin - self._clock())
        self._next = begin + together / self._per_second
        return together
