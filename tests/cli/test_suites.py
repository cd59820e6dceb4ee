"""`bench-spark suite` end to end, in this process and on the shared Spark session."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from growing_run import vanished_driver

from bench_spark.brokers.base import BrokerStatus, free_ports
from bench_spark.cli import main
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.models import Scenario
from bench_spark.errors import (
    EXIT_CONFIGURATION,
    EXIT_DEGRADED,
    EXIT_PREFLIGHT,
    EXIT_VALID,
    BrokerRefused,
)
from bench_spark.runs import refuse_what_the_broker_cannot
from bench_spark.store.delta import Store

CONF = Path(__file__).parents[2] / "conf"
GRID = """
name: grid
base:
  phases: {warmup_seconds: 0.1, measure_seconds: 1, drain_seconds: 2}
axes:
  load.rate_per_second: [200, 400]
  message.bytes: [100]
report:
  columns: [{value: receive_rate}, {value: latency.p99, aggregation: interval_max}]
"""


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    return path


@pytest.fixture
def on_shared_session(spark: Any) -> None:
    """Commands find the session of this process."""


def suite(command: str, path: Path, *more: str) -> int:
    return main(["suite", command, str(path), "--broker", "loopback", *more])


def forget_trial(store: Store, number: int) -> str:
    """As if the driver had been killed while it ran; returns the run's id."""
    [row] = store.read("runs", trial=number).to_pylist()
    running = {"status": "running", "result_json": None, "exit_code": None, "ended_at": None}
    store.replace_run(row | running | {"driver_json": vanished_driver()})
    return str(row["run_id"])


def test_a_plan_lists_the_trials_and_the_time(
    suite_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert suite("plan", suite_file) == EXIT_VALID
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["1", "load.rate_per_second=200;message.bytes=100;repetition=1"]
    assert lines[-1].startswith("2 trials on loopback, about ")


def test_shipped_suites_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "list"]) == EXIT_VALID
    listed = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())
    assert listed["rabbitmq-latency-rate"].startswith("Latency by publish rate")


@pytest.mark.usefixtures("on_shared_session")
def test_a_suite_runs_goes_on_after_a_kill_and_reports(
    suite_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(tmp_path / "store"))
    assert suite("run", suite_file, *where) == EXIT_VALID
    first = capfd.readouterr()
    told = [line for line in first.err.splitlines() if line.startswith("trial ")]
    assert len(told) == 2
    assert re.fullmatch(
        r"trial 2 of 2: load.rate_per_second=400;message.bytes=100;repetition=1: "
        r"valid, \d+ msg/s, delivery P99 .*; about 0 s left",
        told[1],
    )
    assert "measure  " not in first.err, "a log has a line per trial, and not one per second"
    store = Store(tmp_path / "store").open()
    runs = store.read("runs").to_pylist(maps_as_pydicts="strict")
    assert sorted(run["trial"] for run in runs) == [1, 2]
    assert {run["suite"] for run in runs} == {"grid"}
    assert all(run["status"] == "valid" for run in runs)
    assert runs[0]["parameters"].keys() == {"load.rate_per_second", "message.bytes", "repetition"}
    published = store.read("metrics").column("run_id").unique().to_pylist()
    assert sorted(published) == sorted(run["run_id"] for run in runs)

    gone = forget_trial(store, 2)
    assert suite("run", suite_file, *where) == EXIT_VALID
    again = capfd.readouterr()
    assert "grid on loopback: 1 trials to run, 1 done or skipped" in again.err
    assert f"run {gone} is abandoned: its driver has vanished" in again.err
    assert store.read("runs").num_rows == 3
    [row] = store.read("runs", run_id=gone).to_pylist()
    assert (row["status"], row["exit_code"]) == ("abandoned", EXIT_DEGRADED)
    assert row["ended_at"] is not None

    assert suite("report", suite_file, *where, "--format", "csv") == EXIT_VALID
    table = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [row["status"] for row in table] == ["valid"] * 2
    assert float(table[0]["receive_rate"]) == pytest.approx(200, rel=0.5)

    suite_file.write_text(GRID.replace("measure_seconds: 1", "measure_seconds: 0.5"))
    assert suite("run", suite_file, *where) == EXIT_CONFIGURATION
    assert "suite 'grid' has changed since 2 of its trials were run" in capfd.readouterr().err
    assert suite("run", suite_file, *where, "--force") == EXIT_VALID
    assert store.read("runs").num_rows == 3


@pytest.mark.usefixtures("on_shared_session")
def test_a_suite_of_which_a_trial_is_degraded_stays_so_when_it_is_run_again(
    suite_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The consumer takes half of what is asked for, and the rest is left in the broker."""
    slow = "base:\n  consumer: {rate_per_second: 100}\n"
    short = GRID.replace("drain_seconds: 2", "drain_seconds: 0.1").replace("[200, 400]", "[200]")
    suite_file.write_text(short.replace("base:\n", slow))
    where = ("--store", str(tmp_path / "store"))
    assert suite("run", suite_file, *where) == EXIT_DEGRADED
    capfd.readouterr()
    assert suite("run", suite_file, *where) == EXIT_DEGRADED
    assert "0 trials to run, 1 done or skipped" in capfd.readouterr().err


@pytest.mark.usefixtures("on_shared_session")
def test_a_hook_that_fails_costs_its_trials_only_and_is_in_the_table(
    suite_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text('#!/bin/sh\n[ "$BENCH_SPARK_PARAMETER_MESSAGE_BYTES" = 100 ]\n')
    hook.chmod(0o755)
    suite_file.write_text(
        GRID.replace("[200, 400]", "[200]").replace("[100]", "[100, 1000]")
        + "hooks: {before: [./hook.sh]}\n"
    )
    where = ("--store", str(tmp_path / "store"), "--format", "json")
    assert suite("run", suite_file, *where) == EXIT_DEGRADED
    said = capfd.readouterr()
    assert ": failed, hook before: ./hook.sh ended with exit code 1; about 0 s left" in said.err
    cells = json.loads(said.out)["cells"]
    assert [cell["status"] for cell in cells] == ["valid", "missing"]


def broker_file(tmp_path: Path, broker: Broker, name: str) -> Path:
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(broker.model_dump(exclude_none=True, exclude_defaults=True)))
    return file


def test_a_suite_that_needs_what_the_broker_lacks_is_refused_before_spark_starts(
    qpid_broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(tmp_path / "store"))
    file = broker_file(tmp_path, qpid_broker, "mine")
    command = ["suite", "run", "rabbitmq-latency-acks", "--quick", "--broker", str(file), *where]
    assert main(command) == EXIT_PREFLIGHT
    said = capfd.readouterr().err
    assert "trial acks=auto;repetition=1: " in said
    assert "refuses x-max-length (542 NOT_IMPLEMENTED)" in said
    assert "Spark" not in said
    assert Store(tmp_path / "store").open().read("runs").num_rows == 0


@pytest.mark.usefixtures("on_shared_session")
def test_a_value_that_the_broker_refuses_leaves_a_hole_with_its_reason(
    kafka_broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copies.yaml").write_text(
        "base:\n  load: {rate_per_second: 200}\n"
        "  phases: {warmup_seconds: 0.2, measure_seconds: 1, drain_seconds: 2}\n"
        "axes:\n  kafka.topic.replication_factor: [3, 1]\n"
        "report: {columns: [{value: receive_rate}]}\n"
    )
    file = broker_file(tmp_path, kafka_broker, "mine")
    where = ("--broker", str(file), "--store", str(tmp_path / "store"))
    code = main(["suite", "run", str(tmp_path / "copies.yaml"), *where, "--format", "json"])
    said = capfd.readouterr()
    assert code == EXIT_DEGRADED, said.err
    reason = "kafka.topic.replication_factor: 3 copies need as many brokers"
    assert "will fail: trial kafka.topic.replication_factor=3" in said.err
    assert "trial 1 of 2: kafka.topic.replication_factor=3;repetition=1: failed, " in said.err
    assert reason in said.err
    refused, measured = json.loads(said.out)["cells"]
    assert refused["status"] == "failed"
    assert reason in refused["notes"][0]
    assert measured["measured"] == 1
    rows = Store(tmp_path / "store").open().read("runs", trial=1).to_pylist()
    assert [(row["status"], reason in row["reasons"][0]) for row in rows] == [("failed", True)]
    main(["suite", "report", str(tmp_path / "copies.yaml"), *where])
    table = capfd.readouterr().out
    assert "| 3 | failed [1] |" in table
    assert f"[1] failed: {kafka_broker.bootstrap_servers}" in table
    assert reason in table


def test_what_the_broker_refuses_of_some_trials_only_is_told_and_the_others_go_on(
    qpid_broker: Broker,
) -> None:
    plain = Scenario(name="plain")
    limited = Scenario.model_validate(
        {"name": "limited", "amqp": {"queue": {"arguments": {"x-max-length": 10}}}}
    )
    ends = Ends.of(qpid_broker)
    trials = [("one", plain), ("two", limited), ("three", limited)]
    told = refuse_what_the_broker_cannot(trials, ends)
    assert [text.partition(": ")[0] for text in told] == ["trial two"]
    assert "refuses x-max-length (542 NOT_IMPLEMENTED)" in told[0]
    with pytest.raises(BrokerRefused, match=r"trial two: .*x-max-length"):
        refuse_what_the_broker_cannot(trials[1:], ends)


@pytest.mark.deployment
@pytest.mark.usefixtures("on_shared_session")
def test_the_latency_study_finds_its_last_two_rows_by_itself(
    rabbitmq: BrokerStatus, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = broker_file(tmp_path, rabbitmq.broker, "mine")
    study = tmp_path / "rabbitmq-latency-rate.yaml"
    # The shipped study, but for a search that begins where any broker keeps up and ends soon.
    search = "search: {lowest_share: 0.05, most_trials: 3}\n"
    study.write_text((CONF / "suites" / study.name).read_text() + search)
    code = main(
        [
            *("suite", "run", str(study), "--quick", "--broker", str(file)),
            *("--store", str(tmp_path / "store"), "--format", "json"),
            *("--set", "phases.warmup_seconds=0.3", "--set", "phases.measure_seconds=1"),
        ]
    )
    said = capfd.readouterr()
    # On a busy machine trials may be degraded; the table has them all the same.
    assert code in (EXIT_VALID, EXIT_DEGRADED), said.err
    cells = json.loads(said.out)["cells"]
    assert [cell["parameters"]["load.rate_per_second"] for cell in cells] == [
        *(1000, 10000, "max", "sustained")
    ]
    assert all(cell["measured"] == 1 for cell in cells), said.err
    assert [cell["rate_found_per_second"] is not None for cell in cells] == [False] * 2 + [True] * 2
    for cell in cells:
        assert cell["values"]["interval_max_latency_p99_us"]["median"] > 0
        # CPU is counted in ticks of 10 ms: a slow load on few connections may slip between them.
        assert 0 <= cell["values"]["broker_cpu_user"]["median"] < 1
        assert cell["overhead_seconds"][0] > 0
    assert cells[2]["values"]["broker_cpu_user"]["median"] > 0.05, "at its fastest"
    assert "msg/s" in cells[-1]["notes"][-1]


def test_the_command_that_starts_a_broker_is_named_where_it_is_not_there(
    qpid_broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [port] = free_ports(1)
    uri = f"amqp://guest:guest@127.0.0.1:{port}/"
    gone = qpid_broker.model_copy(update={"uri": uri, "name": "rabbitmq"})
    file = broker_file(tmp_path, gone, "gone")
    where = ("--broker", str(file), "--store", str(tmp_path / "store"))
    assert main(["suite", "run", "rabbitmq-latency-acks", "--quick", *where]) == EXIT_PREFLIGHT
    assert "bench-spark broker start rabbitmq" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRID.replace("load.rate_per_second:", "load.rate_per_secnd:"), "load.rate_per_secnd"),
        (GRID.replace("[200, 400]", "[]"), "load.rate_per_second"),
    ],
)
def test_a_wrong_suite_is_refused_by_name_before_anything_starts(
    suite_file: Path, capfd: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    suite_file.write_text(text)
    assert suite("run", suite_file) == EXIT_CONFIGURATION
    assert said in capfd.readouterr().err
