"""Suites made from files, as users make them."""

from __future__ import annotations

from pathlib import Path

from bench_spark.config.suite import Suite
from bench_spark.config.suite_loader import load_suite

GRID = """
base: {phases: {measure_seconds: 1}}
axes:
  load.rate_per_second: [100, 200]
  message.bytes: [100, 1000]
"""


def suite_of(tmp_path: Path, text: str = GRID) -> Suite:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    return load_suite(str(path))
