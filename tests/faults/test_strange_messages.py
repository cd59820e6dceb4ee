"""Messages among ours that are not: malformed, cut short, of another run, of an earlier one."""

from __future__ import annotations

import struct
import time
import zlib

import pika
import pytest
from agents import Load, run_load
from fault_records import Seen

from bench_spark.agent.recorder import CONSUMER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan

EACH = 50


def envelope(run_id: str, sequence: int, producer: int = 0) -> bytes:
    """As docs/measures.md describes it, sent an hour ago."""
    sent_ns = time.time_ns() - 3600 * 10**9
    tag = zlib.crc32(run_id.encode())
    return struct.pack("<QQQII", sent_ns, sent_ns, sequence, producer, tag) + bytes(68)


@pytest.mark.fault(case=16)
def test_strange_messages_are_counted_apart_and_move_no_latency(
    rabbitmq_broker: Broker, seen: Seen
) -> None:
    run_id, queue = f"strange-{time.time_ns()}", f"strange-{time.time_ns()}"
    keys = {
        "phases": {"warmup_seconds": 0, "measure_seconds": 2, "drain_seconds": 3},
        "load": {"rate_per_second": 500},
        "message": {"bytes": 100},
        "amqp": {"queue": {"name": queue}, "ack": "manual", "prefetch": 100},
    }
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
    channel = connection.channel()
    channel.queue_declare(queue)

    def publish(body: bytes) -> None:
        for _ in range(EACH):
            channel.basic_publish("", queue, body)

    publish(envelope("an-earlier-run", 7))  # is there before the run, as after a crash

    def disturb(load: Load) -> None:
        time.sleep(0.5)
        publish(envelope("another-run", 7))
        publish(envelope(run_id, 2**63))
        publish(envelope(run_id, 7, producer=99))
        publish(envelope(run_id, 7)[:31])
        publish(b"")

    load = run_load(make_plan(Scenario.model_validate(keys), run_id), rabbitmq_broker, disturb)
    channel.queue_delete(queue)
    connection.close()
    foreign = load.total_of_all_phases(CONSUMER, "foreign")
    malformed = load.total_of_all_phases(CONSUMER, "malformed")
    assert load.control.failures == []
    assert (foreign, malformed) == (2 * EACH, 4 * EACH)
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once == accounts.sent == 1000
    assert load.total(CONSUMER, "duplicates") == 0
    latency = load.histogram("latency")
    assert (latency.count, latency.negative) == (1000, 0)
    assert latency.max_us < 60_000_000, "none of them is an hour old"
    seen(f"beside 1,000 messages {foreign} foreign and {malformed} malformed, none with a latency")
