"""The Spark session of a command: on which master, started, and ended whatever happens.

Imports no pyspark, which takes long to load: a command that is refused never loads it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from bench_spark.config.problems import plural, shown_value
from bench_spark.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    BenchError,
    ConfigurationError,
    EnvironmentNotReady,
    StoreNotReady,
    TooFewSlots,
)
from bench_spark.java import is_submitted
from bench_spark.plan import SLOTS_FOR_STREAMING, Plan
from bench_spark.process import ENDING_SIGNALS, handled

if TYPE_CHECKING:
    from bench_spark.report.live import Steps

_LOCAL = re.compile(r"local(?:\[\s*(?P<slots>\*|[0-9]+)\s*(?:,\s*[0-9]+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]")
_ELSEWHERE = re.compile(r"(spark|k8s)://\S+|yarn")
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


CONNECT = "sc://"
NO_CONNECT = (
    "Spark Connect cannot carry a run, which places and watches its agents through the JVM of the "
    "driver: use spark-submit, or a cluster with dedicated access"
)


def is_local(master: str) -> bool:
    return master.startswith("local")


def settled_master() -> str | None:
    """The master that spark-submit, or a session of this process, has chosen already. PySpark,
    which takes long to load, is asked only if one of them can have."""
    if not is_submitted() and "pyspark" not in sys.modules:
        return None
    from bench_spark.spark.session import chosen_master

    return chosen_master()


def runs_agents_here(asked_for: str | None) -> bool:
    """Whether agents run on this machine. The master that was asked for counts where neither
    spark-submit nor a session of this process has chosen another."""
    return is_local(settled_master() or asked_for or "local")


def slots_of(master: str | None) -> int | None:
    """How many tasks this master runs at once; None where only the cluster itself knows.

    No master means this machine, whose slots are made to measure: with `agents: auto` one agent
    per core.
    """
    cores = os.cpu_count() or 1
    if master is None:
        return cores + SLOTS_FOR_STREAMING
    if found := _LOCAL.fullmatch(master):
        slots = found["slots"]
        return cores if slots == "*" else int(slots or 1)
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * int(found[2])
    if _ELSEWHERE.fullmatch(master):
        return None
    if master.startswith(CONNECT):
        raise EnvironmentNotReady(NO_CONNECT)
    raise ConfigurationError(
        f"--master: {shown_value(master)} is no Spark master; allowed: local[N], "
        "spark://HOST:PORT, yarn, k8s://URL"
    )


def refuse_too_few_slots(plan: Plan, master: str) -> None:
    slots = slots_of(master)
    if slots is not None and slots < plan.slots_needed:
        raise TooFewSlots(
            f"{plural(len(plan.assignments), 'agent')} and the rolling metrics need "
            f"{plan.slots_needed} slots, but {master} offers {slots}: "
            f"use local[{plan.slots_needed}] or fewer agents"
        )


def refuse_unshared_store(store: str, master: str) -> None:
    """A relative path names another directory on every machine."""
    if not is_local(master) and not _URI.match(store) and not Path(store).is_absolute():
        raise StoreNotReady(
            f"store {store}: with master {master} the store must be a URI or an absolute path that "
            "every machine shares; give --store or set BENCH_SPARK_STORE"
        )


_settings: dict[str, dict[str, str]] = {}
"""Of the one JVM of this process, as each option of this command has them."""


def given_to_spark(
    name: str, settings_of: Callable[[list[str]], dict[str, str]]
) -> Callable[[list[str] | None], list[str] | None]:
    """The callback of an option whose values are settings of Spark's."""

    def give(values: list[str] | None) -> list[str] | None:
        _settings.pop(name, None)
        if values:
            if is_submitted():
                raise ConfigurationError(f"{name}: spark-submit has started Spark; give it there")
            _settings[name] = settings_of(values)
        return values

    return give


def settings_in(texts: list[str]) -> dict[str, str]:
    """Settings of Spark's as `--conf` has them."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark.") or key == "spark.master":
            raise ConfigurationError(
                f"--conf: {shown_value(text)} is not KEY=VALUE with a setting of Spark's "
                "(spark.KEY); the master is given by --master"
            )
        found[key] = value
    return found


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
        given = {key: text for one in _settings.values() for key, text in one.items()}
        return build_session(master, "bench-spark", given, slots)
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
