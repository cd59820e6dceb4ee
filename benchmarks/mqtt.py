"""The MQTT lines: beside what one writes with paho."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path

from bench_spark import brokers
from bench_spark.config.broker import Broker
from benchmarks import bare_sockets, ours, plain_paho
from benchmarks.bare_sockets import BARE_SOCKETS
from benchmarks.broker_facts import facts_of
from benchmarks.figures import (
    CLIENT_CPU,
    LAG_P99,
    P50,
    P99,
    RATE,
    SPARK_CORES,
    WHOLE_CPU,
    Bar,
    Figures,
)
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.ours import LIVE
from benchmarks.plain_paho import PLAIN_PAHO

BODY_BYTES = 1000
BACKLOG_MESSAGES = 65_536
LEAST_PER_SECOND = 40_000
LEAST_TIMES_PAHO = {0: 6.0, 1: 2.0}
"""By QoS."""
PACE_PER_SECOND = 10_000
MOST_PACED_CPU_US = 30
CONNECTIONS, MESSAGES_PER_SECOND = 1000, 10
SMALL_BODY_BYTES = 100
MOST_CONNECTED_CPU_US = 8
UNACKNOWLEDGED = 20
"""What paho and Mosquitto allow unless told otherwise."""
MEASURES = (RATE, CLIENT_CPU, WHOLE_CPU, SPARK_CORES, P50, P99)


def _our_turn(qos: int, broker: Broker, effort: Effort, directory: Path) -> Figures:
    settings = {
        "load.mode": "maximum",
        "load.backlog_limit_bytes": BACKLOG_MESSAGES * BODY_BYTES,
        "message.bytes": BODY_BYTES,
        "mqtt.qos": qos,
        "mqtt.in_flight": UNACKNOWLEDGED,
    }
    return ours.figures_of(ours.run(settings, broker, effort, directory))


def _comparison(qos: int, broker: Broker, effort: Effort, directory: Path) -> Comparison:
    least = (Bar(RATE, LIVE, at_least=LEAST_PER_SECOND),) if qos == 0 else ()
    return Comparison(
        f"QoS {qos}, {BODY_BYTES} B",
        {
            LIVE: partial(_our_turn, qos, broker, effort, directory),
            PLAIN_PAHO: partial(plain_paho.run, broker, effort, BODY_BYTES, qos),
        },
        MEASURES,
        PLAIN_PAHO,
        (
            *least,
            Bar(RATE, LIVE, PLAIN_PAHO, at_least=LEAST_TIMES_PAHO[qos]),
            Bar(CLIENT_CPU, LIVE, PLAIN_PAHO, at_most=0.33),
        ),
    )


@contextmanager
def _open_maximum(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("mosquitto") as running:
        broker = running["mosquitto"].broker
        facts = facts_of(broker)
        paho = f"paho-mqtt {metadata.version('paho-mqtt')}"
        comparisons = [_comparison(qos, broker, effort, directory) for qos in (0, 1)]
        yield Opened(comparisons, (effort.length_text, f"{facts.product} {facts.version}", paho))


def _our_paced_turn(broker: Broker, effort: Effort, directory: Path) -> Figures:
    settings = {"load.rate_per_second": PACE_PER_SECOND, "message.bytes": BODY_BYTES}
    return ours.figures_of(ours.run(settings, broker, effort, directory))


def _our_connected_turn(broker: Broker, effort: Effort, directory: Path) -> Figures:
    settings = {
        "topology": "fan-out",
        "producers": 1,
        "consumers": CONNECTIONS,
        "destinations": 1,
        "load.rate_per_second": MESSAGES_PER_SECOND,
        "message.bytes": SMALL_BODY_BYTES,
        "connections_per_second": 500,
    }
    return ours.figures_of(ours.run(settings, broker, effort, directory))


@contextmanager
def _open_paced(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("mosquitto") as running:
        broker = running["mosquitto"].broker
        facts = facts_of(broker)
        turns: dict[str, Turn] = {LIVE: partial(_our_paced_turn, broker, effort, directory)}
        bars = (Bar(CLIENT_CPU, LIVE, at_most=MOST_PACED_CPU_US),)
        comparison = Comparison("QoS 0, 1000 B", turns, (*MEASURES, LAG_P99), bars=bars)
        yield Opened([comparison], (effort.length_text, f"{facts.product} {facts.version}"))


@contextmanager
def _open_connections(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("mosquitto") as running:
        broker = running["mosquitto"].broker
        facts = facts_of(broker)
        turns: dict[str, Turn] = {
            LIVE: partial(_our_connected_turn, broker, effort, directory),
            BARE_SOCKETS: partial(bare_sockets.run, CONNECTIONS, SMALL_BODY_BYTES),
        }
        bars = (Bar(CLIENT_CPU, LIVE, at_most=MOST_CONNECTED_CPU_US),)
        comparison = Comparison(f"QoS 0, {SMALL_BODY_BYTES} B", turns, MEASURES, BARE_SOCKETS, bars)
        yield Opened([comparison], (effort.length_text, f"{facts.product} {facts.version}"))


LINES = (
    Line(
        "mqtt-maximum",
        "MQTT, as fast as possible",
        "One pair, MQTT 3.1.1. Client CPU is that of producer and consumer together: bench-spark's "
        f"agent, both processes of a program with plain paho. bench-spark has at most "
        f"{BACKLOG_MESSAGES:,} messages on their way; at QoS 1 both have at most {UNACKNOWLEDGED} "
        "unacknowledged.",
        _open_maximum,
    ),
    Line(
        "mqtt-paced",
        f"MQTT, {PACE_PER_SECOND:,} messages per second",
        "One pair, MQTT 3.1.1. Client CPU is that of the agent, both ends.",
        _open_paced,
    ),
    Line(
        "mqtt-connections",
        f"MQTT, {CONNECTIONS:,} connections with {MESSAGES_PER_SECOND} messages per second each",
        f"One producer, whose every message goes to {CONNECTIONS:,} consumers with a connection "
        "each, in one agent. Client CPU is per delivery. The floor is a program that sends a "
        "message to each of as many connections, and reads each of them once: epoll and recv, with "
        "nothing done about what was read.",
        _open_connections,
    ),
)
