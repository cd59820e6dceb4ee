"""Whole runs on the Spark session that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from patience import patient_agents, punctual_agents  # noqa: F401
from whole_runs import CarryOut, carry_out_on


@pytest.fixture
def carry_out(spark: Any, tmp_path: Path) -> CarryOut:
    return carry_out_on(spark, tmp_path)
