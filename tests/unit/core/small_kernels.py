"""Kernels of tests: one that calls another, with a constant of the module."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.core.kernels import kernel, warm_up

STEP = 3


@kernel
def stepped(value: int) -> int:
    """Add the module's constant."""
    return value + STEP


@kernel
def total(data: npt.NDArray[np.uint8], end: int) -> int:
    """Sum of the first bytes, each stepped."""
    found = 0
    for i in range(end):
        found += stepped(np.int64(data[i]))
    return found


@warm_up
def _compile() -> None:
    total(np.zeros(1, np.uint8), 1)
