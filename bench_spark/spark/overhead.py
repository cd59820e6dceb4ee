"""What Spark itself costs while a load runs: the JVM and this driver, in cores.

On one machine it competes with the broker and the agents, so the audit says how much it was.
"""

from __future__ import annotations

import time

import psutil


class SparkOverhead:
    """CPU of this process and the JVM it started, between `begin` and `end`.

    Agents and other Python workers are not counted: their CPU is theirs.
    """

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self.cores: float | None = None

    def begin(self) -> None:
        """The first call counts; later ones change nothing."""
        if self._began is None:
            self._began = (time.monotonic(), _cpu_seconds())

    def end(self) -> None:
        """The first call after `begin` counts; later ones change nothing."""
        if self._began is None or self.cores is not None:
            return
        passed = time.monotonic() - self._began[0]
        if passed > 0:
            self.cores = max(0.0, _cpu_seconds() - self._began[1]) / passed


def _cpu_seconds() -> float:
    driver = psutil.Process()
    total = 0.0
    for process in (driver, *driver.children()):
        try:
            if process.pid == driver.pid or "java" in process.name():
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue  # It has ended meanwhile.
    return total
