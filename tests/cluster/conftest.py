"""The archive that bare workers get their Python from, packed once for all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.standalone import ROOT


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make archive FOR=executors` leaves in dist/."""
    return packed(tmp_path_factory, "bench-spark-executors.tar.gz", "--for-executors")


@pytest.fixture(scope="session")
def whole_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make archive` leaves in dist/: enough for a driver in the cluster."""
    return packed(tmp_path_factory, "bench-spark-env.tar.gz")


def packed(tmp_path_factory: pytest.TempPathFactory, name: str, *options: str) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    archive = directory / name
    pack = [sys.executable, str(ROOT / "tools" / "pack_environment.py"), str(wheel)]
    subprocess.run(
        [*pack, "--out", str(archive), *options], cwd=ROOT, check=True, capture_output=True
    )
    return archive
