"""Bodies whose measurement data was changed on the way, and bodies of other programs."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from amqp_from_outside import plain_pika, unique
from contract import free_port
from relay import Relay, relaying

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_DTYPE
from bench_spark.jars import jar_set
from bench_spark.java import require_java
from bench_spark.plan import make_plan

Change = Callable[[Any], None]
"""Of one envelope, in place."""

WARMUP, MESSAGES = 60, 360
"""Of the warm-up, and of all phases."""
FORGED = range(WARMUP + 10, MESSAGES, 20)
"""Which messages are changed, by the order in which they pass: all of the measured phase."""


def run_through(*changes: Change, **keys: Any) -> Load:
    """A load through a system that changes some of the envelopes, each in one of these ways."""

    def forged(number: int, body: bytes) -> bytes:
        if number not in FORGED:
            return body
        envelope = np.frombuffer(body[:ENVELOPE_BYTES], ENVELOPE_DTYPE).copy()
        changes[FORGED.index(number) % len(changes)](envelope[0])
        return envelope.tobytes() + body[ENVELOPE_BYTES:]

    port = free_port()
    with relaying(Relay(port, change=forged)) as relay:
        scenario = Scenario.model_validate(
            {
                "message": {"bytes": 100},
                **RATE,
                **keys,
                "http": {"consumer_uri": f"http://127.0.0.1:{port}/in", "in_flight": 1},
            }
        )
        broker = Broker(kind="http", uri=f"http://127.0.0.1:{relay.port}/in")
        load = run_load(make_plan(scenario, f"forged-{time.time_ns()}"), broker)
    assert load.control.failures == []
    assert load.accounts().sent == load.total(PRODUCER, "sent")
    return load


def of_consumers(load: Load, counter: str) -> int:
    return load.total_of_all_phases(CONSUMER, counter)


def shifted(field: str, by: int) -> Change:
    def change(envelope: Any) -> None:
        envelope[field] = int(envelope[field]) + by

    return change


def put(field: str, value: int) -> Change:
    def change(envelope: Any) -> None:
        envelope[field] = value

    return change


HOUR_NS = 3600 * NANOSECONDS
IN_2000_NS = 970_000_000 * NANOSECONDS
RATE = {
    "load": {"rate_per_second": 300, "messages": MESSAGES - WARMUP},
    "phases": {"warmup_seconds": WARMUP / 300, "drain_seconds": 5},
}
MAXIMUM = {
    "load": {"mode": "maximum", "messages": MESSAGES},
    "phases": {"warmup_seconds": 0, "drain_seconds": 5, "measure_seconds": 60},
}
IMPOSSIBLE = (
    shifted("sent_ns", 2 * HOUR_NS),
    put("sent_ns", IN_2000_NS),
    put("sent_ns", 2**64 - 1),
    put("intended_ns", 0),
    put("intended_ns", 2**64 - 1),
)
"""Times of a message that cannot be, in any mode."""
CHANGED = (shifted("intended_ns", -100_000_000), shifted("intended_ns", 1))
"""Times at which another message may have been due, but not this one."""
NOBODYS = tuple(shifted("sequence", beyond) for beyond in (MESSAGES, 10**6, 2**39))


@pytest.mark.parametrize(
    ("keys", "times", "numbers"),
    [
        (RATE, (*IMPOSSIBLE, *CHANGED), NOBODYS),
        (MAXIMUM, (*IMPOSSIBLE, *CHANGED), NOBODYS),
        # Whoever is free sends what is due: the number does not say when that was.
        ({**RATE, "load": {**RATE["load"], "mode": "request"}}, IMPOSSIBLE, ()),
        # A number that is due a moment later may be that of a message which is only late.
        ({**RATE, "placement": "split", "agents": 2}, (*IMPOSSIBLE, *CHANGED), NOBODYS[1:]),
    ],
    ids=["rate", "maximum", "request", "sent by another agent"],
)
def test_times_that_cannot_be_are_malformed_and_numbers_that_nobody_sent_unexpected(
    keys: dict[str, Any], times: tuple[Change, ...], numbers: tuple[Change, ...]
) -> None:
    """And such a number makes nothing out of order."""
    kinds = len(times) + len(numbers)
    malformed = sum(index % kinds < len(times) for index in range(len(FORGED)))
    assert malformed >= len(times)
    assert len(FORGED) - malformed >= len(numbers)
    load = run_through(*times, *numbers, **keys)
    accounts = load.accounts()
    assert of_consumers(load, "malformed") == malformed
    assert of_consumers(load, "unexpected") == len(FORGED) - malformed
    assert accounts.unexpected == 0
    assert of_consumers(load, "out_of_order") == of_consumers(load, "duplicates") == 0
    received = load.total(CONSUMER, "received")
    assert received == accounts.received_once == accounts.sent - len(FORGED)
    latency = load.histogram("latency")
    assert latency.count == received
    assert latency.negative == 0


def test_a_message_of_yesterday_is_received_and_above_the_range() -> None:
    load = run_through(shifted("sent_ns", -24 * HOUR_NS))
    accounts = load.accounts()
    assert of_consumers(load, "malformed") == 0
    assert load.total(CONSUMER, "received") == accounts.received_once == accounts.sent
    latency = load.histogram("latency")
    assert latency.count == accounts.sent
    assert latency.overflow >= len(FORGED)
    assert (latency.max_us or 0) >= 24 * 3600 * 1_000_000


def test_what_no_agent_can_know_is_found_by_the_driver() -> None:
    """Without a schedule, another agent might have sent a number that is a little too high."""
    keys = {**MAXIMUM, "placement": "split", "agents": 2}
    load = run_through(shifted("sequence", MESSAGES), **keys)
    accounts = load.accounts()
    assert of_consumers(load, "unexpected") == of_consumers(load, "duplicates") == 0
    assert accounts.unexpected == len(FORGED)
    assert accounts.received_once == accounts.sent - len(FORGED)
    # They have moved the highest seen of each producer: the result tells no number for what
    # followed them.
    assert load.total(CONSUMER, "out_of_order") > 0


# -- other programs' bodies ------------------------------------------------------------------------


def consume(broker: Broker, name: str, timestamped: bool | str, messages: int) -> Load:
    scenario = Scenario.model_validate(
        {
            "producers": 0,
            "load": {"messages": messages},
            "message": {"timestamped": timestamped},
            "phases": {"warmup_seconds": 0, "measure_seconds": 60, "drain_seconds": 5},
            "amqp": {"queue": {"name": name}},
        }
    )
    load = run_load(make_plan(scenario, name), broker)
    assert load.control.failures == []
    assert load.total(CONSUMER, "received") == messages
    return load


def body_of_perftest(number: int, sent_ms: int) -> bytes:
    return struct.pack(">iq", number, sent_ms).ljust(50, b"\0")


def test_bodies_of_perftest_say_when_they_were_sent_in_milliseconds(
    rabbitmq_broker: Broker,
) -> None:
    name, now_ms = unique("perftest"), time.time_ns() // 1_000_000
    bodies = [
        *(body_of_perftest(number, now_ms - 2000) for number in range(5)),
        body_of_perftest(5, now_ms - 3_600_000),  # an hour ago
        body_of_perftest(6, now_ms + 2 * 3_600_000),
        body_of_perftest(7, 90 * 86_400 * 10**9),  # without --use-millis, 90 days after a start
        body_of_perftest(8, -1),
        b"elevenbytes",
    ]
    with plain_pika(rabbitmq_broker) as channel:
        channel.queue_declare(name)
        for body in bodies:
            channel.basic_publish("", name, body)
        load = consume(rabbitmq_broker, name, "perftest", len(bodies))
        channel.queue_delete(name)
    assert of_consumers(load, "malformed") == 4
    latency = load.histogram("latency")
    assert (latency.count, latency.overflow, latency.negative) == (6, 1, 0)
    assert latency.min_us is not None
    assert latency.min_us >= 2_000_000


def test_perftest_itself_can_be_measured(rabbitmq_broker: Broker) -> None:
    name, messages = unique("perftest"), 300
    class_path = os.pathsep.join(map(str, jar_set("perftest")))
    command = [
        *(str(require_java()), "-cp", class_path, "com.rabbitmq.perf.PerfTest"),
        *("-h", str(rabbitmq_broker.uri).rstrip("/"), "-x", "1", "-y", "0", "-u", name),
        *("-s", "100", "-C", str(messages), "--use-millis", "--predeclared", "-p"),
    ]
    with plain_pika(rabbitmq_broker) as channel:
        channel.queue_declare(name)
        before_ns = time.time_ns()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        load = consume(rabbitmq_broker, name, "perftest", messages)
        after_ns = time.time_ns()
        channel.queue_delete(name)
    assert of_consumers(load, "malformed") == 0
    latency = load.histogram("latency")
    assert (latency.count, latency.negative) == (messages, 0)
    assert latency.max_us is not None
    assert 0 < latency.max_us <= (after_ns - before_ns) // 1000 + 1000
