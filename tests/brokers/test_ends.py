"""Messages that go in at one broker and come out at another, through a system of our own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from agents import Load, run_load
from confluent_kafka.admin import AdminClient

from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.models import Scenario
from bench_spark.data.checking import with_records_at
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted_to

BRIDGE = Path(__file__).parents[2] / "examples" / "bridge.py"
PHASES = {"warmup_seconds": 0, "measure_seconds": 1.5, "drain_seconds": 2}


class Bridged:
    """What a bridge says when it has ended."""

    counters: dict[str, int]


@contextmanager
def bridging(rabbitmq: Broker, kafka: Broker, *options: str) -> Iterator[Bridged]:
    told = Bridged()
    command = [sys.executable, str(BRIDGE), "--from", str(rabbitmq.uri)]
    command += ["--to", str(kafka.bootstrap_servers), *options]
    bridge = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert bridge.stderr is not None
    try:
        assert bridge.stderr.readline() == "ready\n"
        yield told
    finally:
        bridge.send_signal(signal.SIGTERM)
        out, errors = bridge.communicate(timeout=60)
    assert not errors, errors
    told.counters = json.loads(out)


def run_through(ends: Ends, run_id: str, **keys: Any) -> Load:
    scenario = Scenario.model_validate(
        {"phases": PHASES, "load": {"rate_per_second": 800}, "message": {"bytes": 200}} | keys
    )
    fitted = with_records_at(fitted_to(scenario, ends), ends)
    return run_load(make_plan(fitted, run_id), ends)


def ends_of(rabbitmq: Broker, kafka: Broker) -> Ends:
    return Ends.apart([rabbitmq], [kafka])


def test_what_a_bridge_does_to_messages_is_counted_exactly(
    rabbitmq_broker: Broker, kafka_broker: Broker
) -> None:
    names = {"in": "mischief-in", "out": "mischief-out"}
    options = ["--queue", names["in"], "--topic", names["out"], "--transform", "wrap"]
    options += ["--drop", "0.05", "--duplicate", "0.04", "--reorder", "0.03", "--corrupt", "0.02"]
    with bridging(rabbitmq_broker, kafka_broker, *options, "--seed", "7") as bridge:
        load = run_through(
            ends_of(rabbitmq_broker, kafka_broker),
            "mischief",
            agents=2,
            placement="split",
            ingress=[
                {"broker": "in", "amqp": {"queue": {"name": names["in"]}, "confirms": 500}},
            ],
            egress=[{"broker": "out", "kafka": {"topic": {"name": names["out"]}}}],
        )
    did, accounts = bridge.counters, load.accounts()
    assert not load.control.failures
    assert min(did[key] for key in ("dropped", "duplicated", "reordered", "corrupted")) > 0
    assert accounts.sent == did["consumed"] == 1200
    assert accounts.lost == did["dropped"]
    assert accounts.received_once == did["consumed"] - did["dropped"]
    assert load.total("consumer", "received") == did["produced"]
    assert load.total("consumer", "duplicates") == did["duplicated"]
    assert load.total("consumer", "out_of_order") == did["reordered"]
    assert load.total("consumer", "foreign") == load.total("consumer", "malformed") == 0
    assert accounts.closes


@pytest.mark.parametrize(("transform", "hashes"), [("pass", True), ("upper", False)])
def test_changed_bodies_are_known_by_an_identity_beside_them(
    rabbitmq_broker: Broker, kafka_broker: Broker, tmp_path: Path, transform: str, hashes: bool
) -> None:
    """The bridge passes headers on, whatever it does to bodies."""
    records = tmp_path / "records.txt"
    records.write_text(
        "".join(f"a record that is number {n} {'of many ' * n}\n" for n in range(50))
    )
    names = {"in": f"records-in-{transform}", "out": f"records-out-{transform}"}
    options = ["--queue", names["in"], "--topic", names["out"], "--transform", transform]
    options += ["--drop", "0.05", "--reorder", "0.03", "--corrupt", "0.04", "--seed", "3"]
    with bridging(rabbitmq_broker, kafka_broker, *options) as bridge:
        load = run_through(
            ends_of(rabbitmq_broker, kafka_broker),
            f"records-{transform}",
            message={},
            dataset={"path": str(records)},
            identity={"carrier": "header", "content_hash": hashes},
            ingress=[{"broker": "in", "amqp": {"queue": {"name": names["in"]}, "confirms": 500}}],
            egress=[{"broker": "out", "kafka": {"topic": {"name": names["out"]}}}],
        )
    did, accounts = bridge.counters, load.accounts()
    assert not load.control.failures
    assert accounts.sent == did["consumed"] == 1200
    assert accounts.lost == did["dropped"] > 0
    assert load.total("consumer", "received") == did["produced"]
    assert load.total("consumer", "out_of_order") == did["reordered"] > 0
    assert did["corrupted"] > 0
    assert load.total("consumer", "corrupted") == (did["corrupted"] if hashes else 0)
    assert load.histogram("latency").count == accounts.received_once


def test_streams_are_merged_and_routed_between_several_ends(
    rabbitmq_broker: Broker, kafka_broker: Broker
) -> None:
    queues, topics = ["merged-0", "merged-1", "merged-own"], ["routed-0", "routed-1"]
    options = [word for name in queues for word in ("--queue", name)]
    options += [word for name in topics for word in ("--topic", name)]
    ends = Ends.apart([rabbitmq_broker, rabbitmq_broker], [kafka_broker, kafka_broker])
    with bridging(rabbitmq_broker, kafka_broker, *options) as bridge:
        load = run_through(
            ends,
            "merged",
            producers=5,
            consumers=2,
            destinations=2,
            amqp={"confirms": 500},
            ingress=[
                {"broker": "a", "producers": 4, "amqp": {"queue": {"name": "merged-%d"}}},
                {"broker": "b", "producers": 1, "amqp": {"queue": {"name": "merged-own"}}},
            ],
            egress=[
                {"broker": "c", "kafka": {"topic": {"name": "routed-0"}}},
                {"broker": "d", "kafka": {"topic": {"name": "routed-1"}}},
            ],
        )
    accounts = load.accounts()
    assert not load.control.failures
    assert bridge.counters["produced"] == bridge.counters["consumed"] == accounts.sent == 1200
    assert accounts.received_once == 1200
    assert load.total("consumer", "duplicates") == 0
    assert load.total("consumer", "acked") == 1200
    assert load.histogram("latency").count == 1200


def test_destinations_that_were_missing_are_made_and_deleted_at_both_ends(
    rabbitmq_broker: Broker, kafka_broker: Broker
) -> None:
    """Without a system between them nothing arrives: all of it is left at the ingress."""
    load = run_through(
        ends_of(rabbitmq_broker, kafka_broker),
        "nobody-there",
        phases={"warmup_seconds": 0, "measure_seconds": 0.5, "drain_seconds": 0.2},
        ingress=[{"broker": "in", "amqp": {"confirms": 500}}],
        egress=[{"broker": "out"}],
    )
    accounts = load.accounts()
    assert not load.control.failures
    assert (accounts.sent, accounts.left_in_broker, accounts.lost) == (400, 400, 0)
    queue, topic = (name for name, _ in load.control.destinations.values())
    assert queue != topic
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare(queue, passive=True)
    connection.close()
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    assert topic not in admin.list_topics(timeout=60).topics


def test_an_end_that_cannot_be_reached_is_named_with_its_role(
    rabbitmq_broker: Broker,
) -> None:
    nowhere = Broker(name="far", kind="kafka", bootstrap_servers="127.0.0.1:1")
    load = run_through(
        ends_of(rabbitmq_broker, nowhere),
        "far-away",
        ingress=[{"broker": "in"}],
        egress=[{"broker": "out"}],
    )
    (failure,) = load.control.failures
    assert failure.kind == "BrokerUnreachable"
    assert failure.text.startswith("egress far: 127.0.0.1:1")
