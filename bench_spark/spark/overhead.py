"""What Spark itself costs while a load runs: the JVM and this driver, in cores.

On one machine it competes with the broker and the agents, so the audit says how much it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
from pyspark.sql import SparkSession


class SparkOverhead:
    """CPU of this process and the session's JVM, between `begin` and `end`.

    Agents and other Python workers are not counted, nor other Java programs that this process has
    started, such as embedded brokers: their CPU is theirs.
    """

    def __init__(self, jvm_pid: int) -> None:
        self._pids = (os.getpid(), jvm_pid)
        self._began: tuple[float, float] | None = None
        self.cores: float | None = None

    def begin(self) -> None:
        """The first call counts; later ones change nothing."""
        if self._began is None:
            self._began = (time.monotonic(), _cpu_seconds(self._pids))

    def end(self) -> None:
        """The first call after `begin` counts; later ones change nothing."""
        if self._began is None or self.cores is not None:
            return
        passed = time.monotonic() - self._began[0]
        if passed > 0:
            self.cores = max(0.0, _cpu_seconds(self._pids) - self._began[1]) / passed


def jvm_pid(spark: SparkSession) -> int:
    """The process of the session's JVM: a child of this one, or with spark-submit its parent."""
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _cpu_seconds(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue  # It has ended meanwhile.
        total += times.user + times.system
    return total
