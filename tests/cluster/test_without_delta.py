"""A job whose session has no Delta classes, or those for another Spark, is refused at once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench_spark import jars
from bench_spark.errors import EXIT_PREFLIGHT
from benchmarks.standalone import JOB_SECONDS_AT_MOST, ROOT, SPARK_HOME, quick_environment

pytestmark = pytest.mark.deployment


def submitted(tmp_path: Path, *options: str) -> tuple[int, str]:
    """How a run ends that is submitted with the shipped settings, but without Delta's packages."""
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[3]", *options),
            *("--properties-file", "spark-defaults.conf", "--conf", "spark.jars.packages="),
            *("jobs/run_scenario.py", "steady", "--broker", "loopback"),
            *("--store", str(tmp_path / "store")),
        ],
        cwd=ROOT,
        env=quick_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_AT_MOST,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_session_without_delta_is_refused_with_the_remedy(tmp_path: Path) -> None:
    code, said = submitted(tmp_path)
    assert code == EXIT_PREFLIGHT, said
    assert "no Delta Lake" in said
    assert jars.delta_set().coordinate in said
    assert "--properties-file spark-defaults.conf" in said
    assert "Exception" not in said


def test_the_delta_of_another_spark_is_refused_with_the_one_that_fits(tmp_path: Path) -> None:
    # The classes are those that fit, so that the session starts; the file's name tells their Spark.
    elsewhere = tmp_path / "jars"
    elsewhere.mkdir()
    for jar in jars.delta_jars():
        shutil.copy(jar, elsewhere / jar.name.replace("_4.2_", "_4.1_"))
    code, said = submitted(tmp_path, "--driver-class-path", f"{elsewhere}/*")
    assert code == EXIT_PREFLIGHT, said
    (sentence,) = (line for line in said.splitlines() if "Delta Lake of Spark 4.1" in line)
    assert "delta-spark_4.1_2.13-4.4.0.jar" in sentence
    assert f"give it {jars.delta_set().coordinate} instead" in sentence
    assert "Exception" not in said
