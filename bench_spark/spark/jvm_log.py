"""Where the messages of a JVM that we have started go: to a file instead of the terminal.

Java warns of modules, Spark logs errors that it recovers from, and a query that is stopped may
leave a thousand lines of stack. None of it is about the run, but where something has failed it may
hold the cause. So it is kept in a file of the temporary directory, which is removed when this
process ends, unless somebody was told of it.

A JVM outlives the sessions in it, and there is one per process; so there is one log.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_NOISE = ("WARNING: Using incubator modules",)
"""Beginnings of lines that mean nothing."""

_path: Path | None = None
_is_named = False


def launch_jvm(conf: SparkConf) -> None:
    """Start the JVM of this process, with its output in the log; nothing if there is one."""
    global _path
    if SparkContext._gateway is not None:
        return
    descriptor, name = tempfile.mkstemp(prefix="bench-spark-jvm-", suffix=".log")
    _path = Path(name)
    # A process that was forked from this one must not remove it.
    atexit.register(_remove_unless_named, os.getpid())
    try:
        output = {"stdout": descriptor, "stderr": descriptor}
        gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
    finally:
        os.close(descriptor)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def log_path() -> Path | None:
    """The log, which from now on stays: whoever asks tells people of it. None where another program
    has started the JVM, and looks after its output."""
    global _is_named
    _is_named = _path is not None
    return _path


def log_of_failure() -> Path | None:
    """The log to be named beside an error; None where there is nothing to read in it, or where it
    was named already."""
    if _path is None or _is_named or not _has_content(_path):
        return None
    return log_path()


def log_hint() -> str:
    """Where to read more, behind the text of an error of Spark's."""
    path = log_of_failure()
    return "" if path is None else f"; Spark's log: {path}"


def _has_content(path: Path) -> bool:
    with suppress(OSError), path.open(errors="replace") as lines:
        return any(line.strip() and not line.startswith(_NOISE) for line in lines)
    return False


def _remove_unless_named(process: int) -> None:
    if _path is not None and not _is_named and os.getpid() == process:
        with suppress(OSError):
            _path.unlink()
