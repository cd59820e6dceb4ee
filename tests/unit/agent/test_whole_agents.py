"""Whole agents, real links and a real collector; only Spark and the broker are missing."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load, start_load
from unit.listening import collecting, eventually
from unit.loopbacks import Watch, WatchedProducers, repeated

from bench_spark.agent import ends as ends_module
from bench_spark.agent import loop as loop_module
from bench_spark.agent import window_watch
from bench_spark.agent.agent import AgentResult, AgentTask, run_agent
from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.agent.rows import EventRow
from bench_spark.agent.sampling import seconds_of
from bench_spark.agent.wire import Message, new_token
from bench_spark.collector.control import Failure, RunControl
from bench_spark.collector.evidence import (
    accounts_of,
    counted_while_measured,
    measured_span,
    samples_of,
)
from bench_spark.collector.server import CollectorServer
from bench_spark.errors import BrokerRefused, EnvironmentNotReady, LaneLost, StoreNotReady
from bench_spark.measure.clock import NANOSECONDS, Clock
from bench_spark.plan import Plan, make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.ends import Ends
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import Outcomes, Received, Signal, SignalKind, no_outcomes
from bench_spark.transports.loopback import transport as loopback

LOOPBACK = Broker(kind="loopback")
BOTH_PHASES = ("warmup", "measure")


def plan(run_id: str = "run-1", **keys: Any) -> Plan:
    defaults = {"phases": {"warmup_seconds": 0.2, "measure_seconds": 0.5, "drain_seconds": 5}}
    return make_plan(Scenario.model_validate(defaults | keys), run_id)


def pairs(count: int) -> dict[str, int]:
    return {"producers": count, "consumers": count, "destinations": count}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Agents of this test use watched transports; at the end none of them has left anything."""
    watching = Watch()
    before = set(loopback._BROKERS)
    monkeypatch.setattr(ends_module, "make_transport", watching.make)
    # On a busy machine even the last message of the schedule is to go out.
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", 30 * NANOSECONDS)
    yield watching
    assert set(loopback._BROKERS) <= before


def sent(load: Load, phase: str = "measure") -> int:
    return load.total(PRODUCER, "sent", phase)


def assert_all_arrived(load: Load) -> None:
    assert load.control.failures == []
    assert [result.failure for result in load.results] == [None] * len(load.results)
    for phase in BOTH_PHASES:
        assert sent(load, phase) == load.total(CONSUMER, "received", phase)
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.sent == accounts.received_once == sent(load)
    assert load.histogram("latency").count == sent(load)


# -- mode rate -----------------------------------------------------------------------------------


def test_every_message_due_is_sent_and_received(watch: Watch) -> None:
    load = run_load(
        plan(producers=3, consumers=4, destinations=2, load={"rate_per_second": 3000}), LOOPBACK
    )
    assert_all_arrived(load)
    assert load.plan.expected_messages == 1500
    assert load.total(PRODUCER, "due") == sent(load) == 1500
    assert load.total(PRODUCER, "due", "warmup") == sent(load, "warmup") == 600
    assert load.total(CONSUMER, "bytes") == 1500 * 1000
    assert load.total(CONSUMER, "duplicates") == load.total(CONSUMER, "out_of_order") == 0
    assert watch.sent == {0: 700, 1: 700, 2: 700}
    for measure in ("send_lag", "delivery_latency", "insert_duration"):
        assert load.histogram(measure).count > 0


def test_slow_consumers_take_messages_at_their_own_rate(watch: Watch) -> None:
    load = run_load(
        plan(
            **pairs(2),
            load={"rate_per_second": 400},
            consumer={"rate_per_second": 100},
            phases={"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 10},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    by_tick = {row.tick: row.counters["received"] for _, row in load.rows if row.role == CONSUMER}
    assert max(by_tick.values()) <= 2 * 101, "two consumers at 100 a second"
    latency = load.histogram("latency")
    assert latency.max_us >= 900_000, "a message is received when it is taken"


@pytest.mark.parametrize("mode", ["rate", "window", "maximum"])
def test_messages_that_take_time_all_arrive_in_the_end(watch: Watch, mode: str) -> None:
    load = run_load(
        plan(
            load={"mode": mode, "messages": 300, "rate_per_second": 3000, "in_flight": 5},
            consumer={"processing_us": 1000},
            phases={"warmup_seconds": 0, "drain_seconds": 10},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert sent(load) == 300


def test_a_rate_that_changes_is_kept_in_every_step(watch: Watch) -> None:
    steps = [{"seconds": 1, "rate_per_second": 50}, {"seconds": 1, "rate_per_second": 4000}]
    load = run_load(
        plan(
            load={"rate_per_second": 1000, "steps": steps},
            phases={"warmup_seconds": 0.5, "measure_seconds": 2, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    due: dict[tuple[str, int], int] = {}
    for _, row in load.rows:
        if row.role == PRODUCER:
            due[row.phase, row.tick] = due.get((row.phase, row.tick), 0) + row.counters.get(
                "due", 0
            )
    assert sum(n for (phase, _), n in due.items() if phase == "warmup") == 500
    assert [n for (phase, _), n in sorted(due.items()) if phase == "measure" and n] == [50, 4000]
    assert load.histogram("send_lag").negative == 0


@pytest.mark.parametrize("mode", ["rate", "maximum", "window"])
def test_sizes_that_change_are_sent_received_and_counted(mode: str, watch: Watch) -> None:
    steps = [{"seconds": 0.4, "bytes": 50}, {"seconds": 0.4, "bytes": 30_000}]
    load = run_load(
        plan(
            load={"mode": mode, "rate_per_second": 1000, "in_flight": 20},
            message={"bytes": 400, "steps": [*steps, {"seconds": 0.1, "bytes": 60}]},
            phases={"warmup_seconds": 0.3, "measure_seconds": 1.2, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    rows = {role: Counter[str]() for role in (PRODUCER, CONSUMER)}
    for _, row in load.rows:
        rows[row.role].update(row.counters)
    assert rows[PRODUCER]["bytes"] == rows[CONSUMER]["bytes"]
    if mode == "rate":
        sent = 300 * 400 + 400 * 50 + 400 * 30_000 + 400 * 60
        # At each change a message may go out on the other side of it.
        assert rows[PRODUCER]["bytes"] == pytest.approx(sent, rel=0.1)


def test_a_message_never_leaves_before_it_is_due(watch: Watch) -> None:
    load = run_load(plan(load={"rate_per_second": 1000}), LOOPBACK)
    assert load.histogram("send_lag").negative == 0
    assert load.histogram("latency").negative == 0


def test_messages_go_out_in_batches_when_the_last_of_them_is_due(watch: Watch) -> None:
    """However often arrivals wake the loop: a message on its own costs as much as a batch."""
    load = run_load(plan(load={"rate_per_second": 10_000}), LOOPBACK)
    assert_all_arrived(load)
    shorter = sum(size < 5 for size in watch.batches)
    longer = sum(size > 5 for size in watch.batches)
    assert shorter <= longer + 1, (
        "0.5 ms of schedule; less is what is left when late, or at the end"
    )


def test_rows_say_how_busy_the_agent_was_and_how_far_its_clock_may_be_off(watch: Watch) -> None:
    load = run_load(plan(phases={"warmup_seconds": 0, "measure_seconds": 1.2}), LOOPBACK)
    health = [row for _, row in load.rows if row.cpu_seconds is not None]
    assert health
    assert all((row.clock_offset_ns, row.clock_bound_ns) == (0, 0) for row in health)
    assert all((row.cpu_seconds or 0) > 0 for row in health)


def test_the_cpu_of_an_unfinished_second_is_told_too(watch: Watch) -> None:
    quick = {"mode": "maximum", "messages": 1000}
    load = run_load(plan(load=quick, phases={"warmup_seconds": 0, "measure_seconds": 1}), LOOPBACK)
    _, last = load.rows[-1]
    assert last.cpu_seconds is not None


def test_confirms_are_recorded_and_settle_the_accounts(watch: Watch) -> None:
    watch.confirms = True
    load = run_load(plan(load={"rate_per_second": 2000}), LOOPBACK)
    assert_all_arrived(load)
    assert load.total(PRODUCER, "confirmed") == sent(load)
    assert load.histogram("confirm_latency").count == sent(load)


@pytest.mark.parametrize("size", [8, 31])
def test_tiny_bodies_are_timed_but_not_accounted_for(watch: Watch, size: int) -> None:
    load = run_load(plan(message={"bytes": size}, load={"rate_per_second": 1000}), LOOPBACK)
    total = sum(load.total(CONSUMER, "received", phase) for phase in BOTH_PHASES)
    assert total == sum(sent(load, phase) for phase in BOTH_PHASES) == 700
    assert load.total_of_all_phases(CONSUMER, "bytes") == 700 * size
    assert load.histogram("latency").count > 0
    assert load.control.failures == []


def test_two_agents_in_processes_of_their_own_add_up() -> None:
    planned = plan(
        agents=2,
        **pairs(4),
        load={"rate_per_second": 2000},
        phases={"warmup_seconds": 0.3, "measure_seconds": 1, "drain_seconds": 5},
    )
    token, clock = new_token(), Clock.local()
    server = CollectorServer(("127.0.0.1", 0), token, 2, clock)
    rows: dict[tuple[int, int], EventRow] = {}

    def keep(agent: int, attempt: int, new: list[EventRow]) -> None:
        rows.update({(agent, row.row_number): row for row in new})

    control = RunControl(planned, clock.now_ns, server.send, keep)
    server.start(control)
    tasks = [
        AgentTask(assignment, Ends.of(LOOPBACK), ("127.0.0.1", server.port), token)
        for assignment in planned.assignments
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(run_agent, tasks, chunksize=1)
    server.close()
    for result in results:
        keep(result.agent, 0, result.rows)
    load = Load(
        planned, control, server, results, [(agent, row) for (agent, _), row in rows.items()]
    )
    assert_all_arrived(load)
    assert load.total(PRODUCER, "due") == planned.expected_messages == 2000
    for agent in range(2):
        assert load.total(PRODUCER, "due", agent=agent) == 1000
    assert all("rate" not in str(task.token) and task.token not in repr(task) for task in tasks)


# -- a number of messages ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["rate", "maximum", "window"])
def test_a_message_count_is_kept_exactly(watch: Watch, mode: str) -> None:
    load = run_load(
        plan(
            **pairs(2),
            load={"mode": mode, "messages": 777, "rate_per_second": 2000, "in_flight": 5},
            phases={"warmup_seconds": 0.1, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert sent(load) == load.total(PRODUCER, "due") == 777


def test_a_slow_schedule_sends_its_last_message_too(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three producers in turn: the share of one is due only after the phase has ended."""
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", NANOSECONDS // 20)
    load = run_load(
        plan(
            agents=3,
            **pairs(3),
            load={"rate_per_second": 10, "messages": 4},
            phases={"warmup_seconds": 0, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert sent(load) == load.total(PRODUCER, "due") == 4


def test_consumers_on_their_own_end_with_the_last_message(watch: Watch) -> None:
    load = run_load(
        plan(
            agents=2,
            placement="split",
            load={"mode": "maximum", "messages": 500},
            phases={"warmup_seconds": 0, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert (sent(load), load.total(CONSUMER, "received", agent=1)) == (500, 500)


# -- bounds --------------------------------------------------------------------------------------


def test_maximum_pauses_at_the_backlog_limit(watch: Watch) -> None:
    held_until = time.monotonic() + 0.4
    watch.delay = lambda: time.monotonic() < held_until
    load = run_load(
        plan(
            load={"mode": "maximum", "backlog_limit_bytes": 50_000},
            message={"bytes": 1000},
            phases={"warmup_seconds": 0, "measure_seconds": 0.6, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight_together == 50
    assert sent(load) > 50


def test_a_full_destination_is_back_pressure_and_loses_nothing(watch: Watch) -> None:
    watch.capacity_messages = 7
    load = run_load(
        plan(load={"mode": "maximum"}, phases={"warmup_seconds": 0.1, "measure_seconds": 0.3}),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight_together <= 7


@pytest.mark.parametrize("in_flight", [1, 7])
def test_a_window_never_has_more_in_flight_than_allowed(watch: Watch, in_flight: int) -> None:
    load = run_load(
        plan(
            **pairs(3),
            load={"mode": "window", "in_flight": in_flight},
            phases={"warmup_seconds": 0.1, "measure_seconds": 0.3},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight == {0: in_flight, 1: in_flight, 2: in_flight}
    assert min(watch.sent.values()) > 0.5 * max(watch.sent.values())


def foreign_twin(received: Received) -> Received:
    """Every message comes with one of another run that is otherwise just like it."""
    count = len(received)
    twins = repeated(received, np.repeat(np.arange(count), 2))
    twins.head = twins.head.copy()
    twins.head["run_tag"][1::2] += 1
    return twins


@pytest.mark.parametrize("mode", ["window", "maximum"])
def test_messages_of_another_run_neither_free_a_window_nor_the_backlog(
    watch: Watch, mode: str
) -> None:
    watch.alter = foreign_twin
    load = run_load(
        plan(
            load={"mode": mode, "in_flight": 5, "backlog_limit_bytes": 5000},
            phases={"warmup_seconds": 0.1, "measure_seconds": 0.3},
        ),
        LOOPBACK,
    )
    assert load.total(CONSUMER, "foreign") > 0
    assert watch.most_in_flight_together <= 5
    assert load.accounts().closes


def test_a_window_that_nothing_returns_to_ends_the_run_with_a_reason(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_watch, "STALL_NS", NANOSECONDS // 5)
    watch.delay = lambda: True
    load = run_load(plan(load={"mode": "window"}, phases={"measure_seconds": 30}), LOOPBACK)
    assert [failure.kind for failure in load.control.failures] == ["RunError"]
    assert "window is stalled" in load.control.failures[0].text
    accounts = load.accounts()
    assert (accounts.closes, accounts.received_once) == (True, 0)


# -- filling a window first ----------------------------------------------------------------------


def test_a_window_is_full_before_any_consumer_attaches(watch: Watch) -> None:
    seen: list[tuple[int, int]] = []
    watch.at = lambda step: (
        seen.append((watch.sent.total(), watch.received.total())) if step == "attach" else None
    )
    load = run_load(
        plan(
            **pairs(3),
            load={"mode": "window", "in_flight": 700, "fill_first": True},
            phases={"warmup_seconds": 0.1, "measure_seconds": 0.3},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert seen == [(2100, 0)]
    assert watch.most_in_flight == {0: 700, 1: 700, 2: 700}


def test_without_asking_consumers_attach_before_anything_is_sent(watch: Watch) -> None:
    seen: list[int] = []
    watch.at = lambda step: seen.append(watch.sent.total()) if step == "attach" else None
    run_load(plan(load={"mode": "window"}), LOOPBACK)
    assert seen == [0]


def test_a_window_that_the_broker_does_not_take_ends_the_run_with_a_reason(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_watch, "STALL_NS", NANOSECONDS // 5)
    watch.capacity_messages = 60
    load = run_load(
        plan(load={"mode": "window", "fill_first": True}, phases={"measure_seconds": 30}), LOOPBACK
    )
    [failure] = load.control.failures
    assert "cannot be filled" in failure.text
    # What was taken is received all the same.
    assert load.accounts().received_once + load.total(CONSUMER, "received", "warmup") == 60


def test_a_consumer_that_cannot_attach_later_is_a_failure_of_the_run(watch: Watch) -> None:
    def refuse(step: str) -> None:
        if step == "attach":
            raise BrokerRefused("no such queue")

    watch.at = refuse
    load = run_load(plan(load={"mode": "window", "fill_first": True}), LOOPBACK)
    assert [failure.text for failure in load.control.failures] == ["no such queue"]
    assert load.accounts().closes


# -- samples at the consumer ---------------------------------------------------------------------


def sampled_plan(samples: int = 20, agents: int = 1, **load: Any) -> Plan:
    return plan(
        **pairs(2),
        agents=agents,
        load={"mode": "window", "in_flight": 50} | load,
        sampling={"samples": samples, "threshold_seconds": 0.005},
        phases={"warmup_seconds": 0, "measure_seconds": 30, "drain_seconds": 5},
    )


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("mode", ["window", "maximum"])
def test_a_run_ends_when_every_pair_has_its_samples(watch: Watch, agents: int, mode: str) -> None:
    load = run_load(sampled_plan(agents=agents, mode=mode), LOOPBACK)
    assert_all_arrived(load)
    found = samples_of(load.plan, load.control)
    assert found is not None
    assert [one.agent for one in found] == list(range(agents))
    samples = np.concatenate([one.samples for one in found])
    assert [(int(row["pair"]), int(row["number"])) for row in samples] == [
        (pair, number) for pair in range(2) for number in range(20)
    ]
    assert np.all(seconds_of(samples) > 0.005)
    measured_from, measured_until = measured_span(load.plan, load.control)
    assert measured_from is not None
    assert measured_until is not None
    assert measured_until - measured_from < 25, "the cap is 30 s"
    assert samples["started_ns"].min() / 1e9 >= measured_from
    assert samples["ended_ns"].max() / 1e9 <= measured_until + 0.001


def test_what_was_received_while_it_was_measured_does_not_count_the_drain(watch: Watch) -> None:
    load = run_load(sampled_plan(in_flight=3000), LOOPBACK)
    counted = counted_while_measured(load.plan, load.control)
    assert counted is not None
    assert counted.sent == sent(load)
    received = load.total(CONSUMER, "received")
    assert received - 6000 <= counted.received <= received


def test_the_first_windows_are_not_sampled(watch: Watch) -> None:
    """Two windows are received before a sample begins."""
    arrivals: list[tuple[int, int]] = []

    def note(received: Received) -> Received:
        arrivals.append((int(received.received_ns[0]), watch.received[0]))
        return received

    watch.alter = note
    load = run_load(
        plan(
            load={"mode": "window", "in_flight": 300},
            sampling={"samples": 3, "threshold_seconds": 0.001},
            phases={"warmup_seconds": 0, "measure_seconds": 30},
        ),
        LOOPBACK,
    )
    found = samples_of(load.plan, load.control)
    assert found is not None
    began_ns = int(found[0].samples["started_ns"][0])
    assert dict(arrivals)[began_ns] >= 600
    assert all(seen < 600 for at_ns, seen in arrivals if at_ns < began_ns)


def test_a_run_that_gets_too_few_samples_ends_at_its_time(watch: Watch) -> None:
    short = {"warmup_seconds": 0, "measure_seconds": 0.3, "drain_seconds": 5}
    load = run_load(
        plan(load={"mode": "window"}, sampling={"samples": 10_000}, phases=short), LOOPBACK
    )
    assert_all_arrived(load)
    found = samples_of(load.plan, load.control)
    assert found is not None
    assert 0 < len(found[0].samples) <= 30


# -- what is lost, and what comes twice ----------------------------------------------------------


def test_planted_losses_and_duplicates_are_counted_exactly(watch: Watch) -> None:
    dropped = 0

    def tamper(received: Received) -> Received:
        """Drop every message whose number ends in 3, deliver those that end in 5 twice."""
        nonlocal dropped
        last_digit = received.head["sequence"] % 10
        dropped += int(np.count_nonzero(last_digit == 3))
        times = np.where(last_digit == 3, 0, np.where(last_digit == 5, 2, 1))
        return repeated(received, np.repeat(np.arange(len(received)), times))

    watch.alter = tamper
    load = run_load(
        plan(
            load={"rate_per_second": 2000},
            phases={"warmup_seconds": 0, "measure_seconds": 0.5, "drain_seconds": 0.2},
        ),
        LOOPBACK,
    )
    accounts = load.accounts()
    assert (accounts.sent, accounts.lost, accounts.received_once) == (1000, 100, 900)
    assert accounts.missing[0][0] == (3, 4)
    assert load.total(CONSUMER, "duplicates") == 100
    assert load.total(CONSUMER, "received") == 1000
    assert load.histogram("latency").count == 900
    assert dropped == 100


def test_the_driver_knows_the_final_numbers_before_it_hears_that_sending_is_over(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could take everything for arrived while the last messages are on their way."""
    heard: list[Message] = []
    on_message = RunControl.on_message

    def listen(control: RunControl, agent: int, message: Message, payload: bytes) -> None:
        heard.append(message)
        on_message(control, agent, message, payload)

    monkeypatch.setattr(RunControl, "on_message", listen)
    run_load(plan(load={"rate_per_second": 2000}), LOOPBACK)
    over = next(place for place, m in enumerate(heard) if m.get("step") == "produced")
    progress = [message for message in heard[:over] if message["type"] == "progress"]
    assert progress[-1]["sent"] == heard[over]["sent"] == 1400


# -- ending early --------------------------------------------------------------------------------


def test_a_stop_in_mid_run_keeps_what_was_measured(watch: Watch) -> None:
    def stop_soon(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 500)
        load.stop()

    began = time.monotonic()
    load = run_load(
        plan(
            load={"rate_per_second": 2000},
            phases={"warmup_seconds": 0.1, "measure_seconds": 60, "drain_seconds": 60},
        ),
        LOOPBACK,
        stop_soon,
    )
    assert time.monotonic() - began < 20
    assert_all_arrived(load)
    assert sent(load) > 100
    assert load.total(PRODUCER, "due") >= sent(load)
    assert watch.deleted == ["loopback-0"]


def test_a_stop_before_the_start_sends_nothing(watch: Watch) -> None:
    hold = threading.Event()
    watch.at = lambda step: hold.wait(10) and None if step == "attach" else None
    load = start_load(plan(phases={"measure_seconds": 60}), LOOPBACK)
    assert eventually(lambda: "declared" in load.control.agents[0].reached)
    load.stop()
    hold.set()
    load.wait(20)
    assert load.control.start_at_ns is None
    assert watch.sent.total() == 0
    assert watch.deleted == ["loopback-0"]
    assert load.results == [AgentResult(agent=0)]


def test_a_driver_that_dies_in_mid_run_loses_no_rows(watch: Watch) -> None:
    load = start_load(
        plan(load={"rate_per_second": 1000}, phases={"warmup_seconds": 0, "measure_seconds": 60}),
        LOOPBACK,
    )
    assert eventually(lambda: watch.received.total() > 300)
    load.server.close()
    load.wait(20)
    assert sent(load) == load.total(CONSUMER, "received") == watch.sent.total()
    assert load.results[0].rows
    assert watch.deleted == ["loopback-0"]


# -- an agent never raises -----------------------------------------------------------------------


def breaking_at(wanted: str, error: Exception) -> Callable[[str], None]:
    """Raise in the agent of this test's second thread, or in the only one."""

    def at(step: str) -> None:
        if step == wanted:
            raise error

    return at


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


# -- failures while the load runs ----------------------------------------------------------------


def assert_partial_result_is_kept(load: Load, watch: Watch, text: str) -> None:
    assert [failure.text for failure in load.control.failures] == [text]
    assert load.control.failures[0].kind == "LaneLost"
    assert load.results[0].failure == ("LaneLost", text)
    assert sum(sent(load, phase) for phase in BOTH_PHASES) == watch.sent.total() > 100
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.sent == sent(load)
    assert watch.deleted == ["loopback-0"]


@pytest.mark.parametrize("step", ["send", "receive"])
def test_a_transport_that_breaks_in_mid_run_leaves_what_was_measured(
    watch: Watch, step: str
) -> None:
    def break_later(reached: str) -> None:
        if reached == step and watch.received.total() > 200:
            raise LaneLost("the broker is gone")

    watch.at = break_later
    load = run_load(plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK)
    assert_partial_result_is_kept(load, watch, "the broker is gone")


def test_a_connection_that_will_not_close_costs_nothing_measured(watch: Watch) -> None:
    watch.at = breaking_at("close_producers", LaneLost("reset by peer"))
    load = run_load(plan(load={"rate_per_second": 1000}), LOOPBACK)
    assert load.results[0].failure == ("LaneLost", "reset by peer")
    accounts = load.accounts()
    assert (accounts.closes, accounts.received_once) == (True, 500)


def test_a_lane_that_is_lost_ends_the_run_and_leaves_what_was_measured(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 200)
        watch.signals = [Signal(SignalKind.LOST, time.time_ns(), 0, reason="reset by peer")]

    load = run_load(
        plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK, lose_a_lane
    )
    assert_partial_result_is_kept(load, watch, "loopback:0: reset by peer")
    assert load.total_of_all_phases(PRODUCER, "errors") == 1


def test_a_lane_that_comes_back_costs_the_run_nothing_but_a_gap(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 100)
        lost_ns = time.time_ns()
        lost = Signal(SignalKind.LOST, lost_ns, 0, reason="reset by peer", is_reopening=True)
        watch.signals = [lost]
        assert eventually(lambda: watch.signals == [])
        time.sleep(0.3)
        watch.signals = [Signal(SignalKind.REOPENED, lost_ns + 250_000_000, 0, generation=1)]

    load = run_load(
        plan(**pairs(2), load={"rate_per_second": 1000}, phases={"measure_seconds": 1}),
        LOOPBACK,
        lose_a_lane,
    )
    assert load.control.failures == []
    assert_all_arrived(load)
    assert load.total_of_all_phases(PRODUCER, "errors") == 1
    assert load.total_of_all_phases(PRODUCER, "reconnects") == 1
    assert load.total_of_all_phases(PRODUCER, "disconnected_ns") == pytest.approx(250_000_000)
    [outage] = load.control.agents[0].reports["closed"]["outages"]
    assert (outage["role"], outage["member"], outage["reason"]) == (PRODUCER, 0, "reset by peer")
    assert outage["down_seconds"] == pytest.approx(0.25)


def test_a_lane_that_does_not_come_back_fails_the_run_and_counts_once(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 100)
        at_ns = time.time_ns()
        watch.signals = [
            Signal(SignalKind.LOST, at_ns, 0, reason="reset by peer", is_reopening=True),
            Signal(SignalKind.LOST, at_ns + 100, 0, reason="not reopened within 1 s"),
        ]

    load = run_load(
        plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK, lose_a_lane
    )
    assert_partial_result_is_kept(load, watch, "loopback:0: not reopened within 1 s")
    assert load.total_of_all_phases(PRODUCER, "errors") == 1


def test_a_failure_in_one_agent_stops_the_other_with_its_result(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 200)
        watch.signals = [Signal(SignalKind.LOST, time.time_ns(), 0, reason="reset by peer")]

    load = run_load(
        plan(agents=2, **pairs(2), load={"rate_per_second": 2000}, phases={"measure_seconds": 60}),
        LOOPBACK,
        lose_a_lane,
    )
    assert len(load.control.failures) == 1
    assert sum(sent(load, phase) for phase in BOTH_PHASES) == watch.sent.total()
    assert load.accounts().closes
    assert sorted(watch.deleted) == ["loopback-0", "loopback-1"]


def test_blocked_time_is_booked_also_while_it_lasts(watch: Watch) -> None:
    blocked_at: list[int] = []

    def block(load: Load) -> None:
        assert load.control.start_at_ns is not None
        blocked_at.append(load.control.start_at_ns + 100_000_000)
        assert eventually(lambda: watch.received.total() > 50)
        watch.signals = [Signal(SignalKind.BLOCKED, blocked_at[0], 0)]

    load = run_load(
        plan(load={"rate_per_second": 500}, phases={"warmup_seconds": 0, "measure_seconds": 0.6}),
        LOOPBACK,
        block,
    )
    assert load.total(PRODUCER, "blocked_ns") >= 500_000_000
    assert load.control.failures == []


# -- many connections ----------------------------------------------------------------------------


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


# -- one end only --------------------------------------------------------------------------------


def test_without_consumers_a_number_of_messages_goes_into_a_sink(watch: Watch) -> None:
    """More than a loopback destination could hold."""
    watch.confirms = True
    watch.capacity_messages = 100
    many = {"mode": "maximum", "messages": 20_000}
    phases = {"warmup_seconds": 0, "drain_seconds": 5}
    load = run_load(plan(consumers=0, load=many, phases=phases), LOOPBACK)
    assert load.control.failures == []
    assert sent(load) == load.total(PRODUCER, "confirmed") == 20_000
    assert load.total(CONSUMER, "received") == 0
    assert accounts_of(load.plan, load.control) is None


@pytest.mark.parametrize("keep", [False, True])
def test_what_was_made_is_deleted_unless_it_is_to_be_kept(watch: Watch, keep: bool) -> None:
    run_load(plan(consumers=0, keep_destinations=keep), LOOPBACK)
    assert watch.deleted == ([] if keep else ["loopback-0"])


def test_what_was_made_for_a_load_that_never_started_is_not_kept(watch: Watch) -> None:
    def fail(step: str) -> None:
        if step == "open_producers":
            raise BrokerRefused("not today")

    watch.at = fail
    run_load(plan(consumers=0, keep_destinations=True), LOOPBACK)
    assert watch.deleted == ["loopback-0"]


@pytest.fixture
def slow_confirmations(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are confirmed a second after the first question about them, all at once."""
    watch.confirms = True
    original = WatchedProducers.outcomes
    asked: list[float] = []

    def late(producers: WatchedProducers) -> Outcomes:
        if not producers.in_flight():
            return no_outcomes()
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 1:
            return no_outcomes()
        asked.clear()
        return original(producers)

    monkeypatch.setattr(WatchedProducers, "outcomes", late)


@pytest.mark.usefixtures("slow_confirmations")
def test_publishing_a_number_lasts_from_the_first_message_to_the_last_confirmation() -> None:
    """A client that buffers would else seem as fast as its buffer is large, or have to send what
    it has buffered in the warm-up first."""
    phases = {"warmup_seconds": 0.5, "drain_seconds": 5}
    few = {"mode": "maximum", "messages": 10}
    load = run_load(plan(consumers=0, load=few, phases=phases), LOOPBACK)
    began, ended = measured_span(load.plan, load.control)
    assert began is not None
    assert ended is not None
    assert load.control.start_at_ns is not None
    assert began - load.control.start_at_ns / NANOSECONDS > 0.9
    assert ended - began > 0.9
    assert load.total(PRODUCER, "confirmed") == sent(load) == 10
    assert load.total(PRODUCER, "confirmed", "warmup") == sent(load, "warmup") > 0
