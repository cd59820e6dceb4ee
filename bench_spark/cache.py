"""Where files live between two commands: jars, the class-data archive, running brokers, tables."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_STORE = "bench-store"
STORE_VARIABLE = "BENCH_SPARK_STORE"


def default_store() -> str:
    """The store of a command, or a call, that names none."""
    return os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def cache_directory() -> Path:
    """$BENCH_SPARK_CACHE, else the user's cache directory. Not created here."""
    if own := os.environ.get("BENCH_SPARK_CACHE"):
        return Path(own).expanduser().absolute()
    # The XDG rule: a relative path in the variable is to be ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    if not shared.is_absolute():
        shared = Path("~/.cache").expanduser()
    return shared / "bench-spark"
