"""The Kafka line: each end alone beside Kafka's own tools and franz-go, and our pair."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench_spark import brokers
from bench_spark.config.broker import Broker
from benchmarks import kafka_tools, ours
from benchmarks.broker_facts import facts_of
from benchmarks.figures import CLIENT_CPU, LAG_P99, P50, P99, RATE, WHOLE_CPU, Bar, Figures
from benchmarks.kafka_tools import CONSUMER_TOOL, FRANZ_GO, JAVA_PAIR, PRODUCER_TOOL
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.ours import LIVE, Settings, below

BODY_BYTES = 1000
PRODUCER_PROPERTIES: Mapping[str, object] = {
    "acks": 1,
    # librdkafka cuts batches at message.max.bytes, which is this by default.
    "batch.size": 1_000_000,
    "linger.ms": 5,
}
TOPIC_PROPERTIES: Mapping[str, object] = {"retention.bytes": 512 << 20}
"""Nobody reads what is only produced: it has to go again, or it would fill the disk."""

STORED_TOPIC = "to-be-consumed"
STORED_MESSAGES_PER_SECOND = 300_000
"""How many to store for each second of measuring: enough to keep the slower tool busy as long."""
FILL_SECONDS_AT_MOST = 600
TOOL_CONSUMER_WARMUP_SECONDS = 2
"""Shorter than elsewhere, since the messages are counted; bench-spark has none at all here."""

TIMEOUT_SECONDS = 30

PRODUCE_ONLY: Settings = {
    "consumers": 0,
    "load.mode": "maximum",
    "message.bytes": BODY_BYTES,
    **below("kafka.producer", PRODUCER_PROPERTIES),
    **below("kafka.topic.properties", TOPIC_PROPERTIES),
}
CONSUME_ONLY: Settings = {"producers": 0, "kafka.topic.name": STORED_TOPIC}
PACE_PER_SECOND = 10_000
PACED: Settings = {
    "load.rate_per_second": PACE_PER_SECOND,
    "message.bytes": BODY_BYTES,
    **below("kafka.producer", PRODUCER_PROPERTIES),
}
PAIR: Settings = {
    "load.mode": "maximum",
    "message.bytes": BODY_BYTES,
    **below("kafka.producer", PRODUCER_PROPERTIES),
}


@dataclass(frozen=True)
class Ground:
    """Where the turns take place."""

    broker: Broker
    effort: Effort
    directory: Path

    @property
    def servers(self) -> str:
        return str(self.broker.bootstrap_servers)

    @property
    def stored_messages(self) -> int:
        return STORED_MESSAGES_PER_SECOND * self.effort.measure_seconds

    def our_turn(self, settings: Settings) -> Figures:
        document = ours.run(settings, self.broker, self.effort, self.directory)
        return ours.figures_of(document)

    def our_consume_only(self) -> Figures:
        # The number of messages ends it, and all of them count.
        at_once = replace(self, effort=replace(self.effort, warmup_seconds=0))
        return at_once.our_turn({**CONSUME_ONLY, "load.messages": self.stored_messages})

    def fill_stored_topic(self) -> None:
        settings = {
            **PRODUCE_ONLY,
            "load.messages": self.stored_messages,
            "keep_destinations": True,
            "kafka.topic.name": STORED_TOPIC,
            "kafka.topic.properties.retention.bytes": -1,
        }
        effort = replace(self.effort, warmup_seconds=0, measure_seconds=FILL_SECONDS_AT_MOST)
        ours.run(settings, self.broker, effort, self.directory, live=False)


def _produce(tool: Callable[..., Figures], ground: Ground, numbers: Iterator[int]) -> Figures:
    """A topic of its own for each turn, as our runs have."""
    with _topic(ground.servers, f"produced-{next(numbers)}") as topic:
        return tool(ground.servers, topic, BODY_BYTES, PRODUCER_PROPERTIES, ground.effort)


@contextmanager
def _topic(servers: str, name: str) -> Iterator[str]:
    # Without a logger librdkafka writes to standard error, even that the broker was stopped.
    client = AdminClient({"bootstrap.servers": servers}, logger=logging.getLogger(__name__))
    config = {key: str(value) for key, value in TOPIC_PROPERTIES.items()}
    client.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(TIMEOUT_SECONDS)
    try:
        yield name
    finally:
        client.delete_topics([name])[name].result(TIMEOUT_SECONDS)


def _consume(tool: Callable[..., Figures], ground: Ground) -> Figures:
    return tool(ground.servers, STORED_TOPIC, ground.stored_messages, TOOL_CONSUMER_WARMUP_SECONDS)


def _comparisons(ground: Ground, franz_go: Path | str) -> list[Comparison]:
    """`franz_go`: the program, or why it is left out."""
    measures = (RATE, CLIENT_CPU, WHOLE_CPU)
    numbers = itertools.count()
    produce: dict[str, Turn] = {
        LIVE: partial(ground.our_turn, PRODUCE_ONLY),
        PRODUCER_TOOL: partial(_produce, kafka_tools.produce, ground, numbers),
    }
    produce_bars = (
        Bar(RATE, LIVE, PRODUCER_TOOL, at_least=2.0),
        Bar(CLIENT_CPU, LIVE, PRODUCER_TOOL, at_most=0.25),
    )
    consume: dict[str, Turn] = {
        LIVE: ground.our_consume_only,
        CONSUMER_TOOL: partial(_consume, kafka_tools.consume, ground),
    }
    if isinstance(franz_go, Path):
        sending = partial(kafka_tools.franz_go_produce, franz_go)
        reading = partial(kafka_tools.franz_go_consume, franz_go)
        produce[FRANZ_GO] = partial(_produce, sending, ground, numbers)
        consume[FRANZ_GO] = partial(_consume, reading, ground)
    consume_bars = (
        Bar(RATE, LIVE, CONSUMER_TOOL, at_least=1.3),
        Bar(CLIENT_CPU, LIVE, CONSUMER_TOOL, at_most=0.47),
    )
    pair = {LIVE: partial(ground.our_turn, PAIR)}
    return [
        Comparison("Produce only", produce, measures, PRODUCER_TOOL, produce_bars),
        Comparison("Consume only", consume, measures, CONSUMER_TOOL, consume_bars),
        Comparison("Our pair", pair, (*measures, P50, P99)),
    ]


def _java_pair(ground: Ground, numbers: Iterator[int]) -> Figures:
    with _topic(ground.servers, f"paced-{next(numbers)}") as topic:
        return kafka_tools.paced_pair(
            *(ground.servers, topic, BODY_BYTES, PRODUCER_PROPERTIES),
            PACE_PER_SECOND,
            ground.effort,
        )


@contextmanager
def _open_paced(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("kafka") as running:
        ground = Ground(running["kafka"].broker, effort, directory)
        facts = facts_of(ground.broker)
        turns = {
            LIVE: partial(ground.our_turn, PACED),
            JAVA_PAIR: partial(_java_pair, ground, itertools.count()),
        }
        bars = (Bar(CLIENT_CPU, LIVE, JAVA_PAIR, at_most=0.4),)
        measures = (RATE, CLIENT_CPU, WHOLE_CPU, P50, P99, LAG_P99)
        tools = (f"{facts.product} {facts.version}", facts.client_library)
        comparison = Comparison(f"{BODY_BYTES} B", turns, measures, JAVA_PAIR, bars)
        yield Opened([comparison], (effort.length_text, *tools))


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("kafka") as running:
        ground = Ground(running["kafka"].broker, effort, directory)
        facts = facts_of(ground.broker)
        ground.fill_stored_topic()
        franz_go = kafka_tools.franz_go()
        tools = (f"{facts.product} {facts.version}", facts.client_library)
        left_out = (franz_go,) if isinstance(franz_go, str) else ()
        yield Opened(_comparisons(ground, franz_go), (effort.length_text, *tools, *left_out))


_PROPERTIES_TEXT = ", ".join(f"{key}={value}" for key, value in PRODUCER_PROPERTIES.items())

LINES = (
    Line(
        "kafka-maximum",
        "Kafka, as fast as possible",
        f"{BODY_BYTES} B, one topic partition, {_PROPERTIES_TEXT} on both sides. Client CPU is "
        "that of bench-spark's agent, and of the other tools' whole process. They print their "
        f"progress every {kafka_tools.REPORT_MILLISECONDS} ms; messages and CPU are counted from "
        "the first such line after the warm-up to the last, so that the JVM's start and the "
        "joining of a group are left out. franz-go's own bench program is a module that "
        "`go install` does not take: a program of ours with the same options of its library "
        "(`benchmarks/franz_go`) stands for it, and is left out where no Go is installed. Consume "
        f"only: a topic with {STORED_MESSAGES_PER_SECOND:,} messages for every second of the "
        "measured phase is read from its beginning; the tools are "
        f"counted after {TOOL_CONSUMER_WARMUP_SECONDS} s, bench-spark from its first message to "
        "its last.",
        _open,
    ),
    Line(
        "kafka-paced",
        f"Kafka, {PACE_PER_SECOND:,} messages per second",
        f"One pair, one topic partition, {_PROPERTIES_TEXT} on both sides. Beside it Kafka's own "
        "tools, the producer's held to the same rate: client CPU is that of both JVMs once they "
        "have warmed up.",
        _open_paced,
    ),
)
