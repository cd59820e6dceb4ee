"""RabbitMQ that is restarted, killed, out of memory, or robbed of a queue under load."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from agents import Load, run_load
from fault_records import Seen
from restartable import Restartable, restartable
from whole_runs import CarryOut, Loading, Outcome

from bench_spark.agent.recorder import PRODUCER
from bench_spark.brokers.rabbitmq import RabbitMQRecipe
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan

RATE = 500
"""Messages a second: what is tested is what becomes of each, not how many fit."""
RESUMED_WITHIN_SECONDS = 5.0
NOTICED_WITHIN_SECONDS = 30.0
"""Half of the load. On an idle machine it is well below 2 s; the fault table has what was seen."""
BLOCKED_SECONDS = 6.0


@pytest.fixture(scope="module")
def node_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    with restartable(RabbitMQRecipe(), tmp_path_factory.mktemp("rabbitmq")) as made:
        yield made


@pytest.fixture
def node(node_of_our_own: Restartable) -> Restartable:
    node_of_our_own.start()
    return node_of_our_own


def resumed_at_ns(outcome: Outcome, since_ns: int) -> int:
    """The start of the first second, since that moment, in which messages arrived again."""
    rows = outcome.events
    rows = rows[(rows.role == "consumer") & (rows.received > 0)]
    starts = rows.tick_start.astype("datetime64[ns, UTC]").astype("int64")
    return int(starts[starts + 1_000_000_000 > since_ns].min())


def all_in_all(outcome: Outcome) -> str:
    counts = outcome.counts
    return (
        f"{counts['sent']:,} sent: {counts['received_once']:,} received, {counts['lost']:,} lost, "
        f"{counts['indeterminate']:,} indeterminate, {counts['duplicates']:,} duplicates"
    )


@pytest.mark.fault(case=1)
@pytest.mark.faults_slow
def test_a_load_resumes_when_a_stopped_broker_is_back(
    node: Restartable, carry_out: CarryOut, seen: Seen
) -> None:
    back_ns: list[int] = []

    def restart(loading: Loading) -> None:
        loading.sleep_until(2)
        node.stop()
        node.start()
        back_ns.append(loading.now_ns())

    outcome = carry_out(
        node.broker,
        restart,
        phases={"warmup_seconds": 0.5, "measure_seconds": 30, "drain_seconds": 5},
        load={"rate_per_second": RATE},
        amqp={"confirms": 100, "queue": {"durable": True}, "persistent": True},
    )
    late_seconds = max(0.0, (resumed_at_ns(outcome, back_ns[0]) - back_ns[0]) / 1e9)
    assert late_seconds <= RESUMED_WITHIN_SECONDS
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.closes
    assert outcome.counts["sent"] == outcome.counts["due"] == 30 * RATE
    assert outcome.counts["lost"] == 0
    assert outcome.counts["reconnects"] == 2
    down_seconds = outcome.events.disconnected_ns.sum() / 1e9 / 2
    assert down_seconds > 1
    assert "connections" in outcome.check("connections")
    seen(
        f"down for {down_seconds:.1f} s, messages again {late_seconds:.1f} s after the port; "
        + all_in_all(outcome)
    )


@pytest.mark.fault(case=2)
@pytest.mark.faults_slow
def test_what_a_killed_broker_had_confirmed_is_there_when_it_is_back(
    node: Restartable, carry_out: CarryOut, seen: Seen
) -> None:
    def kill(loading: Loading) -> None:
        loading.sleep_until(2)
        node.kill()
        node.start()

    outcome = carry_out(
        node.broker,
        kill,
        phases={"warmup_seconds": 0.5, "measure_seconds": 25, "drain_seconds": 8},
        load={"rate_per_second": RATE},
        amqp={
            **{"confirms": 200, "ack": "manual", "ack_every": 50, "prefetch": 200},
            **{"queue": {"durable": True}, "persistent": True},
        },
    )
    assert outcome.counts["lost"] == 0
    assert outcome.closes
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.counts["reconnects"] == 2
    seen(all_in_all(outcome))


@pytest.mark.fault(case=3)
@pytest.mark.faults_slow
@pytest.mark.parametrize(
    ("keys", "exit_code"),
    [
        # Large messages, so that not all of them are in the sockets.
        ({"message": {"bytes": 20_000}, "amqp": {"ack": "auto"}}, 4),
        ({"amqp": {"confirms": 500, "ack": "manual", "prefetch": 10}}, 5),
    ],
    ids=["auto-ack", "confirmed"],
)
def test_what_a_killed_broker_has_forgotten_is_reported_as_lost(
    node: Restartable, carry_out: CarryOut, seen: Seen, keys: dict[str, Any], exit_code: int
) -> None:
    """A slow consumer, so that there is something in the queue to be forgotten."""

    def kill(loading: Loading) -> None:
        loading.sleep_until(3)
        node.kill()
        node.start()

    outcome = carry_out(
        node.broker,
        kill,
        phases={"warmup_seconds": 0, "measure_seconds": 20, "drain_seconds": 4},
        load={"rate_per_second": RATE},
        consumer={"rate_per_second": RATE // 2},
        audit={"undelivered_share": 0},
        **keys,
    )
    assert outcome.counts["lost"] > 0
    assert outcome.closes
    assert (outcome.status, outcome.exit_code) == ("degraded", exit_code)
    assert outcome.check("loss").startswith("fail")
    seen(f"{'confirmed' if exit_code == 5 else 'not confirmed'}: " + all_in_all(outcome))


@pytest.mark.fault(case=6)
def test_a_queue_deleted_in_mid_run_is_noticed(
    rabbitmq_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    deleted: list[float] = []

    def delete(loading: Loading) -> None:
        loading.sleep_until(1)
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
        deleted.append(loading.elapsed_seconds)
        connection.channel().queue_delete(f"bench-{loading.run_id}-0")
        connection.close()

    outcome = carry_out(
        rabbitmq_broker,
        delete,
        phases={"warmup_seconds": 0, "measure_seconds": 60, "drain_seconds": 2},
        load={"rate_per_second": RATE},
    )
    noticed_seconds = outcome.document["measured_seconds"] - deleted[0]
    assert noticed_seconds <= NOTICED_WITHIN_SECONDS
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert f"bench-{outcome.run_id}-0" in " ".join(outcome.document["reasons"])
    assert outcome.closes
    seen(f"the load ended {noticed_seconds:.1f} s after the deletion")


def limit_memory(broker: Broker, limit: str) -> None:
    command = [*broker.rabbitmqctl, "-q", "set_vm_memory_high_watermark", "absolute", limit]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.fault(case=8)
@pytest.mark.faults_slow
def test_the_time_for_which_an_alarm_blocks_producers_is_recorded(
    node: Restartable, carry_out: CarryOut, seen: Seen
) -> None:
    times: list[float] = []

    def alarm(loading: Loading) -> None:
        loading.sleep_until(1)
        try:
            limit_memory(node.broker, "1")
            times.append(loading.elapsed_seconds)
            time.sleep(BLOCKED_SECONDS)
        finally:
            limit_memory(node.broker, "2GB")
            times.append(loading.elapsed_seconds)

    outcome = carry_out(
        node.broker,
        alarm,
        phases={"warmup_seconds": 0.5, "measure_seconds": 20, "drain_seconds": 3},
        load={"rate_per_second": RATE},
        amqp={"confirms": 100},
    )
    rows = outcome.events
    blocked_seconds = rows.blocked_ns.sum() / 1e9
    seen(f"blocked for {blocked_seconds:.1f} s of an alarm of {times[1] - times[0]:.1f} s")
    assert blocked_seconds == pytest.approx(times[1] - times[0], abs=0.5)
    assert outcome.counts["sent"] == outcome.counts["due"]
    assert outcome.closes


@pytest.mark.fault(case=8)
@pytest.mark.faults_slow
@pytest.mark.usefixtures("punctual_agents")
def test_an_alarm_that_never_clears_does_not_hold_the_run(node: Restartable, seen: Seen) -> None:
    """Agents without Spark, whose summing up would be part of the time."""
    keys = {
        "phases": {"warmup_seconds": 0.5, "measure_seconds": 12, "drain_seconds": 3},
        "load": {"rate_per_second": RATE},
        "amqp": {"confirms": 100},
    }
    started: list[float] = []

    def alarm(load: Load) -> None:
        started.append(time.monotonic())
        limit_memory(node.broker, "1")

    try:
        plan = make_plan(Scenario.model_validate(keys), "alarmed")
        load = run_load(plan, node.broker, alarm)
        over_seconds = time.monotonic() - started[0]
    finally:
        limit_memory(node.broker, "2GB")
    assert over_seconds < 0.5 + 12 + 3 + 10
    assert load.total_of_all_phases(PRODUCER, "blocked_ns") > 0
    assert load.total(PRODUCER, "sent") < load.total(PRODUCER, "due")
    assert load.accounts().closes
    seen(f"without an end to the alarm: over {over_seconds:.1f} s after a start of 15.5 s")
