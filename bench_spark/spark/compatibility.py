"""Whether a Spark session can carry a run: Spark Connect, Spark's version, Delta's classes.

jars.toml says which Delta Lake fits which Spark. Spark itself starts without Delta, or with one for
another Spark, and fails much later in classes that no user knows; so this looks first.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from bench_spark import jars
from bench_spark.errors import EnvironmentNotReady
from bench_spark.spark.masters import CONNECT, NO_CONNECT

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With one of them set, pyspark makes sessions of Spark Connect only."""

DEFAULT_EXECUTORS = 2
"""How many Spark itself asks YARN and Kubernetes for."""

_DELTA_JAR = re.compile(r"delta-spark_(?:(?P<spark>\d.\d+)_)?2.1\d-(?P<delta>\d+\.\d+)[^/]*\.jar$")
_SPARK_OF_PLAIN_DELTA = {"3.2": "3.5", "3.3": "3.5", "4.0": "4.0"}
"""Jars of these releases of Delta do not name their Spark."""


def delta_coordinate() -> str:
    """What spark.jars.packages needs for Delta tables on this Spark.

    delta-spark's own rule, where the wheel is of the release that fits; on a cluster with another
    Spark than the wheel is for, the rule would name a package that does not exist.
    """
    fitting = jars.delta_set(pyspark.__version__)
    try:
        from delta import configure_spark_with_delta_pip

        wheel = importlib.metadata.version("delta-spark")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return fitting.coordinate
    if jars.minor_version(wheel) != jars.minor_version(fitting.version):
        return fitting.coordinate
    builder: Any = configure_spark_with_delta_pip(SparkSession.builder)
    return str(builder._options["spark.jars.packages"])


def refuse_connect(master: str | None = None) -> None:
    """Raise EnvironmentNotReady where a session would be one of Spark Connect."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if (
        (master or "").startswith(CONNECT)
        or not os.environ.keys().isdisjoint(CONNECT_VARIABLES)
        or (connect is not None and connect.SparkSession.getActiveSession() is not None)
    ):
        raise EnvironmentNotReady(NO_CONNECT)


def require_compatible(spark: SparkSession, session: str, remedy: str) -> None:
    """Raise EnvironmentNotReady unless Spark, PySpark and Delta fit each other.

    `session`: how the error calls it; `remedy`: how it gets Delta's classes.
    """
    refuse_dynamic_allocation(session, dict(spark.sparkContext.getConf().getAll()))
    fitting = jars.delta_set(spark.version)
    here, there = (jars.minor_version(each) for each in (pyspark.__version__, spark.version))
    if here != there:
        raise EnvironmentNotReady(
            f"{session} is Spark {spark.version}, and the Python package pyspark is "
            f"{pyspark.__version__}: install pyspark=={there}.*, or set SPARK_HOME to Spark {here}"
        )
    jar = _delta_jar(spark)
    if jar is None:
        raise EnvironmentNotReady(
            f"{session} has no Delta Lake, which the tables need: {remedy}; the package that fits "
            f"Spark {spark.version} is {delta_coordinate()}"
        )
    made_for = spark_of_delta(jar)
    if made_for is not None and made_for != there:
        raise EnvironmentNotReady(
            f"{session} is Spark {spark.version} with the Delta Lake of Spark {made_for} "
            f"({jar.rpartition('/')[2]}): give it {fitting.coordinate} instead"
        )


def fixed_executors(settings: Mapping[str, str], slots: int) -> dict[str, str]:
    """The settings with which a new session asks for its executors once, and keeps them.

    Spark starts no barrier stage while dynamic allocation is on, which platforms like to preset.
    Where nobody has said how many executors a run gets, it asks YARN or Kubernetes for those that
    `slots` need (0: unknown), a standalone cluster gives all it has. `settings`: Spark's own.
    """
    dynamic = "spark.dynamicAllocation."
    fixed = {f"{dynamic}enabled": "false"}
    is_asked_for = settings.get("spark.master", "").startswith(("yarn", "k8s"))
    if not is_asked_for or "spark.executor.instances" in settings:
        return fixed
    cores = int(settings.get("spark.executor.cores", "1"))
    tasks = max(1, cores // int(settings.get("spark.task.cpus", "1")))
    bounds = [settings.get(f"{dynamic}{key}", "0") for key in ("initialExecutors", "minExecutors")]
    wanted = max(DEFAULT_EXECUTORS, -(-slots // tasks), *map(int, bounds))
    most = settings.get(f"{dynamic}maxExecutors", "infinity")
    if most.isdecimal() and settings.get(f"{dynamic}enabled", "").lower() == "true":
        wanted = min(wanted, int(most))
    return fixed | {"spark.executor.instances": str(wanted)}


def refuse_dynamic_allocation(session: str, settings: Mapping[str, str]) -> None:
    """Raise EnvironmentNotReady where Spark would refuse the agents' barrier stage for it, much
    later and in other words; on one machine the setting means nothing."""
    is_on = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    if is_on and not settings.get("spark.master", "").startswith("local"):
        raise EnvironmentNotReady(
            f"{session} has dynamic allocation on, with which Spark starts no barrier stage: add "
            "--conf spark.dynamicAllocation.enabled=false and the number of executors, as in "
            "--conf spark.executor.instances=4"
        )


def spark_of_delta(jar: str) -> str | None:
    """The Spark, as major.minor, that a jar of Delta's is for; None where its name does not say."""
    match = _DELTA_JAR.search(jar)
    return match and (match["spark"] or _SPARK_OF_PLAIN_DELTA.get(match["delta"]))


def _delta_jar(spark: SparkSession) -> str | None:
    """Where the session's Delta classes come from; empty if Java does not say, None: nowhere."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        found = jvm.java.lang.Class.forName(DELTA_EXTENSION, False, loader)
    except Py4JJavaError:
        return None
    source = found.getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())
