"""A program with a real session of Spark Connect, whose run is refused at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refused import check_refused

from benchmarks.standalone import JOB_SECONDS_AT_MOST, ROOT

pytestmark = pytest.mark.deployment

PACKAGES = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert spark.range(3).count() == 3
from bench_spark import api
from bench_spark.errors import BenchError
try:
    api.run("steady", "loopback", store=sys.argv[1])
except BenchError as error:
    print("TOLD " + json.dumps([error.exit_code, f"bench-spark: {error}"]))
finally:
    spark.stop()
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """What Spark Connect needs beside pyspark, fetched once into a directory of their own."""
    directory = ROOT / "build" / "connect"
    if not (directory / "grpc").is_dir():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory))
        subprocess.run([*pip, *PACKAGES], check=True)
    return directory


def test_a_run_on_a_session_of_spark_connect_is_refused(packages: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        env={
            **{name: text for name, text in os.environ.items() if name != "BENCH_SPARK_STORE"},
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(packages))),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_AT_MOST,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert len(told) == 1, done.stdout + done.stderr
    code, said = json.loads(told[0].removeprefix("TOLD "))
    check_refused(code, said, "Spark Connect cannot carry a run", "use spark-submit")
