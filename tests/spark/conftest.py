"""One Spark session for all of tests/spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench_spark.spark.session import build_session, local_session_master
from bench_spark.store import Store


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session(local_session_master(agents=2), "bench-spark tests")
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()
