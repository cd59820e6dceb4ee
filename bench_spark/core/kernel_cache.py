"""Kernels compiled before they are needed, and not while a load runs.

`python -m bench_spark.core.kernel_cache` compiles all of them, as `make setup` does: into the cache
of this machine, or, if the package has a directory `compiled_kernels`, into that, for any CPU of
this architecture, as packed environments have it.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_spark.cache import cache_directory
from bench_spark.core import kernels
from bench_spark.core.kernels import PACKAGE, kernel_sources, kernels_directory
from bench_spark.errors import BenchError

KEPT_DIRECTORIES = 3

_warming = threading.Lock()


def warm_up() -> None:
    """Load the kernels of all modules that are loaded, or compile them where there is no file."""
    with _warming:
        for function in kernels.WARM_UPS:
            function()


SERVED_SECONDS = 0.2
"""How often what has to go on is done while kernels are compiled."""


class WarmUp:
    """Warms up in a thread of its own, while connections are opened."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kernels", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            warm_up()
        except BaseException as error:
            self._error = error

    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Return when kernels are ready. Raises what was raised meanwhile.

        `meanwhile` is called again and again: compiling may take longer than a broker waits for a
        sign of life.
        """
        while self._thread.is_alive():
            self._thread.join(SERVED_SECONDS)
            meanwhile()
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def only_compiled() -> Iterator[None]:
    """Inside, a kernel that has been called takes no other types than before: compiling it for them
    would stop the load for half a second, so that is an error."""
    warm = [kernel for kernel in kernels.KERNELS if kernel.signatures]
    for kernel in warm:
        kernel.disable_compile()
    try:
        yield
    finally:
        for kernel in warm:
            kernel.disable_compile(False)


def load_all_modules() -> list[str]:
    """Import every module with kernels; returns the reasons of those that cannot be used here."""
    problems = []
    for path in kernel_sources():
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        try:
            importlib.import_module(name)
        except (ImportError, OSError, BenchError) as error:
            problems.append(f"{name}: {error}")
    return problems


def compiled_count() -> int:
    """How many compiled kernels lie in this process's directory."""
    with contextlib.suppress(OSError):
        return sum(1 for _ in kernels_directory().glob("*.nbi"))
    return 0


def forget_old_directories(root: Path) -> None:
    """Keep the newest: an older checkout may use another than this one."""

    def changed(path: Path) -> float:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    with contextlib.suppress(OSError):
        found = sorted((path for path in root.iterdir() if path.is_dir()), key=changed)
        for path in found[:-KEPT_DIRECTORIES]:
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    before, began = compiled_count(), time.monotonic()
    for problem in load_all_modules():
        sys.stderr.write(f"kernels: {problem}\n")
    warm_up()
    made = compiled_count() - before
    if made:
        seconds = time.monotonic() - began
        sys.stderr.write(f"kernels: {made} compiled in {seconds:.0f} s: {kernels_directory()}\n")
    forget_old_directories(cache_directory() / "kernels")


if __name__ == "__main__":
    main()
