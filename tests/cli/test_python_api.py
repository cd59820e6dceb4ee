"""The notebook of docs/python-api.md, cell by cell, and programs that have a Spark session already;
each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.deployment

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "python-api.md"

_CELL = re.compile(
    r"^<!-- example: (?P<name>\S+) -->\n```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

_AFTERWARDS = """
import json
from bench_spark.spark.session import has_session

print("TOLD " + json.dumps({
    "exit_code": result.exit_code,
    "is_valid": result.is_valid,
    "tag": result.document["scenario"]["tags"]["from"],
    "received": result.document["counts"]["received"],
    "frames": {name: len(frame) for name, frame in result.frames.items()},
    "windows": int(over_time.window_end.duplicated().sum()),
    "sizes": [row["count"] for row in rows],
    "left_running": has_session(),
}))
"""


@pytest.mark.slow
def test_the_notebook_runs_as_shown(tmp_path: Path) -> None:
    cells = [cell["text"] for cell in _CELL.finditer(DOCUMENT.read_text())]
    assert len(cells) == DOCUMENT.read_text().count("```python")
    told = _told_by("\n".join([*cells, _AFTERWARDS]), tmp_path)
    # 4: a busy machine may not keep the rate, and the run says so; it is complete all the same.
    assert told["exit_code"] in (0, 4)
    assert told["is_valid"] == (told["exit_code"] == 0)
    assert told["tag"] == "notebook"
    assert told["received"] > 0
    assert told["frames"]["runs"] == 1
    assert min(told["frames"][name] for name in ("events", "metrics", "summary")) > 1
    assert told["windows"] == 0, "a window is there once, in its newest form"
    assert len(told["sizes"]) == 2
    assert not told["left_running"]
    assert "<svg" in (tmp_path / "latency.svg").read_text()
    assert (tmp_path / "bench-store" / "runs").is_dir()


_WITH_A_SESSION = """
import json, logging, os, sys, time
from pyspark.sql import SparkSession
from bench_spark import jars, load_scenario, run
from bench_spark.errors import BenchError

os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
wanted = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
wanted = wanted.config("spark.sql.shuffle.partitions", "7")
wanted = wanted.config("spark.sql.session.timeZone", "Europe/Berlin")
if sys.argv[1] == "with-delta":
    wanted = wanted.config("spark.driver.extraClassPath", ":".join(map(str, jars.delta_jars())))
spark = wanted.getOrCreate()
context = spark.sparkContext
context.setLogLevel("ERROR")
context.setJobGroup("mine", "my own job")
spark.conf.set("spark.sql.ansi.enabled", "false")
spark.sql("CREATE DATABASE mine")
spark.sql("USE mine")
spark.range(3).createOrReplaceTempView("runs")

def state():
    log4j = spark._jvm.org.apache.logging.log4j
    executor = log4j.LogManager.getLogger("org.apache.spark.executor.Executor")
    return {
        "settings": dict(spark.conf.getAll),
        "context": sorted(context.getConf().getAll()),
        "group": context.getLocalProperty("spark.jobGroup.id"),
        "description": context.getLocalProperty("spark.job.description"),
        "database": spark.catalog.currentDatabase(),
        "tables": [table.name for table in spark.catalog.listTables()],
        "rows": spark.table("runs").count(),
        "streams": len(spark.streams.active),
        "active": SparkSession.getActiveSession()._jsparkSession.equals(spark._jsparkSession),
        "level": executor.getLevel().toString(),
        "loggers": [
            logging.getLogger(name).level for name in ("", "py4j", "SQLQueryContextLogger")
        ],
        "disabled": logging.getLogger("SQLQueryContextLogger").disabled,
        "filters": len(logging.getLogger().filters),
        "environment": dict(os.environ),
    }

before = state()
told = {"error": None, "kind": None, "count": 0}
changes = {
    "load.rate_per_second": 50, "phases.warmup_seconds": 0.5, "phases.measure_seconds": 1,
}
try:
    result = run(load_scenario("steady", changes), "loopback")
    told["count"] = result.document["counts"]["received"]
    told["metrics"] = len(result.frames["metrics"])
    from bench_spark.cli.app import main
    told["sql"] = main(["sql", "SELECT count(*) AS runs_of_the_store FROM runs"])
    told["rebuild"] = main(["metrics", "rebuild", result.run_id])
except BenchError as error:
    told["error"], told["kind"], told["exit_code"] = str(error), error.kind, error.exit_code
after = state()
told["changed"] = {name: (before[name], after[name]) for name in before
                   if before[name] != after[name]}
print("TOLD " + json.dumps(told))
"""


def _told_by(program: str, directory: Path, *arguments: str) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    (directory / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("BENCH_SPARK_STORE", None)
    done = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    told: dict[str, Any] = json.loads(line.removeprefix("TOLD ")) | {"stdout": done.stdout}
    return told


@pytest.mark.slow
def test_a_session_that_is_there_stays_as_it_was(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as side_by_side:
        running = {
            how: side_by_side.submit(_told_by, _WITH_A_SESSION, tmp_path / how, how)
            for how in ("with-delta", "without")
        }
    done, refused = running["with-delta"].result(), running["without"].result()
    assert done["error"] is None
    assert done["changed"] == {}
    assert done["count"] > 0
    assert done["metrics"] > 0
    assert (done["sql"], done["rebuild"]) == (0, 0)
    assert "runs_of_the_store" in done["stdout"]
    assert refused["changed"] == {}
    assert (refused["kind"], refused["exit_code"]) == ("EnvironmentNotReady", 3)
    assert "has no Delta Lake" in refused["error"]
    assert "spark.jars.packages" in refused["error"]
    assert "io.delta:delta-spark_" in refused["error"]
