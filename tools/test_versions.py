"""Tries bench-spark on every Spark that a Delta Lake fits, each in an environment of its own.

    .venv/bin/python tools/test_versions.py            # all, into a table like docs/cluster.md's
    .venv/bin/python tools/test_versions.py 3.5 4.2.1 --python 3.11 --python 3.13 --on standalone

Every environment in build/versions gets the newest patch of its Spark, the release of delta-spark
that fits, and the newest versions that the package's ranges allow of all else. In it, on the
loopback transport: a run with live metrics and traced messages, a suite, SQL, a search and a
comparison, as people call them; once on this machine, once on a standalone cluster of that Spark.

A Spark that is named to its last digit comes in place of the one that the wheel of delta-spark asks
for: a cluster may have it. One that no Delta Lake fits must be refused in one sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench_spark.errors import EXIT_DEGRADED, EXIT_PREFLIGHT, EXIT_VALID
from bench_spark.jars import delta_sets, minor_version
from bench_spark.store.delta import Store

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / "build" / "versions"
ENDED = (EXIT_VALID, EXIT_DEGRADED)
"""A busy machine may not keep a rate; what a Spark does wrong ends otherwise."""

SHORT = ("phases.warmup_seconds=0.5", "phases.measure_seconds=2", "phases.drain_seconds=5")
SUITE = """
name: smoke
base: steady
set: {phases.warmup_seconds: 0.5, phases.measure_seconds: 1}
axes:
  message.bytes: [100, 200]
  load.rate_per_second: [200, 400]
"""


BESIDE_THE_WHEEL = ("4.2.1", "4.3.0")
"""The Spark of a cluster that is newer than delta-spark's wheel, and one too new for any Delta."""
PLACES = ("local", "standalone")

ASK = """
import importlib.metadata, pathlib, platform, pyspark
print(*map(importlib.metadata.version, ("pyspark", "delta-spark")), platform.python_version())
(hadoop,) = pathlib.Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
print(hadoop.stem.rpartition("-")[2])
"""
CLUSTER = """
import sys
from pathlib import Path
from benchmarks.standalone import HERE, standalone
with standalone([HERE, HERE], 2, Path(sys.argv[1])) as cluster:
    print(cluster.master, flush=True)
    sys.stdin.read()
"""
"""Runs until nobody holds its input any more."""
HEAD = """
| Spark | Python | delta-spark | Delta Lake | Seen to work | On |
|---|---|---|---|---|---|
"""


class Failed(Exception):
    pass


def python_of(spark: str, python: str) -> Path:
    """The interpreter of an environment with this Spark, made and brought up to date."""
    sets = delta_sets()
    delta = sets.get(minor_version(spark)) or sets[max(sets)]
    directory = ENVIRONMENTS / f"spark-{spark}-python{python.replace('/', '-')}"
    uv = str(Path(sys.executable).with_name("uv"))
    if not directory.exists():
        subprocess.run([uv, "venv", "-q", "-p", python, str(directory)], check=True)
    exact = directory / "override.txt"
    exact.write_text(f"pyspark=={spark}\n" if spark.count(".") == 2 else "")
    wanted = [
        f"pyspark=={minor_version(spark)}.*",
        f"delta-spark=={minor_version(delta.version)}.*,!=4.4.1",
        *("--editable", str(ROOT), "--override", str(exact)),
    ]
    # Also where the environment is there: the package may ask for more than it did.
    subprocess.run([uv, "pip", "install", "-q", "-p", str(directory), *wanted], check=True)
    return directory / "bin" / "python"


@contextmanager
def standalone_master(python: Path, directory: Path) -> Iterator[str]:
    """The URL of a cluster of two workers, of the Spark of this interpreter."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [str(python), "-c", CLUSTER, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not (master := process.stdout.readline().strip()):
                raise Failed("no standalone cluster")
            yield master
        finally:
            process.stdin.close()


def call(
    python: Path, directory: Path, *arguments: str, ends: tuple[int, ...] = ENDED
) -> subprocess.CompletedProcess[str]:
    """A command of bench-spark on the store in this directory; raises Failed where it ends
    otherwise."""
    done = subprocess.run(
        [str(python), "-m", "bench_spark.cli", *arguments, "--store", str(directory / "store")],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in ends:
        raise Failed(
            f"{' '.join(arguments[:3])} ended with {done.returncode}: {done.stderr[-800:]}"
        )
    return done


def refused(python: Path, directory: Path) -> Iterator[tuple[str, str]]:
    """What a run says on a Spark that no Delta Lake fits."""
    loopback = ("--broker", "loopback", "--quiet")
    done = call(python, directory, "run", "steady", *loopback, ends=(EXIT_PREFLIGHT,))
    said = done.stderr.strip().splitlines()
    if len(said) != 1 or "no Delta Lake fits Spark" not in said[0]:
        raise Failed(f"not refused in one sentence: {done.stderr[-800:]}")
    yield "refusal", said[0]


def smoke(python: Path, directory: Path, *master: str) -> Iterator[tuple[str, str]]:
    """Each part of the set, and what was seen of it; raises Failed at the first that fails.

    `master`: the option that names it; none: this machine.
    """
    (directory / "smoke.yaml").write_text(SUITE)

    def bench(*arguments: str, ends: tuple[int, ...] = ENDED) -> str:
        return call(python, directory, *arguments, ends=ends).stdout

    loopback = ("--broker", "loopback", *master)
    sets = [f"--set={setting}" for setting in SHORT]
    traced = (*sets, "--set=load.rate_per_second=500", "--set=trace=all", "--run-id", "traced")
    bench("run", "steady", *loopback, *traced)
    tables = Store(directory / "store").open()
    windows = tables.read("metrics", run_id="traced").num_rows
    if not windows:
        raise Failed("no row of rolling metrics")
    yield "run with live metrics", f"{windows} rows"
    joined = json.loads(bench("show", "traced", "--format", "json"))["trace"]
    if not joined["joined"]:
        raise Failed(f"messages were not joined: {joined}")
    yield "join of traced messages", f"{joined['received']} received"

    bench("suite", "run", "smoke.yaml", *loopback)
    runs = tables.read("runs").to_pylist()
    trials = [run for run in runs if run["suite"] == "smoke" and run["status"] != "failed"]
    if len(trials) != 4:
        raise Failed(f"{len(trials)} trials with a result instead of 4: {runs[-1]['reasons']}")
    yield "suite", f"{len(trials)} trials"

    query = "SELECT count(*) AS n, count(DISTINCT run_id) AS runs FROM events"
    answer = json.loads(bench("sql", query, "--format", "json", ends=(EXIT_VALID,)))
    yield "sql", json.dumps(answer)[:40]

    bench("compare", *(trial["run_id"] for trial in trials[:2]), ends=(EXIT_VALID,))
    yield "compare", "done"

    bench("search-window", "window", *loopback, *sets, "--base", "2", "--highest", "4")
    searched = tables.read("runs").num_rows - 1 - len(trials)
    if searched < 3:
        raise Failed(f"a search of {searched} trials")
    yield "search", f"{searched} trials"
    if failed := [run for run in tables.read("runs").to_pylist() if run["status"] == "failed"]:
        raise Failed(f"run {failed[0]['run_id']}: {failed[0]['reasons']}")


def tried(spark: str, python: str, places: Sequence[str]) -> str:
    """The row of the table."""
    began = time.monotonic()
    interpreter = python_of(spark, python)
    told = subprocess.run([interpreter, "-c", ASK], capture_output=True, text=True, check=True)
    spark, wheel, python, hadoop = told.stdout.split()
    delta = delta_sets().get(minor_version(spark))
    seen = []

    def note(place: str, parts: Iterator[tuple[str, str]]) -> None:
        for part, what in parts:
            after = f"after {time.monotonic() - began:.0f} s"
            print(f"  {spark} {place}: {part}: {what}, {after}", flush=True)
            seen.append(f"{part} ({place})")

    with tempfile.TemporaryDirectory(prefix="bench-spark-versions-") as scratch:
        for place in PLACES:
            Path(scratch, place).mkdir()
        here, there = (Path(scratch, place) for place in PLACES)
        try:
            if delta is None:
                note("local", refused(interpreter, here))
            elif delta.hadoop != hadoop:
                raise Failed(f"its Hadoop is {hadoop}, and jars.toml says {delta.hadoop}")
            elif "local" in places:
                note("local", smoke(interpreter, here))
            if delta is not None and "standalone" in places:
                with standalone_master(interpreter, there) as master:
                    note("standalone", smoke(interpreter, there, "--master", master))
            outcome = f"the smoke set, {' and '.join(places)}" if delta else "refused, exit code 3"
        except Failed as error:
            outcome = f"**failed** after {', '.join(seen) or 'nothing'}: {error}"
    today = datetime.now(UTC).date().isoformat()
    coordinate = f"`{delta.coordinate}`" if delta else "none"
    return f"| {spark} | {python} | {wheel} | {coordinate} | {outcome} | {today} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="test_versions", description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="SPARK", help="as 4.1 or 4.2.1")
    parser.add_argument("--python", action="append", help="version or path; repeatable")
    parser.add_argument("--on", action="append", choices=PLACES, help="default: both")
    asked = parser.parse_args()
    sets = delta_sets()
    if unknown := [each for each in asked.versions if each.count(".") < 2 and each not in sets]:
        parser.error(f"no Delta Lake for Spark {unknown[0]}; known: {', '.join(sets)}")
    rows = []
    for version in asked.versions or (*sorted(sets), *BESIDE_THE_WHEEL):
        for python in asked.python or (sys.executable,):
            rows.append(tried(version, python, asked.on or PLACES))
            print(rows[-1], flush=True)
    print(HEAD + "\n".join(rows))
    return int(any("**failed**" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
