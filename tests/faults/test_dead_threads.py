"""Threads of the driver that die, and Spark stages that fail: the run ends and names the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import pytest
from whole_runs import CarryOut

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_BUG, EXIT_DEGRADED, BenchError, EnvironmentNotReady
from bench_spark.process import thread_errors
from bench_spark.spark import job
from bench_spark.spark import run as run_module
from bench_spark.spark.metrics import RollingMetrics

# Much longer than the run lasts once its thread is dead.
LONG = {"phases": {"warmup_seconds": 0, "measure_seconds": 600, "drain_seconds": 2}}


def break_down(*_: object) -> NoReturn:
    raise ValueError("amqp://user:password@host")


def test_a_thread_that_dies_in_mid_run_ends_it_with_what_was_measured(
    loopback_broker: Broker, carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "compact_overdue", break_down)
    outcome = carry_out(loopback_broker, live=True, **LONG)
    assert (outcome.status, outcome.exit_code) == ("degraded", EXIT_DEGRADED)
    assert outcome.counts["sent"] > 0
    (reason,) = [one for one in outcome.document["reasons"] if "committer" in one]
    assert "unexpected ValueError in break_down" in reason
    assert "password" not in str(outcome.document)
    assert thread_errors().take() is None


def test_a_thread_that_dies_before_the_load_ends_the_run(
    loopback_broker: Broker, carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RollingMetrics, "make_ready", break_down)
    with pytest.raises(BenchError, match=r"unexpected ValueError in break_down.*warming") as ended:
        carry_out(loopback_broker, live=True, **LONG)
    assert ended.value.exit_code == EXIT_BUG


def test_a_stage_that_cannot_run_names_the_error_of_its_python(
    loopback_broker: Broker, carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Callable[[Iterable[int]], Iterable[int]]:
        # Pickled by its module's name, which only this process knows.
        return _work

    monkeypatch.setattr(job, "in_task", missing)
    with pytest.raises(EnvironmentNotReady) as refused:
        carry_out(loopback_broker, **LONG)
    assert str(refused.value).startswith("the Spark stage failed: ")
    assert f"No module named '{__name__}'" in str(refused.value)


def test_agents_that_do_not_start_in_time_end_the_run_as_not_ready(
    loopback_broker: Broker, carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of no module, so that it is pickled by its code.
    sleep = eval("lambda numbers: __import__('time').sleep(5) or []", {"__name__": "__main__"})
    monkeypatch.setattr(job, "in_task", lambda *_: sleep)
    monkeypatch.setattr(run_module, "start_timeout", lambda spark: 1.0)
    with pytest.raises(EnvironmentNotReady, match="1 of 1 agent did not start within 1 s"):
        carry_out(loopback_broker, **LONG)


def _work(numbers: Iterable[int]) -> Iterable[int]:
    return numbers
