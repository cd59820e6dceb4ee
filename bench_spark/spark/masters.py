"""What a Spark master's name says before Spark is started: whether it is here, and its slots."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from bench_spark.config.problems import plural, shown_value
from bench_spark.errors import ConfigurationError, EnvironmentNotReady, StoreNotReady, TooFewSlots
from bench_spark.java import is_submitted
from bench_spark.plan import SLOTS_FOR_STREAMING, Plan

_LOCAL = re.compile(r"local(?:\[\s*(?P<slots>\*|[0-9]+)\s*(?:,\s*[0-9]+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]")
_ELSEWHERE = re.compile(r"(spark|k8s)://\S+|yarn")
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

CONNECT = "sc://"
NO_CONNECT = (
    "Spark Connect cannot carry a run, which places and watches its agents through the JVM of the "
    "driver: use spark-submit, or a cluster with dedicated access"
)


def is_local(master: str) -> bool:
    return master.startswith("local")


def runs_agents_here(asked_for: str | None) -> bool:
    """Whether agents run on this machine. The master that was asked for counts where neither
    spark-submit nor a session of this process has chosen another. PySpark, which takes long to
    load, is asked only if it is there already."""
    settled = None
    if is_submitted() or "pyspark" in sys.modules:
        from bench_spark.spark.session import settled_master

        settled = settled_master()
    return is_local(settled or asked_for or "local")


def slots_of(master: str | None) -> int | None:
    """How many tasks this master runs at once; None where only the cluster itself knows.

    No master means this machine, whose slots are made to measure: with `agents: auto` one agent
    per core.
    """
    cores = os.cpu_count() or 1
    if master is None:
        return cores + SLOTS_FOR_STREAMING
    if found := _LOCAL.fullmatch(master):
        slots = found["slots"]
        return cores if slots == "*" else int(slots or 1)
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * int(found[2])
    if _ELSEWHERE.fullmatch(master):
        return None
    if master.startswith(CONNECT):
        raise EnvironmentNotReady(NO_CONNECT)
    raise ConfigurationError(
        f"--master: {shown_value(master)} is no Spark master; allowed: local[N], "
        "spark://HOST:PORT, yarn, k8s://URL"
    )


def refuse_too_few_slots(plan: Plan, master: str) -> None:
    slots = slots_of(master)
    if slots is not None and slots < plan.slots_needed:
        raise TooFewSlots(
            f"{plural(len(plan.assignments), 'agent')} and the rolling metrics need "
            f"{plan.slots_needed} slots, but {master} offers {slots}: "
            f"use local[{plan.slots_needed}] or fewer agents"
        )


def refuse_unshared_store(store: str, master: str) -> None:
    """A relative path names another directory on every machine."""
    if not is_local(master) and not _URI.match(store) and not Path(store).is_absolute():
        raise StoreNotReady(
            f"store {store}: with master {master} the store must be a URI or an absolute path that "
            "every machine shares; give --store or set BENCH_SPARK_STORE"
        )
