"""The broker's resources and its flow state, from a real RabbitMQ under load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from agents import Load, run_load
from patience import eventually

from bench_spark import brokers
from bench_spark.agent.timeline import Timeline
from bench_spark.brokers import BrokerStatus
from bench_spark.config.broker import (
    Broker,
    Credentials,
    ResourceSource,
    named_sources,
    resolve_credentials,
)
from bench_spark.config.ends import Ends
from bench_spark.config.loader import load_broker
from bench_spark.config.models import Scenario
from bench_spark.config.suite import hook_arguments, hook_environment, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.core.clock import Clock
from bench_spark.monitor.monitor import Monitor
from bench_spark.monitor.sources import make_sampler
from bench_spark.plan import make_plan
from bench_spark.store.delta import Store
from bench_spark.suites.suite import run_hook

SECOND = 1_000_000_000


def test_rabbitmqs_own_metrics_are_read(rabbitmq: BrokerStatus) -> None:
    url = f"http://127.0.0.1:{rabbitmq.ports['prometheus']}/metrics"
    metrics = [
        "memory=rabbitmq_process_resident_memory_bytes",
        'processes=erlang_vm_memory_bytes_total{kind="processes"}',
        "rabbitmq_connections",
        "nothing=rabbitmq_no_such_metric",
    ]
    reading = make_sampler(ResourceSource(prometheus=url, metrics=metrics)).read()
    assert reading.values["memory"] > 10_000_000
    assert 0 < reading.values["processes"] < reading.values["memory"] * 10
    assert reading.values["rabbitmq_connections"] >= 0
    assert reading.unreadable == ("nothing",)


def test_the_process_of_a_broker_that_was_started_is_found_by_its_name(
    rabbitmq: BrokerStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_SPARK_STATE", str(rabbitmq.directory.parent))
    reading = make_sampler(ResourceSource(embedded="rabbitmq")).read()
    assert reading.gauges["rss_bytes"] > 50_000_000
    assert reading.gauges["processes"] >= 2  # the node and its helpers
    assert reading.counters["cpu_user_seconds"] > 0
    assert brokers.status("rabbitmq").broker.resources == [ResourceSource(pid=rabbitmq.pid)]


def test_rabbitmqctl_of_a_private_node_tells_how_busy_its_schedulers_are(
    rabbitmq: BrokerStatus,
) -> None:
    source = named_sources(load_broker("rabbitmq-schedulers").resources)["schedulers"]
    reading = make_sampler(source, rabbitmq.broker).read()
    assert 0 <= reading.values["scheduler_1"] <= 1


def test_the_shipped_hooks_reach_a_broker_that_was_started(
    rabbitmq: BrokerStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name alone, as a shipped broker file gives it."""
    monkeypatch.setenv("BENCH_SPARK_STATE", str(rabbitmq.directory.parent))
    tools = brokers.tools_environment(load_broker("rabbitmq"))
    suite = load_suite("rabbitmq-latency-credit-flow")
    trial, *_ = trials_of(suite)
    assert suite.hooks.before
    assert suite.hooks.after
    for hook, credit in ((suite.hooks.before, "{100,50}"), (suite.hooks.after, "{400,200}")):
        environment = tools | hook_environment(suite, trial)
        run_hook(hook_arguments(hook, trial), "before", suite.directory, environment, 30)
        assert evaluated(rabbitmq, "rabbit", "credit_flow_default_credit") == f"{{ok,{credit}}}"


def evaluated(rabbitmq: BrokerStatus, application: str, name: str) -> str:
    """A setting of the running node."""
    [tool] = rabbitmq.broker.rabbitmqctl
    expression = f"application:get_env({application}, {name})."
    told = subprocess.run([tool, "eval", expression], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def watched(broker: Broker, credentials: Credentials, run_id: str, store: Store) -> Monitor:
    """A monitor over a load of which RabbitMQ's management plugin has time to learn."""
    scenario = Scenario.model_validate(
        {
            "load": {"rate_per_second": 1000},
            "phases": {"warmup_seconds": 6.0, "measure_seconds": 600.0, "drain_seconds": 1.0},
            "message": {"bytes": 200},
        }
    )
    clock = Clock.local()
    monitor = Monitor(Ends.of(broker, credentials), run_id, store, clock.now_ns)

    def watch(load: Load) -> None:
        monitor.begin(Timeline(clock.now_ns(), 6 * SECOND, 600 * SECOND, SECOND))
        assert eventually(lambda: monitor.document()["flow"]["polls"] >= 2, timeout_seconds=300)
        monitor.end()
        load.stop()

    run_load(make_plan(scenario, run_id), broker, watch)
    monitor.close()
    return monitor


@pytest.mark.slow
def test_flow_and_cpu_of_a_loaded_broker_are_told(rabbitmq: BrokerStatus, store: Store) -> None:
    broker = rabbitmq.broker
    monitor = watched(broker, resolve_credentials(broker), "flowing", store)
    document = monitor.document()
    assert monitor.problems() == []
    assert document["flow"]["polls"] >= 2
    assert document["flow"]["state"] in ("never", "intermittent", "permanent")
    [used] = document["broker"].values()
    assert 0 < used["cpu_user_share_of_core"] + used["cpu_system_share_of_core"] < 64
    rows = store.read("resources").to_pylist(maps_as_pydicts="strict")
    polls = [row["values"] for row in rows if row["source"] == "flow"]
    assert max(values["connections"] for values in polls) == 2
    assert max(values["channels"] for values in polls) == 2
    assert {row["phase"] for row in rows} == {"warmup", "measure"}


def test_a_login_that_the_management_api_refuses_leaves_the_flow_unknown(
    rabbitmq: BrokerStatus, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    broker = Broker(
        name="r",
        kind="amqp",
        uri="amqp://127.0.0.1",
        username="guest",
        password_file=str(secret),
        management_uri=f"http://127.0.0.1:{rabbitmq.ports['management']}",
    )
    store = Store(tmp_path / "store").open()
    clock = Clock.local()
    monitor = Monitor(Ends.of(broker), "r", store, clock.now_ns)
    monitor.begin(Timeline(clock.now_ns(), SECOND, 600 * SECOND, 0))
    assert eventually(lambda: bool(monitor.problems()))
    monitor.close()
    assert monitor.document()["flow"]["state"] == "unknown"
    [problem] = monitor.problems()
    assert "answers 401" in problem
    assert "hunter2" not in problem
