"""The Spark session of a command: announced, started, and ended whatever happens."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import psutil

from bench_spark.cli.signals import handled
from bench_spark.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, BenchError, EnvironmentNotReady
from bench_spark.report.live import Steps


@contextmanager
def spark_session(master: str | None, display: Steps) -> Iterator[Any]:
    """A SparkSession (whose type only the spark room may name).

    One that this process had already is used as it is, and left to whoever made it.
    """
    display.step(f"starting Spark on {master}" if master else "starting Spark")
    from bench_spark.spark.session import has_session, is_submitted

    _hush_py4j()
    is_ours = is_submitted() or not has_session()
    before = _children()
    # PySpark puts a handler of its own in place of this one, and would leave it there.
    with handled(signal.default_int_handler, signal.SIGINT):
        try:
            spark = _build(master)
        except BaseException:
            # PySpark forgets a JVM whose start was interrupted, and that one would wait for its
            # driver for ever.
            _kill(_children() - before)
            raise
        jvms = _children() - before
        with _ended_by_signals(jvms):
            try:
                yield spark
            finally:
                if is_ours:
                    _stop(spark)


def _stop(spark: Any) -> None:
    # A JVM that has ended is stopped well enough; PySpark would warn of it.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        spark.stop()


def _build(master: str | None) -> Any:
    from bench_spark.spark.session import build_session

    try:
        return build_session(master, "bench-spark")
    except BenchError:
        raise
    except Exception as error:  # Java's and py4j's errors have no common type.
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise EnvironmentNotReady(f"Spark did not start: {what[:300]}") from error


@contextmanager
def _ended_by_signals(jvms: Iterable[psutil.Process]) -> Iterator[None]:
    """End the JVM first, then the program, when a signal comes while no load is running.

    A call into the JVM that is interrupted leaves its answer on the connection, where the next call
    (even the one that stops Spark) would take it for its own or wait for ever. Without the JVM
    every call fails at once; what is raised on the way out is then no longer of interest. While a
    load runs the engine has its own, gentler handlers.
    """
    exit_code: int | None = None

    def end(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal exit_code
        exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
        _kill(jvms)
        raise SystemExit(exit_code)

    with handled(end, signal.SIGINT, signal.SIGTERM):
        try:
            yield
        except BaseException:
            if exit_code is not None:
                raise SystemExit(exit_code) from None
            raise


def _hush_py4j() -> None:
    """What goes wrong on a connection py4j raises, and also logs with a traceback: once is enough.

    Some of it is logged under its own name, some under nobody's.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children())


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
