"""The Spark session of a command: announced, started, and ended whatever happens."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from bench_spark.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    BenchError,
    ConfigurationError,
    EnvironmentNotReady,
)
from bench_spark.java import is_submitted
from bench_spark.process import ENDING_SIGNALS, handled

if TYPE_CHECKING:
    from bench_spark.report.live import Steps

_settings: dict[str, str] = {}
"""Of the one JVM of this process, as this command's options have them."""


def given_to_spark(setting: str) -> Callable[[list[str] | None], list[str] | None]:
    """The callback of an option whose values, behind commas, are a setting of Spark's."""

    def give(values: list[str] | None) -> list[str] | None:
        _settings.pop(setting, None)
        if values:
            if is_submitted():
                raise ConfigurationError(
                    "--packages, --jars: spark-submit has made the class path; give them to it"
                )
            _settings[setting] = ",".join(values)
        return values

    return give


@contextmanager
def spark_session(master: str | None, display: Steps, slots: int = 0) -> Iterator[Any]:
    """A SparkSession (whose type only the spark room may name), with so many slots where it can
    ask for them.

    Where this process has one already, another one beside it, on the same application; theirs is
    left as it is to whoever made it.
    """
    from bench_spark.spark.session import has_session, session_beside

    if has_session():
        with _py4j_quiet(), session_beside() as spark, _ended_by_signals(()):
            yield spark
        return
    display.step(f"starting Spark on {master}" if master else "starting Spark")
    _hush_py4j()
    with _started(master, display, slots) as spark:
        yield spark


@contextmanager
def _started(master: str | None, display: Steps, slots: int) -> Iterator[Any]:
    from bench_spark.spark.session import log_of_failure, log_path

    before = _children()
    # PySpark puts a handler of its own in place of this one, and would leave it there.
    with handled(signal.default_int_handler, signal.SIGINT):
        try:
            spark = _build(master, slots)
        except BaseException:
            # PySpark forgets a JVM whose start was interrupted, and that one would wait for its
            # driver for ever.
            for child in _children() - before:
                # Until it has become the JVM it is a shell, with processes of its own.
                _kill([child, *_descendants(child)])
            raise
        jvms = _children() - before
        if display.shows_details and (log := log_path()) is not None:
            display.detail(f"Spark's log: {log}")
        with _ended_by_signals(jvms):
            try:
                yield spark
            except Exception:
                if (log := log_of_failure()) is not None:
                    display.step(f"Spark's log: {log}")
                raise
            finally:
                _stop(spark)


def _stop(spark: Any) -> None:
    from bench_spark.spark.session import JVM_GONE

    # A JVM that has ended is stopped well enough; PySpark would warn of it, or raise.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning), suppress(*JVM_GONE):
        spark.stop()


def _build(master: str | None, slots: int) -> Any:
    from bench_spark.spark.session import build_session, log_hint

    try:
        return build_session(master, "bench-spark", _settings, slots)
    except BenchError:
        raise
    except Exception as error:  # Java's and py4j's errors have no common type.
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise EnvironmentNotReady(f"Spark did not start: {what[:300]}{log_hint()}") from error


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

    with handled(end, signal.SIGINT, *ENDING_SIGNALS):
        try:
            yield
        except BaseException:
            if exit_code is not None:
                raise SystemExit(exit_code) from None
            raise


@contextmanager
def _py4j_quiet() -> Iterator[None]:
    level = logging.getLogger("py4j").level
    _hush_py4j()
    try:
        yield
    finally:
        logging.getLogger("py4j").setLevel(level)
        logging.getLogger().removeFilter(_is_not_of_py4j)


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


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
