"""The decorator of compiled inner loops.

A kernel is a plain loop over bytes and integers that numba compiles. It takes structured arrays and
integers, at most five arrays, and returns integers: among them a stop reason where it may stop
early. Anything rare goes back to Python. The same function runs uncompiled with
NUMBA_DISABLE_JIT=1, where numpy's integers wrap: so every byte is read as `np.int64(data[i])`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def kernel(function: FunctionT) -> FunctionT:
    """Compile a function for the types that it is called with."""
    return cast(FunctionT, njit(cache=True, nogil=True)(function))
