"""The decorator of compiled inner loops.

A kernel is a plain loop over bytes and integers that numba compiles. It takes arrays and integers,
and returns integers: among them a stop reason where it may stop early. Anything rare goes back to
Python. The same function runs uncompiled with NUMBA_DISABLE_JIT=1, where numpy's integers wrap: so
every byte is read as `np.int64(data[i])`.

Each array of a call costs: numba takes 30 ns to pass an array of integers, and 85 ns to pass one of
a structured type. So kernels that are called for every read or write take state and rows as plain
arrays of 64-bit words, whose places have names (`state[_CHANNEL]`; rows by `put_received` and
`put_outcome` of `transports/sockets/buffers.py`). Structured arrays, whose fields have names by
themselves, are for kernels that are called once for many rows, as those of the recorder are.

numba compiles a kernel for the types of its arguments when it is first called with them, which
takes from a tenth of a second to seconds. So a module with kernels has a function that calls each
of them once, with arrays of the types that a run uses:

    @warm_up
    def _compile() -> None:
        decode(np.zeros(8, np.uint8), 0, np.zeros(4, np.int64), np.zeros((1, 8), np.int64))

`kernel_cache` keeps what was compiled on disk, calls these functions before a load starts, and
forbids compiling while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import config

from bench_spark.core.kernel_files import KernelFiles

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

KERNELS: list[Any] = []
"""The kernels of all modules that are loaded, as numba's dispatchers; empty if nothing compiles."""
WARM_UPS: list[Callable[[], None]] = []
"""Functions of loaded modules that call each of their kernels once."""


def kernel(function: FunctionT) -> FunctionT:
    """Compile a function for the types that it is called with.

    It keeps the interpreter's lock: most calls take less than a microsecond, in which to let go of
    it takes 45 ns, and to get it back from another thread may take 5 ms.
    """
    return _compiled(function, nogil=False)


def kernel_without_lock(function: FunctionT) -> FunctionT:
    """The same, for calls that are long, and made in threads of their own."""
    return _compiled(function, nogil=True)


def inlined(function: FunctionT) -> FunctionT:
    """A part of kernels that is compiled into each of them: a call would pass on every array in
    eight words, which costs more than what most such parts do."""
    return _compiled(function, nogil=False, forceinline=True)


def _compiled(function: FunctionT, **options: bool) -> FunctionT:
    compiled = njit(**options)(function)
    if are_compiled():
        compiled._cache = KernelFiles(function)
        KERNELS.append(compiled)
    return cast(FunctionT, compiled)


def warm_up(function: Callable[[], None]) -> Callable[[], None]:
    """Register the function of a module that calls each of its kernels once."""
    WARM_UPS.append(function)
    return function


def are_compiled() -> bool:
    """Whether kernels are compiled: NUMBA_DISABLE_JIT=1 turns that off, to debug them."""
    return not config.DISABLE_JIT
