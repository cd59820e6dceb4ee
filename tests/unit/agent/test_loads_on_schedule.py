"""Whole agents that keep a schedule, or send a number of messages."""

from __future__ import annotations

import multiprocessing
from collections import Counter

import pytest
from agents import Load, run_load
from unit.loopbacks import (
    BOTH_PHASES,
    LOOPBACK,
    Watch,
    assert_all_arrived,
    pairs,
    plan,
    sent,
)

from bench_spark.agent import loop as loop_module
from bench_spark.agent.agent import AgentTask, run_agent
from bench_spark.agent.protocol import EventRow, new_token
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.ends import Ends
from bench_spark.core.clock import NANOSECONDS, Clock
from bench_spark.driver.control import RunControl
from bench_spark.driver.server import CollectorServer
from bench_spark.transports.batches import Received

# -- mode rate -------------------------------------------------------------------------------------


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
    sizes: list[int] = []

    def note_sizes(received: Received) -> Received:
        sizes.extend(received.size.tolist())
        return received

    watch.alter = note_sizes
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
    assert rows[CONSUMER]["bytes"] == sum(sizes)
    # On a busy machine a step may pass without a message.
    changes = [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]
    assert changes == [size for size in (400, 50, 30_000, 60) if size in changes]
    assert len(changes) > 1


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


# -- a number of messages --------------------------------------------------------------------------


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
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", NANOSECONDS // 2)
    load = run_load(
        plan(
            agents=3,
            **pairs(3),
            load={"rate_per_second": 1, "messages": 4},
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
