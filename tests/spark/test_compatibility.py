"""Which Spark sessions can carry a run, and the Delta Lake that each needs."""

from __future__ import annotations

import pytest

from bench_spark import jars
from bench_spark.errors import EnvironmentNotReady
from bench_spark.spark import session
from bench_spark.spark.session import (
    delta_coordinate,
    fixed_executors,
    refuse_connect,
    refuse_dynamic_allocation,
    spark_of_delta,
)


def test_the_rule_of_delta_sparks_wheel_names_the_package_of_the_jar_list() -> None:
    assert delta_coordinate() == jars.delta_set().coordinate


@pytest.mark.parametrize("minor", jars.delta_sets())
def test_on_a_spark_that_the_wheel_is_not_for_the_jar_list_names_it(
    monkeypatch: pytest.MonkeyPatch, minor: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", f"{minor}.1")
    assert delta_coordinate() == jars.delta_sets()[minor].coordinate


@pytest.mark.parametrize("minor", jars.delta_sets())
def test_a_jar_of_deltas_says_which_spark_it_is_for(minor: str) -> None:
    name = jars.file_name(jars.delta_sets()[minor].coordinate)
    assert spark_of_delta(f"file:/opt/jars/{name}") == minor


@pytest.mark.parametrize("jar", ["", "file:/opt/platform/spark--all.jar", "delta-spark.jar"])
def test_a_jar_of_another_name_says_nothing_and_is_accepted(jar: str) -> None:
    assert spark_of_delta(jar) is None


def test_connect_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connect("local[2]")
    refuse_connect()
    with pytest.raises(EnvironmentNotReady, match="Spark Connect cannot carry a run"):
        refuse_connect("sc://host:15002")
    for variable in session.CONNECT_VARIABLES:
        with monkeypatch.context() as patched:
            patched.setenv(variable, "sc://host:15002")
            with pytest.raises(EnvironmentNotReady, match="Spark Connect cannot carry a run"):
                refuse_connect()


@pytest.mark.parametrize(
    ("settings", "slots", "instances"),
    [
        ({"spark.master": "yarn"}, 3, "3"),
        ({"spark.master": "yarn", "spark.executor.cores": "2"}, 5, "3"),
        ({"spark.master": "yarn", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 5, "3"),
        ({"spark.master": "k8s://host"}, 0, "2"),
        ({"spark.master": "yarn", "spark.dynamicAllocation.minExecutors": "7"}, 3, "7"),
        ({"spark.master": "spark://host:7077"}, 9, None),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 9, None),
    ],
)
def test_a_session_asks_for_the_executors_that_a_run_needs_and_keeps_them(
    settings: dict[str, str], slots: int, instances: str | None
) -> None:
    fixed = fixed_executors(settings | {"spark.dynamicAllocation.enabled": "true"}, slots)
    assert fixed["spark.dynamicAllocation.enabled"] == "false"
    assert fixed.get("spark.executor.instances") == instances


def test_a_session_asks_for_no_more_executors_than_the_platform_allows() -> None:
    most = {"spark.master": "yarn", "spark.dynamicAllocation.maxExecutors": "4"}
    on = most | {"spark.dynamicAllocation.enabled": "true"}
    assert fixed_executors(on, 9)["spark.executor.instances"] == "4"
    assert fixed_executors(most, 9)["spark.executor.instances"] == "9"


def test_dynamic_allocation_is_refused_on_a_cluster_with_what_to_set() -> None:
    on = {"spark.dynamicAllocation.enabled": "true"}
    refuse_dynamic_allocation("this session", on | {"spark.master": "local[4]"})
    refuse_dynamic_allocation("this session", {"spark.master": "yarn"})
    with pytest.raises(EnvironmentNotReady, match="this session has dynamic allocation on") as told:
        refuse_dynamic_allocation("this session", on | {"spark.master": "yarn"})
    assert "--conf spark.dynamicAllocation.enabled=false" in str(told.value)
    assert "spark.executor.instances" in str(told.value)
