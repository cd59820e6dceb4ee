"""Whole agents whose load never starts, and those with many connections."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable

import pytest
from agents import run_load, start_load
from patience import eventually
from unit.listening import collecting
from unit.loopbacks import (
    LOOPBACK,
    Watch,
    assert_all_arrived,
    breaking_at,
    pairs,
    plan,
)

from bench_spark.agent import endpoints as ends_module
from bench_spark.agent.agent import AgentTask, run_agent
from bench_spark.agent.protocol import new_token
from bench_spark.agent.tracer import MessageFile
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.driver.control import Failure
from bench_spark.errors import BrokerRefused, EnvironmentNotReady, StoreNotReady
from bench_spark.transports.base import Signal, SignalKind

# -- an agent never raises -------------------------------------------------------------------------


STEPS_BEFORE_START = (
    "make",
    "probe",
    "declare",
    "open_producers",
    "open_consumers",
    "attach",
)


@pytest.mark.parametrize("step", STEPS_BEFORE_START)
def test_what_breaks_before_the_start_is_reported_and_nothing_is_left(
    watch: Watch, step: str
) -> None:
    watch.at = breaking_at(step, BrokerRefused(f"no {step} here"))
    load = run_load(plan(), LOOPBACK)
    assert load.control.failures == [Failure(0, "BrokerRefused", f"no {step} here")]
    assert load.results[0].failure == ("BrokerRefused", f"no {step} here")
    assert load.control.start_at_ns is None
    assert load.control.finished.is_set()
    assert watch.sent.total() == 0


@pytest.mark.parametrize("step", [*STEPS_BEFORE_START, "send", "receive"])
def test_an_unforeseen_error_is_reported_without_its_text(watch: Watch, step: str) -> None:
    watch.at = breaking_at(step, RuntimeError("amqp://user:secret@host"))
    load = run_load(plan(), LOOPBACK)
    ((agent, kind, text),) = [(f.agent, f.kind, f.text) for f in load.control.failures]
    assert (agent, kind) == (0, "BenchError")
    assert "RuntimeError" in text
    assert "secret" not in text
    assert load.results[0].failure == (kind, text)


@pytest.mark.parametrize("step", ["probe", "attach"])
def test_one_agent_that_breaks_before_the_start_sends_the_others_home(
    watch: Watch, step: str
) -> None:
    """The others are ready before it breaks: they must not start without it."""
    turn = threading.Lock()
    seen: list[int] = []

    def second_one_breaks(reached: str) -> None:
        if reached == step:
            with turn:
                seen.append(threading.get_ident())
                is_second = len(seen) == 2
            if is_second:
                time.sleep(0.3)
                raise BrokerRefused("not for you")

    watch.at = second_one_breaks
    load = run_load(plan(agents=2, **pairs(2)), LOOPBACK)
    assert [failure.text for failure in load.control.failures] == ["not for you"]
    assert load.control.start_at_ns is None
    assert sorted(result.failure is None for result in load.results) == [False, True]
    assert watch.sent.total() == 0


def test_a_preflight_that_fails_is_the_agents_failure(watch: Watch) -> None:
    def unreadable() -> None:
        raise StoreNotReady("no marker")

    with collecting(agents=1) as collector:
        ends = Ends.of(LOOPBACK)
        task = AgentTask(plan().assignments[0], ends, collector.address, collector.token)
        assert run_agent(task, preflight=unreadable).failure == ("StoreNotReady", "no marker")
        assert eventually(lambda: len(collector.listener.messages) == 2)
    assert [m["type"] for _, m, _ in collector.listener.messages] == ["failed", "reached"]


def nobody() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "127.0.0.1", listener.getsockname()[1]


def someone_else() -> tuple[str, int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with listener, listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: not a collector\r\n\r\n" * 9)
            connection.recv(65536)

    threading.Thread(target=talk, daemon=True).start()
    return "127.0.0.1", listener.getsockname()[1]


@pytest.mark.parametrize("where", [nobody, someone_else])
def test_no_link_to_the_driver_is_a_result_too(where: Callable[[], tuple[str, int]]) -> None:
    address = where()
    task = AgentTask(plan().assignments[0], Ends.of(LOOPBACK), address, new_token())
    failure = run_agent(task).failure
    assert failure is not None
    assert f"no link to the driver at 127.0.0.1:{address[1]}" in failure[1]


# -- many connections ------------------------------------------------------------------------------


def test_too_few_descriptors_end_the_run_before_anything_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_for: list[int] = []

    def refuse(connections: int, files_each: int) -> None:
        assert files_each == 1
        asked_for.append(connections)
        raise EnvironmentNotReady("too few open files are allowed")

    monkeypatch.setattr(ends_module, "make_room_for", refuse)
    nobody = Broker(kind="amqp", uri="amqp://127.0.0.1:1/")
    load = run_load(plan(**pairs(3)), nobody)
    assert asked_for == [6]
    expected = Failure(0, "EnvironmentNotReady", "too few open files are allowed")
    assert load.control.failures == [expected]


def test_open_lanes_are_served_while_another_agent_opens_its_own(watch: Watch) -> None:
    """Unserved lanes would miss their heartbeats, and what happens to them would not be heard."""
    opening: list[int] = []
    was_heard: list[bool] = []

    def be_slow_in_the_second_agent(step: str) -> None:
        if step != "open_consumers":
            return
        opening.append(threading.get_ident())
        if len(opening) == 2:
            watch.signals = [Signal(SignalKind.LOST, time.time_ns(), 0, reason="reset by peer")]
            was_heard.append(eventually(lambda: not watch.signals))

    watch.at = be_slow_in_the_second_agent
    load = run_load(plan(agents=2, **pairs(2), load={"rate_per_second": 1000}), LOOPBACK)
    assert was_heard == [True]
    assert [failure.kind for failure in load.control.failures] == ["LaneLost"]
    assert load.accounts().closes


def test_descriptors_above_a_thousand_are_no_obstacle(watch: Watch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2100:
        pytest.skip(f"this system allows {hard} open files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    others: list[int] = []

    def open_many_connections(step: str) -> None:
        if step == "open_consumers":
            others.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1100))

    watch.at = open_many_connections
    try:
        load = run_load(plan(load={"rate_per_second": 1000}), LOOPBACK)
    finally:
        for descriptor in others:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_all_arrived(load)


# -- threads of an agent ---------------------------------------------------------------------------


class BrokenWriter:
    """Fails as no writer should: not with an error of ours."""

    def write(self, number: int, first_row: int, rows: object) -> MessageFile:
        raise ValueError("amqp://user:password@host")


def test_a_thread_that_dies_ends_the_run_and_names_the_cause() -> None:
    long = {"warmup_seconds": 0, "measure_seconds": 600, "drain_seconds": 2}
    load = start_load(plan(trace="all", phases=long), LOOPBACK, lambda setup: BrokenWriter())
    load.wait()
    (failure,) = load.control.failures
    assert failure.kind == "BenchError"
    assert "unexpected ValueError in BrokenWriter.write" in failure.text
    assert "thread 'tracer'" in failure.text
    assert "password" not in failure.text
    assert load.results[0].failure == (failure.kind, failure.text)
    assert load.total("producer", "sent") > 0
