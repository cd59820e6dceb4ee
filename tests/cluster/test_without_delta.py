"""A job whose session has no Delta classes is refused as soon as Spark is up."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench_spark.errors import EXIT_PREFLIGHT
from benchmarks.standalone import JOB_SECONDS_AT_MOST, ROOT, SPARK_HOME, quick_environment


def test_a_session_without_delta_is_refused_with_the_remedy(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[3]"),
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
    said = done.stdout + done.stderr
    assert done.returncode == EXIT_PREFLIGHT, said
    assert "no Delta Lake" in said
    assert "--properties-file spark-defaults.conf" in said
    assert "Exception" not in said
