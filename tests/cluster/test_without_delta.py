"""A job whose session has no Delta classes, or those for another Spark, or another Spark than its
Python, is refused at once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from refused import check_refused

from bench_spark import jars
from benchmarks.standalone import JOB_SECONDS_AT_MOST, ROOT, SPARK_HOME, quick_environment

pytestmark = pytest.mark.deployment


OTHER_PYSPARK = """
import runpy, sys

import pyspark

pyspark.__version__ = "4.1.4"
sys.argv[0] = "jobs/run_scenario.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def submitted(
    tmp_path: Path, *options: str, program: str | Path = "jobs/run_scenario.py"
) -> tuple[int, str]:
    """How a run ends that is submitted with the shipped settings, but without Delta's packages."""
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[3]", *options),
            *("--properties-file", "spark-defaults.conf", "--conf", "spark.jars.packages="),
            *(str(program), "steady", "--broker", "loopback"),
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
    remedy = "--properties-file spark-defaults.conf", jars.delta_set().coordinate
    check_refused(code, said, "no Delta Lake", *remedy, store=str(tmp_path / "store"))


def test_the_delta_of_another_spark_is_refused_with_the_one_that_fits(tmp_path: Path) -> None:
    # The classes are those that fit, so that the session starts; the file's name tells their Spark.
    elsewhere = tmp_path / "jars"
    elsewhere.mkdir()
    for jar in jars.delta_jars():
        shutil.copy(jar, elsewhere / jar.name.replace("_4.2_", "_4.1_"))
    code, said = submitted(tmp_path, "--driver-class-path", f"{elsewhere}/*")
    remedy = f"give it {jars.delta_set().coordinate} instead"
    jar = "delta-spark_4.1_2.13-4.4.0.jar"
    check_refused(code, said, "Delta Lake of Spark 4.1", jar, remedy, store=str(tmp_path / "store"))


def test_a_python_package_of_another_spark_is_refused_with_the_one_that_fits(
    tmp_path: Path,
) -> None:
    # Of one package only its version is another: that of two Sparks fails on its own.
    program = tmp_path / "other_pyspark.py"
    program.write_text(OTHER_PYSPARK)
    code, said = submitted(tmp_path, program=program)
    remedy = "install pyspark==4.2.*, or set SPARK_HOME to Spark 4.1"
    check_refused(
        code, said, "the Python package pyspark is 4.1.4", remedy, store=str(tmp_path / "store")
    )
