"""The session that all other tests use, and what is promised about it."""

from __future__ import annotations

import re

import psutil
import pytest
from pyspark.sql import SparkSession

from bench_spark.spark.observer import jvm_pid
from bench_spark.spark.session import free_slots, local_session_master, wait_for_slots


def test_a_local_session_has_room_for_the_agents_and_the_rolling_metrics(
    spark: SparkSession,
) -> None:
    assert local_session_master(agents=3) == "local[5]"
    assert free_slots(spark) == 5
    assert wait_for_slots(spark, 6, timeout_seconds=0.3, say=print) == 5


@pytest.mark.fault(case=18)
def test_settings_with_secrets_are_redacted_by_name_and_by_value(spark: SparkSession) -> None:
    redacted = re.compile(spark.conf.get("spark.redaction.regex") or "")
    for shown in ("spark.my.password", "spark.sasl.jaas", "amqp://user:pw@host/"):
        assert redacted.search(shown), shown
    for harmless in ("spark.sql.session.timeZone", "amqp://host:5672/", "file:///tmp/x"):
        assert not redacted.search(harmless), harmless


def test_times_are_utc_and_nothing_is_started_twice(spark: SparkSession) -> None:
    assert spark.sql("SELECT timestamp'2024-07-01 00:00:00Z' AS t").toArrow()["t"][
        0
    ].as_py().isoformat() == ("2024-07-01T00:00:00+00:00")
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.speculation") == "false"
    assert conf.get("spark.dynamicAllocation.enabled") == "false"


def test_the_jvm_of_the_session_is_known(spark: SparkSession) -> None:
    command = psutil.Process(jvm_pid(spark)).cmdline()
    assert "org.apache.spark.deploy.SparkSubmit" in command
