"""--ingress and --egress where nothing is started: plans, checks, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench_spark
from bench_spark.cli import main
from bench_spark.errors import ConfigurationError

SUITE = """
base: {phases: {measure_seconds: 1}}
axes: {load.rate_per_second: [100, 200]}
"""


def out_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def _without_a_broker_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_SPARK_BROKER", raising=False)


def test_a_plan_names_every_end(capsys: pytest.CaptureFixture[str]) -> None:
    shown = out_of(capsys, "plan", "bridge")
    assert shown.startswith("bridge on rabbitmq-to-kafka\n")
    assert "ingress  amqp, amqp://127.0.0.1:21672/" in shown
    assert "egress   kafka, 127.0.0.1:20092" in shown
    assert "guest" not in shown


def test_options_name_other_brokers_and_make_ends(capsys: pytest.CaptureFixture[str]) -> None:
    shown = out_of(capsys, "plan", "bridge", "--ingress", "qpid", "--egress", "kafka")
    assert shown.startswith("bridge on qpid-to-kafka\n")
    shown = out_of(capsys, "plan", "steady", "--ingress", "rabbitmq", "--broker", "kafka")
    assert shown.startswith("steady on rabbitmq-to-kafka\n")


def test_a_scenario_with_ends_is_checked_with_their_brokers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = out_of(capsys, "validate", "bridge")
    assert [line.split(":")[1].strip() for line in shown.splitlines()] == [
        *("bridge", "rabbitmq", "kafka")
    ]


def test_a_broker_that_would_not_be_used_is_refused_only_if_it_was_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("plan", "run", "validate"):
        assert "--broker: would not be used" in refusal_of(
            capsys, command, "bridge", "--broker", "kafka"
        )
    with pytest.raises(ConfigurationError, match="would not be used"):
        bench_spark.run("bridge", "kafka")
    monkeypatch.setenv("BENCH_SPARK_BROKER", "qpid")
    assert out_of(capsys, "plan", "bridge").startswith("bridge on rabbitmq-to-kafka")


def test_a_broker_is_to_be_named_for_each_entry(capsys: pytest.CaptureFixture[str]) -> None:
    two = ("--ingress", "rabbitmq", "--ingress", "qpid")
    assert "--ingress: 2 given, but the scenario has 1" in refusal_of(capsys, "run", "bridge", *two)


def test_a_suite_runs_between_two_ends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    suite = tmp_path / "between.yaml"
    suite.write_text(SUITE)
    shown = out_of(capsys, "suite", "plan", str(suite), "--ingress", "qpid", "--egress", "kafka")
    assert "2 trials on qpid-to-kafka" in shown
    suite.write_text(SUITE.replace("base: {", "base: {ingress: [{broker: rabbitmq}], "))
    shown = out_of(capsys, "suite", "plan", str(suite), "--broker", "kafka")
    assert "2 trials on rabbitmq-to-kafka" in shown
