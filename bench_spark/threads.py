"""Threads whose unexpected errors reach whoever carries out the run.

Python prints the error of a thread and goes on without the thread, so that a run would wait for
ever for what it was to do. A target that is `watched` hands its error over instead: in the driver
to the run, which ends with it; in an agent to the agent, which reports it as its failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from bench_spark.errors import BenchError


class ThreadErrors:
    """The errors of watched threads, in the order they came; used from any thread."""

    def __init__(self) -> None:
        self._errors: list[BenchError] = []
        self._lock = threading.Lock()
        self.on_error: Callable[[BenchError], None] = lambda error: None
        """Called with each error, in the thread that it ended."""

    def add(self, error: BenchError) -> None:
        with self._lock:
            self._errors.append(error)
        self.on_error(error)

    def take(self) -> BenchError | None:
        """The oldest that nobody has taken."""
        with self._lock:
            return self._errors.pop(0) if self._errors else None


_of_this_process = ThreadErrors()
_current: ContextVar[ThreadErrors | None] = ContextVar("thread_errors", default=None)


def thread_errors() -> ThreadErrors:
    """Where errors of threads go that are started here: the process's, unless set apart."""
    return _current.get() or _of_this_process


@contextmanager
def own_thread_errors() -> Iterator[ThreadErrors]:
    """Set errors of threads that are started in here apart from all others of the process (agents
    of a test share one)."""
    own = ThreadErrors()
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)


def watched(target: Callable[..., Any]) -> Callable[..., None]:
    """The target of a thread. An error goes where errors go in the place this was called."""
    errors, context = thread_errors(), copy_context()

    def run(*arguments: Any) -> None:
        try:
            context.run(target, *arguments)
        except BenchError as error:
            errors.add(error)
        except Exception as error:
            errors.add(unexpected(error, f"thread {threading.current_thread().name!r}"))

    return run


def unexpected(error: BaseException, where: str = "") -> BenchError:
    """A bug of ours by type and place; its text is not shown, as it may hold anything."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}" if frame else "unknown place"
    found = BenchError(
        f"unexpected {type(error).__name__} in {place}" + (f" ({where})" if where else "")
    )
    found.__cause__ = error
    return found
