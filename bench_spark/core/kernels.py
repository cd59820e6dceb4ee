"""The decorator of compiled inner loops, and numba's cache over them.

A kernel is a plain loop over bytes and integers that numba compiles. It takes arrays and integers,
and returns integers: among them a stop reason where it may stop early. Anything rare goes back to
Python. The same function runs uncompiled with NUMBA_DISABLE_JIT=1, where numpy's integers wrap: so
every byte is read as `np.int64(data[i])`.

Each array of a call costs: numba takes 30 ns to pass an array of integers, and 85 ns to pass one of
a structured type. So kernels that are called for every read or write take state and rows as plain
arrays of 64-bit words, whose places have names (`state[_CHANNEL]`; rows by `put_received` and
`put_outcome` of `transports/sockets/buffers.py`), or look at them as records whose fields have
names (`words.view(PARTY_DTYPE)`, which costs a kernel nothing). Structured arrays are for kernels
that are called once for many rows.

numba compiles a kernel for the types of its arguments when it is first called with them, which
takes from a tenth of a second to seconds. So a module with kernels has a function that calls each
of them once, with arrays of the types that a run uses:

    @warm_up
    def _compile() -> None:
        decode(np.zeros(8, np.uint8), 0, np.zeros(4, np.int64), np.zeros((1, 8), np.int64))

numba's own cache finds a kernel by its file: code that has changed in another file, or a constant
imported from there, is not noticed. It does not tell code with bounds checks from code without, and
raises on directories that it cannot write and on damaged files. So kernels have a directory that is
named by all that they are compiled from, and whatever is wrong with it costs a compilation.
`kernel_cache` fills it before a load starts, and forbids compiling while the load runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import platform
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import njit
from numba.core import caching, config

from bench_spark.cache import cache_directory

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "compiled_kernels"
"""In a packed environment: kernels for any CPU of this architecture."""
ROOMS = ("core", "agent", "transports")
"""Packages that may have kernels."""
GENERIC_CPU = "generic"

_MARKS = (b"\n@kernel", b"\n@inlined", b"\n@warm_up")
_DIGEST_BYTES = 32
_CONSTANTS = (int, float, str, bytes, tuple, np.generic, np.dtype)


if config.CPU_NAME is None and SHIPPED.is_dir():
    # Read by numba when it compiles its first function, which is after this.
    config.CPU_NAME, config.CPU_FEATURES = GENERIC_CPU, ""


def kernel_sources() -> list[Path]:
    """The files that define kernels, or call them to warm them up."""
    found = (path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))
    return sorted(path for path in found if _is_marked(path.read_bytes()))


def _is_marked(source: bytes) -> bool:
    return any(mark in source for mark in _MARKS)


def kernels_root() -> Path:
    """$NUMBA_CACHE_DIR, else what was shipped with the package, else the user's cache."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    return SHIPPED if SHIPPED.is_dir() else cache_directory() / "kernels"


@cache
def kernels_directory() -> Path:
    """Where this process keeps its compiled kernels; not created here."""
    of_modules = hashlib.sha256()
    for path in kernel_sources():
        of_modules.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
        of_modules.update(path.read_bytes())
    return kernels_root() / directory_name(of_modules.digest(), bool(config.BOUNDSCHECK))


def directory_name(sources: bytes, has_bounds_checks: bool) -> str:
    """The name that tells apart whatever compiles to different code."""
    cpu = config.CPU_NAME or binding.get_host_cpu_name()
    parts = (
        *(sources.hex(), numba.__version__, llvmlite.__version__, np.__version__),
        *(platform.python_version(), platform.machine(), cpu, str(has_bounds_checks)),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


class _Locator(caching._CacheLocator):
    """Names the directory, and the files of a kernel in it by module and line."""

    def __init__(self, function: FunctionType, file: str) -> None:
        self._module, self._line = function.__module__, function.__code__.co_firstlineno
        self._py_file = file

    def get_cache_path(self) -> str:
        return str(kernels_directory())

    def get_source_stamp(self) -> str:
        return kernels_directory().name

    def get_disambiguator(self) -> str:
        return f"{self._module}-{self._line}"

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> _Locator:
        return cls(function, file)


class _Format(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012  # as in numba's class


class _Files(caching.IndexDataCacheFile):
    """Checks what it reads: other bytes than were written could crash the process when they run.

    The key is stored with the code: two processes that add an overload at the same moment may give
    theirs the same file name.
    """

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        found = super().load(key)
        return found[1] if found is not None and found[0] == key else None

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            raise pickle.UnpicklingError(f"{name} is damaged")
        return pickle.loads(content)  # noqa: S301  # a file of ours, as its digest says


class KernelFiles(caching.FunctionCache):
    """The compiled forms of one kernel. A directory that is missing, damaged or read-only, or that
    another process is writing to, means that the kernel is compiled."""

    _impl_class = _Format

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # damaged pickles raise whatever they like
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            super().save_overload(signature, compiled)
        except Exception:
            # The index may be damaged: without it, this kernel is stored anew.
            with contextlib.suppress(Exception):
                self.flush()
                super().save_overload(signature, compiled)

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        """numba's key, and the values of global names that are compiled into the code."""
        values = "\n".join(sorted(_constants_of(self._py_func, set())))
        return (*super()._index_key(signature, codegen), values)


def _constants_of(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Constants that a kernel and the kernels it calls use from their modules."""
    if function in seen:
        return
    seen.add(function)
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, _CONSTANTS):
            yield f"{function.__module__}.{name} = {value!r}"
        elif isinstance(value, np.ndarray):
            yield f"{function.__module__}.{name} = {hashlib.sha256(value.tobytes()).hexdigest()}"
        elif isinstance(called := getattr(value, "py_func", None), FunctionType):
            yield from _constants_of(called, seen)


def _names_in(code: CodeType) -> set[str]:
    nested = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_names_in, nested))


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
