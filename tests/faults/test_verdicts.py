"""Runs that look well and are not: nothing reaches a consumer, an agent stands still, a broker says
things twice or cannot be believed."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pika
import psutil
import pytest
from contract import eventually
from proxy import proxied
from whole_runs import CarryOut, Loading, Outcome, workers_at

from bench_spark.config.broker import Broker

RATE = 300
OVERSIZED = bytes([0x30, 0x80, 0x80, 0x80, 0x40])
"""The beginning of an MQTT message of 128 MiB."""


class Packets:
    """Puts whole packets of a broker through a function on their way to its clients."""

    def __init__(
        self, first_size: Callable[[bytes], int | None], change: Callable[[bytes], bytes]
    ) -> None:
        self._first_size = first_size
        self._change = change
        self._waiting: dict[int, bytes] = defaultdict(bytes)

    def __call__(self, connection: int, data: bytes) -> bytes:
        passed = b""
        data = self._waiting[connection] + data
        while (size := self._first_size(data)) is not None and len(data) >= size:
            passed, data = passed + self._change(data[:size]), data[size:]
        self._waiting[connection] = data
        return passed


def mqtt_packet(data: bytes) -> int | None:
    """The size of the first: a byte, its length with seven bits to a byte, and that much."""
    length = 0
    for place, digit in enumerate(data[1:5]):
        length |= (digit & 127) << (7 * place)
        if digit < 128:
            return 2 + place + length
    return None


def amqp_frame(data: bytes) -> int | None:
    return 8 + int.from_bytes(data[3:7]) if len(data) >= 7 else None


def is_mqtt_delivery(packet: bytes) -> bool:
    return packet[0] & 0xF0 == 0x30


def is_part_of_an_amqp_delivery(frame: bytes) -> bool:
    """Basic.Deliver, a header or a body."""
    return frame[0] in (2, 3) or (frame[0] == 1 and frame[7:11] == b"\0\x3c\0\x3c")


def without_deliveries(
    carry_out: CarryOut, broker: Broker, deaf: bool = False, **keys: Any
) -> Outcome:
    """A run of which the broker's deliveries are lost half a second after its beginning: they
    alone, or all that the broker sends to a consumer that is deaf."""
    is_delivery = is_mqtt_delivery if broker.kind == "mqtt" else is_part_of_an_amqp_delivery
    lost = threading.Event()

    def lose(loading: Loading) -> None:
        loading.sleep_until(0.5)
        if deaf:
            proxy.lose_what_is_for_the_consumer()
        else:
            lost.set()

    with proxied(broker) as (proxy, through_proxy):
        proxy.change = Packets(
            mqtt_packet if broker.kind == "mqtt" else amqp_frame,
            lambda packet: b"" if lost.is_set() and is_delivery(packet) else packet,
        )
        return carry_out(through_proxy, lose, load={"rate_per_second": RATE}, **keys)


def test_mqtt_messages_that_are_confirmed_and_never_reach_the_consumer_are_no_valid_run(
    mosquitto_broker: Broker, carry_out: CarryOut
) -> None:
    outcome = without_deliveries(
        carry_out,
        mosquitto_broker,
        deaf=True,
        phases={"warmup_seconds": 0.5, "measure_seconds": 8, "drain_seconds": 1},
        mqtt={"qos": 1},
    )
    counts = outcome.counts
    assert counts["confirmed"] > counts["received_once"] > 0
    assert counts["indeterminate"] > 0.001 * counts["sent"]
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    unknown = f"fail: the fate of {counts['indeterminate']} messages is unknown"
    assert outcome.check("indeterminate").startswith(unknown)
    assert outcome.closes
    assert outcome.check("silence").startswith("fail: consumer 0 received nothing for")


@pytest.mark.parametrize("keys", [{"confirms": 0}, {"confirms": 100}], ids=["sent", "confirmed"])
def test_amqp_messages_with_automatic_acks_that_never_reach_the_consumer_are_no_valid_run(
    keys: dict[str, Any], rabbitmq_broker: Broker, carry_out: CarryOut
) -> None:
    outcome = without_deliveries(
        carry_out,
        rabbitmq_broker,
        phases={"warmup_seconds": 0.5, "measure_seconds": 2, "drain_seconds": 1},
        amqp={"ack": "auto", **keys},
    )
    counts = outcome.counts
    assert counts["sent"] > counts["received_once"] > 0
    assert outcome.status == "degraded"
    assert outcome.exit_code in (4, 5)
    assert counts["lost"] + counts["indeterminate"] > 0.001 * counts["sent"]


def test_confirmed_messages_that_are_gone_end_with_the_exit_code_of_lost_data(
    rabbitmq_broker: Broker, carry_out: CarryOut
) -> None:
    """Somebody empties the queue of a consumer that is behind."""

    def empty(loading: Loading) -> None:
        loading.sleep_until(1)
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
        channel = connection.channel()
        assert eventually(lambda: channel.queue_purge("emptied").method.message_count)
        connection.close()

    outcome = carry_out(
        rabbitmq_broker,
        empty,
        load={"rate_per_second": RATE},
        consumer={"rate_per_second": 20},
        amqp={"confirms": 100, "ack": "manual", "prefetch": 1, "queue": {"name": "emptied"}},
    )
    lost = outcome.counts["lost"]
    assert lost > 0
    assert outcome.closes
    assert (outcome.status, outcome.exit_code) == ("degraded", 5)
    assert outcome.check("loss").startswith(f"fail: {lost} confirmed messages lost")


def test_bodies_too_small_for_a_number_that_never_arrive_are_no_valid_run(
    mosquitto_broker: Broker, carry_out: CarryOut
) -> None:
    outcome = without_deliveries(
        carry_out,
        mosquitto_broker,
        phases={"warmup_seconds": 0.5, "measure_seconds": 2, "drain_seconds": 1},
        message={"bytes": 16},
        mqtt={"qos": 1},
    )
    counts = outcome.counts
    missing = counts["sent"] - counts["received"]
    assert missing > 0.001 * counts["sent"]
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.check("indeterminate").startswith(f"fail: {missing} messages were not received")


def test_a_broker_that_refuses_more_than_its_share_makes_no_valid_run(
    rabbitmq_broker: Broker, carry_out: CarryOut
) -> None:
    limit = {"x-max-length": 1, "x-overflow": "reject-publish"}
    # One message at a time, and a millisecond for each: the queue is full whenever more come.
    one_by_one = {"ack": "manual", "prefetch": 1, "queue": {"arguments": limit}}
    outcome = carry_out(
        rabbitmq_broker,
        phases={"warmup_seconds": 0.5, "measure_seconds": 120, "drain_seconds": 5},
        load={"mode": "maximum", "messages": 5000},
        amqp={"confirms": 1000} | one_by_one,
        consumer={"processing_us": 1000},
    )
    refused = outcome.counts["refused"]
    assert refused > 0.001 * outcome.counts["sent"]
    assert outcome.status == "degraded"
    assert outcome.exit_code == 4
    assert outcome.check("refused").startswith(f"fail: the broker refused {refused} of")
    assert outcome.closes


def test_an_agent_that_was_stopped_for_half_of_the_time_is_named(
    rabbitmq_broker: Broker, carry_out: CarryOut
) -> None:
    def stop(loading: Loading) -> None:
        ours = psutil.Process().children(recursive=True)
        found: list[psutil.Process] = []
        eventually(lambda: bool(found.extend(workers_at(rabbitmq_broker.port, ours)) or found))
        loading.sleep_until(1)
        assert loading.elapsed_seconds < 5, "the agent was found too late"
        found[0].send_signal(signal.SIGSTOP)
        time.sleep(3)
        found[0].send_signal(signal.SIGCONT)

    outcome = carry_out(
        rabbitmq_broker,
        stop,
        phases={"warmup_seconds": 0.5, "measure_seconds": 10, "drain_seconds": 5},
        load={"rate_per_second": RATE},
    )
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.check("generator_stall"), outcome.document["reasons"]
    assert outcome.check("generator_stall").startswith("fail: agents stood still in the 10 s")
    assert outcome.document["agents"][0]["stalled_seconds"] > 1.0
    assert any("agent 0 for" in reason for reason in outcome.document["reasons"])


def test_qos_2_deliveries_that_the_broker_repeats_are_counted_and_no_duplicates(
    mosquitto_broker: Broker, carry_out: CarryOut
) -> None:
    """Those of the warm-up, and some of the measured phase."""
    wanted, repeated = 2 * RATE, 0

    def repeat(packet: bytes) -> bytes:
        nonlocal repeated
        is_delivery_at_qos_2 = packet[0] & 0xF6 == 0x34
        if not is_delivery_at_qos_2 or repeated == wanted:
            return packet
        repeated += 1
        return packet + bytes([packet[0] | 0x08]) + packet[1:]

    with proxied(mosquitto_broker) as (proxy, through_proxy):
        proxy.change = Packets(mqtt_packet, repeat)
        outcome = carry_out(
            through_proxy,
            phases={"warmup_seconds": 1, "measure_seconds": 3, "drain_seconds": 60},
            load={"rate_per_second": RATE},
            mqtt={"qos": 2},
        )
    counts = outcome.counts
    assert counts["repeats_dropped"] == repeated == wanted
    assert counts["received"] == counts["received_once"] == counts["sent"] > 0
    assert counts["duplicates"] == counts["lost"] == 0
    assert outcome.closes
    events = outcome.events.groupby("phase").repeats_dropped.sum()
    assert events["warmup"] > 0
    assert events["measure"] > 0
    assert events.sum() == wanted


def test_a_broker_that_announces_a_message_larger_than_any_is_named_as_the_reason(
    mosquitto_broker: Broker, carry_out: CarryOut
) -> None:
    """Once, in the measured phase: behind the deliveries of a second and a half."""
    deliveries = 0

    def announce(packet: bytes) -> bytes:
        nonlocal deliveries
        deliveries += is_mqtt_delivery(packet)
        is_due = is_mqtt_delivery(packet) and deliveries == 1.5 * RATE
        return OVERSIZED + packet if is_due else packet

    with proxied(mosquitto_broker) as (proxy, through_proxy):
        proxy.change = Packets(mqtt_packet, announce)
        outcome = carry_out(through_proxy, load={"rate_per_second": RATE}, mqtt={"qos": 0})
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.check("connections").startswith("fail: 1 connections were lost")
    reasons = " ".join(outcome.document["reasons"])
    assert f"a message announced with {2**27} bytes" in reasons
    assert "twice its largest body and 64 KiB" in reasons
    assert outcome.counts["received_once"] > 0
