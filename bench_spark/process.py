"""What a process of ours needs of its system: watched threads, signals, open files, backoff,
commands of the user's.

Python prints the error of a thread and goes on without the thread, so that a run would wait for
ever for what it was to do. A target that is `watched` hands its error over instead: in the driver
to the run, which ends with it; in an agent to the agent, which reports it as its failure.

Room for connections: how many files a process may have open (RLIMIT_NOFILE). Every connection is an
open file. Systems give a process few to begin with, often 1024, and let it ask for more up to a
hard limit; a caller that needs many asks here, before the first connection.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil

from bench_spark.errors import BenchError, EnvironmentNotReady

T = TypeVar("T")


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
        """The oldest that was not taken."""
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


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Do it in a daemon thread, which Python at its end does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


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


ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends the program gently beside Ctrl-C: a terminal that is closed means the same."""

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Python lets only the main thread handle signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers if not _is_nohup(number)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _is_nohup(number: signal.Signals) -> bool:
    """A run started by `nohup` is to outlive the terminal."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


MOST_FOR_A_BROKER = 65_536
"""Not simply the hard limit: Erlang's runtime makes tables as large as its limit, and on some
systems that is a billion."""

_SPARE = 64
"""For what else a process opens while it is connected."""
_UNLIMITED = 2**31


def raise_limit(wanted: int) -> int:
    """Be allowed so many open files, as far as the system lets us; how many are allowed now.

    Programs started afterwards inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _as_number(soft)
    if allowed < wanted:
        allowed = min(wanted, _as_number(hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def make_room_for(connections: int, files_each: int = 1) -> None:
    """So that none of them fails half-way for want of a descriptor."""
    files = connections * files_each
    needed = psutil.Process().num_fds() + files + _SPARE
    allowed = raise_limit(needed)
    if allowed < needed:
        raise EnvironmentNotReady(
            f"{connections} connections of one agent need {needed} open files, and this system "
            f"allows a process {allowed}: raise its hard limit (ulimit -Hn), or use more agents"
        )


def _as_number(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit


class Backoff:
    """Exponential backoff with jitter."""

    def __init__(self, first_seconds: float = 0.1, longest_seconds: float = 2.0) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        """How long to wait before the next attempt: up to twice as long as before the last one."""
        seconds = min(self._longest_seconds, self._first_seconds * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        # Processes that have lost the same peer must not come back in step.
        return seconds * random.uniform(0.5, 1.0)


# -- commands of the user's ------------------------------------------------------------------------


def output_of(
    arguments: Sequence[str],
    timeout_seconds: float,
    *,
    stderr: int = subprocess.DEVNULL,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a command to its end; returns its exit code and output. `environment` is added to ours.

    If it takes too long, or the wait is interrupted, it is killed with all that it has started. Its
    output goes into a file, not a pipe: a child that outlives the command would hold a pipe open.
    Raises OSError or subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryFile() as output:
        command = subprocess.Popen(
            list(arguments),
            cwd=directory,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            exit_code = command.wait(timeout_seconds)
        finally:
            if command.returncode is None:
                os.killpg(command.pid, signal.SIGKILL)  # a session of its own
                command.wait()
        output.seek(0)
        return exit_code, output.read().decode("utf-8", "replace")
