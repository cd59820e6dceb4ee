"""Suite files made of a text, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.config.suite import Suite
from bench_spark.config.suite_loader import load_suite
from bench_spark.errors import ConfigurationError


def suite_of(tmp_path: Path, text: str, quick: bool = False, *overrides: str) -> Suite:
    return load_suite(written(tmp_path, text), quick, overrides)


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "x.yaml"
    file.write_text(text if "base:" in text else f"base: steady\n{text}")
    return str(file)


def errors_in(tmp_path: Path, text: str, quick: bool = False, *overrides: str) -> list[str]:
    """What is said about a suite file of this text, without the file's name."""
    with pytest.raises(ConfigurationError) as caught:
        suite_of(tmp_path, text, quick, *overrides)
    return [line.removeprefix(f"{tmp_path}/x.yaml: ") for line in str(caught.value).splitlines()]
