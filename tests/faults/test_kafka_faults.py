"""Kafka: a broker that dies for good, a leader that changes, a group that is disturbed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from contract import eventually
from fault_records import Seen
from restartable import restartable
from whole_runs import CarryOut, Loading, Outcome

from bench_spark.brokers.kafka import KafkaRecipe
from bench_spark.config.broker import Broker
from bench_spark.core.clock import NANOSECONDS

RATE = 500
TOLD_WITHIN_SECONDS = 5.0


def first_error_seconds(outcome: Outcome, since_ns: int) -> float:
    """From that moment to the start of the first second with an error."""
    rows = outcome.events
    starts = rows[rows.errors > 0].tick_start.astype("datetime64[ns, UTC]").astype("int64")
    return max(0.0, (int(starts.min()) - since_ns) / NANOSECONDS)


@pytest.mark.fault(case=9)
@pytest.mark.faults_slow
def test_a_broker_that_dies_is_an_error_within_seconds_and_no_hang(
    carry_out: CarryOut, tmp_path: Path, seen: Seen
) -> None:
    died_ns: list[int] = []
    with restartable(KafkaRecipe(), tmp_path) as kafka:

        def kill(loading: Loading) -> None:
            loading.sleep_until(2)
            kafka.kill()
            died_ns.append(loading.now_ns())

        started = time.monotonic()
        outcome = carry_out(
            kafka.broker,
            kill,
            phases={"warmup_seconds": 0.5, "measure_seconds": 120, "drain_seconds": 60},
            load={"rate_per_second": RATE},
            reconnect_seconds=3,
        )
        seconds = time.monotonic() - started
    told_seconds = first_error_seconds(outcome, died_ns[0])
    assert told_seconds <= TOLD_WITHIN_SECONDS
    assert seconds < 60
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.closes
    seen(f"dead broker: an error row after {told_seconds:.1f} s, over after {seconds:.0f} s in all")


@pytest.mark.fault(case=9)
@pytest.mark.faults_slow
def test_a_load_goes_on_with_the_new_leader(
    carry_out: CarryOut, tmp_path: Path, seen: Seen
) -> None:
    with restartable(KafkaRecipe(nodes=3), tmp_path, nodes=3) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.broker.bootstrap_servers})
        leaders: list[int] = []

        def leader(topic: str) -> int:
            found: int = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
            return found

        def kill_leader(loading: Loading) -> None:
            topic = f"bench-{loading.run_id}-0"
            loading.sleep_until(3)
            leaders.append(leader(topic))
            kafka.kill(leaders[0] - 1)
            assert eventually(lambda: leader(topic) not in (leaders[0], -1))
            leaders.append(leader(topic))

        outcome = carry_out(
            kafka.broker,
            kill_leader,
            phases={"warmup_seconds": 0.5, "measure_seconds": 25, "drain_seconds": 20},
            load={"rate_per_second": RATE},
            kafka={
                "topic": {"replication_factor": 3, "properties": {"min.insync.replicas": 2}},
                "producer": {"acks": "all"},
            },
            reconnect_seconds=30,
        )
    assert len(leaders) == 2
    assert outcome.closes
    assert outcome.counts["lost"] == 0
    assert outcome.counts["sent"] == outcome.counts["received_once"] == 25 * RATE
    assert outcome.exit_code in (0, 4)
    longest_seconds = outcome.document["measures"]["delivery_latency"]["max_us"] / 1e6
    seen(
        f"leader {leaders[0]} killed, {leaders[1]} followed: {outcome.counts['received_once']:,} "
        f"of {outcome.counts['sent']:,} received, the longest after {longest_seconds:.1f} s"
    )


@pytest.mark.fault(case=9)
@pytest.mark.faults_slow
def test_what_a_stranger_in_the_group_takes_is_missing_and_counted(
    kafka_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    """It joins, is given topic partitions, commits what it has read of them, and leaves again."""
    stolen: list[bytes] = []

    def steal(loading: Loading) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": f"bench-{loading.run_id}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        thief = Consumer(settings)
        thief.subscribe([f"bench-{loading.run_id}-0"])
        deadline = time.monotonic() + 20
        while len(stolen) < 100 and time.monotonic() < deadline:
            message = thief.poll(0.5)
            if message is not None and message.error() is None:
                stolen.append(message.value())
        if stolen:
            thief.commit(asynchronous=False)
        thief.close()

    outcome = carry_out(
        kafka_broker,
        steal,
        phases={"warmup_seconds": 0.5, "measure_seconds": 12, "drain_seconds": 5},
        load={"rate_per_second": RATE},
        kafka={"topic": {"partitions": 4}},
    )
    assert len(stolen) >= 100
    assert outcome.closes
    assert 0 < outcome.counts["lost"] <= len(stolen)
    assert outcome.status == "degraded"
    counts = outcome.counts
    seen(
        f"rebalance: a stranger took {len(stolen)}, {counts['lost']} lost, "
        f"{counts['duplicates']} duplicates counted"
    )
