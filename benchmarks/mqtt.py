"""The MQTT lines: beside what one writes with paho."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path

from bench_spark import brokers
from bench_spark.scenario.broker import Broker
from benchmarks import ours, plain_paho
from benchmarks.broker_facts import facts_of
from benchmarks.figures import CLIENT_CPU, P50, P99, RATE, SPARK_CORES, WHOLE_CPU, Bar, Figures
from benchmarks.lines import Comparison, Effort, Line, Opened
from benchmarks.ours import LIVE
from benchmarks.plain_paho import PLAIN_PAHO

BODY_BYTES = 1000
BACKLOG_MESSAGES = 65_536
LEAST_PER_SECOND = 40_000
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
    fast_enough = (Bar(RATE, LIVE, at_least=LEAST_PER_SECOND),) if qos == 0 else ()
    return Comparison(
        f"QoS {qos}, {BODY_BYTES} B",
        {
            LIVE: partial(_our_turn, qos, broker, effort, directory),
            PLAIN_PAHO: partial(plain_paho.run, broker, effort, BODY_BYTES, qos),
        },
        MEASURES,
        PLAIN_PAHO,
        (*fast_enough, Bar(CLIENT_CPU, LIVE, PLAIN_PAHO, at_most=0.33)),
    )


@contextmanager
def _open_maximum(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("mosquitto") as running:
        broker = running["mosquitto"].broker
        facts = facts_of(broker)
        paho = f"paho-mqtt {metadata.version('paho-mqtt')}"
        comparisons = [_comparison(qos, broker, effort, directory) for qos in (0, 1)]
        yield Opened(comparisons, (effort.length_text, f"{facts.product} {facts.version}", paho))


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
)
