"""What is decided about a run before Spark is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from bench_spark.config.broker import Broker
from bench_spark.config.loader import check_run_id
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load
from bench_spark.errors import ConfigurationError, EnvironmentNotReady, StoreNotReady
from bench_spark.plan import make_plan
from bench_spark.runs import choose_run_id, fit, load, plan_for, prepare
from bench_spark.spark.launch import refuse_unshared_store, slots_of

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[*]", CORES),
        ("local[4,2]", 4),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
        (None, CORES + 1),
    ],
)
def test_a_master_says_how_many_slots_it_has_or_that_it_cannot(
    master: str | None, slots: int | None
) -> None:
    assert slots_of(master) == slots


@pytest.mark.parametrize("master", ["", "localhost", "local[]", "local[-1]", "http://host"])
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(ConfigurationError, match="no Spark master"):
        slots_of(master)


def test_a_master_of_spark_connect_is_refused_as_surroundings_that_do_not_fit() -> None:
    with pytest.raises(EnvironmentNotReady, match="Spark Connect cannot carry a run"):
        slots_of("sc://host:15002")


@pytest.mark.parametrize("store", ["bench-store", "./x", "../x"])
def test_a_relative_store_is_refused_on_a_cluster_only(store: str) -> None:
    refuse_unshared_store(store, "local[2]")
    with pytest.raises(StoreNotReady, match="absolute path"):
        refuse_unshared_store(store, "spark://host:7077")


@pytest.mark.parametrize("store", ["/mnt/shared", "s3://bucket/store", "hdfs://host/store"])
def test_a_store_that_all_machines_can_name_is_taken(store: str) -> None:
    refuse_unshared_store(store, "spark://host:7077")


PER_AGENT = Scenario(name="auto", agents="auto", load=Load(scope="per_agent"))


def test_agents_auto_means_one_per_core_on_this_machine() -> None:
    plan = plan_for(PER_AGENT, "r1", master=None)
    assert plan is not None
    assert len(plan.assignments) == CORES


def test_agents_auto_leaves_a_slot_for_the_rolling_metrics() -> None:
    plan = plan_for(PER_AGENT, "r1", master="local[4]")
    assert plan is not None
    assert len(plan.assignments) == 3


def test_agents_auto_on_a_cluster_is_decided_by_the_cluster() -> None:
    assert plan_for(PER_AGENT, "r1", master="spark://host:7077") is None


def test_a_run_whose_agents_the_cluster_decides_keeps_what_was_asked() -> None:
    scenario, ends = fit(PER_AGENT, Broker(name="loopback", kind="loopback"))
    config = prepare(scenario, ends, master="spark://host:7077")
    assert config.unsized == scenario
    assert len(make_plan(config.unsized, "run", 4, 2).assignments) == 2
    assert prepare(scenario, ends, master="local[4]").unsized is None


def test_a_run_id_says_what_ran_and_is_a_plain_name() -> None:
    run_id = choose_run_id(None, "steady", "mine")
    assert re.fullmatch(r"steady-mine-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", run_id)


def test_a_run_id_made_of_long_names_is_still_allowed() -> None:
    long = "n" * 120
    run_id = choose_run_id(None, long, long)
    assert check_run_id(run_id) == run_id


def test_tags_of_the_command_line_are_the_scenarios() -> None:
    assert load("steady", tags=["host=a=b", "night="]).tags == {"host": "a=b", "night": ""}


def test_what_comes_before_spark_loads_neither_spark_nor_pandas_nor_numba_nor_clients() -> None:
    code = (
        "import sys; import bench_spark.cli.run, bench_spark.cli.files; "
        "print({'pyspark', 'pandas', 'numba', 'pika', 'confluent_kafka'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
