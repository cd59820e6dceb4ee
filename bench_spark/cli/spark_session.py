"""The Spark session of a command: announced, started, and stopped whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench_spark.errors import BenchError, EnvironmentNotReady
from bench_spark.report.live import Steps


@contextmanager
def spark_session(master: str | None, display: Steps) -> Iterator[Any]:
    """A SparkSession (whose type only the spark room may name)."""
    display.step(f"starting Spark on {master}" if master else "starting Spark")
    from bench_spark.spark.session import build_session

    try:
        spark = build_session(master, "bench-spark")
    except BenchError:
        raise
    except Exception as error:  # Java's and py4j's errors have no common type.
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise EnvironmentNotReady(f"Spark did not start: {what[:300]}") from error
    try:
        yield spark
    finally:
        spark.stop()
