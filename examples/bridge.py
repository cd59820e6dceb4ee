"""A small system to measure: takes messages from AMQP queues and puts them into Kafka topics.

    python examples/bridge.py --from amqp://guest:guest@127.0.0.1:21672/ --queue bridge-in \
        --to 127.0.0.1:20092 --topic bridge-out --transform wrap --drop 0.01 --duplicate 0.02

Several queues are merged; over several topics messages are dealt out by their content. On purpose
it can drop, repeat, re-order and corrupt messages, each with a probability of its own; a seed makes
that repeatable. It makes the queues and topics that are missing, says `ready` on standard error,
and goes on until SIGTERM or Ctrl-C; then it prints what it has done as one JSON object.

A message is acknowledged at the queue when Kafka has confirmed every copy of it, or when it was
dropped on purpose: whatever else goes wrong, nothing is lost here.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pika
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PREFETCH = 2000
SYSLOG_WARNING = 4
LONGEST_TURN_SECONDS = 0.02
RELEASE_SECONDS = 0.2
"""A message that is held back goes out after this long if no other comes to overtake it."""
WRAPPING = b"\n--bridged--"

TRANSFORMS: dict[str, Callable[[bytes], bytes]] = {
    "pass": lambda body: body,
    "wrap": lambda body: body + WRAPPING,
    "upper": bytes.upper,
}


@dataclass(frozen=True)
class Mischief:
    """What happens to messages, with what probability."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    corrupt_from: int = 32
    """The first byte of a body that may be corrupted: identities in front of it stay whole."""


@dataclass
class Counters:
    consumed: int = 0
    """Messages taken from the queues."""
    dropped: int = 0
    duplicated: int = 0
    """Of which a second copy was produced."""
    reordered: int = 0
    """That were overtaken by the next one of their queue."""
    corrupted: int = 0
    produced: int = 0
    """Copies that Kafka has confirmed."""
    failed: int = 0
    """Copies that Kafka has refused: their messages stay in the queue."""


@dataclass
class Passing:
    """A message on its way, until every copy of it is confirmed."""

    tag: int
    body: bytes
    headers: list[tuple[str, bytes]]
    copies: int = 1
    has_failed: bool = False


@dataclass
class Held:
    """At most one message per queue, held back until another has overtaken it."""

    message: Passing
    since: float = field(default_factory=time.monotonic)


class Bridge:
    """Everything but the connections: what becomes of a message, and the counts of it."""

    def __init__(
        self,
        transform: Callable[[bytes], bytes],
        mischief: Mischief,
        seed: int,
        produce: Callable[[Passing], None],
        settle: Callable[[Passing], None],
    ) -> None:
        """`produce` sends one copy; `settle` tells the queue that a message is done with."""
        self._transform = transform
        self._mischief = mischief
        self._random = random.Random(seed)
        self._produce = produce
        self._settle = settle
        self._held: dict[str, Held] = {}
        self.counters = Counters()

    def take(self, queue: str, message: Passing) -> None:
        self.counters.consumed += 1
        if self._happens(self._mischief.drop):
            self.counters.dropped += 1
            self._settle(message)
            return
        message.body = self._transform(message.body)
        if self._happens(self._mischief.corrupt):
            message.body = self._corrupted(message.body)
        if self._happens(self._mischief.duplicate):
            self.counters.duplicated += 1
            message.copies = 2
        if queue not in self._held and self._happens(self._mischief.reorder):
            self._held[queue] = Held(message)
            return
        self._send(message)
        if queue in self._held:
            self.counters.reordered += 1
            self._send(self._held.pop(queue).message)

    def release(self, older_than_seconds: float) -> None:
        """Send what was held back in vain."""
        now = time.monotonic()
        for queue, held in list(self._held.items()):
            if now - held.since >= older_than_seconds:
                self._send(self._held.pop(queue).message)

    def delivered(self, message: Passing, error: KafkaError | None) -> None:
        """Kafka's word about one copy."""
        message.copies -= 1
        if error is None:
            self.counters.produced += 1
        else:
            self.counters.failed += 1
            message.has_failed = True
        if not message.copies and not message.has_failed:
            self._settle(message)

    def _send(self, message: Passing) -> None:
        for _ in range(message.copies):
            self._produce(message)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _corrupted(self, body: bytes) -> bytes:
        if len(body) <= self._mischief.corrupt_from:
            return body
        self.counters.corrupted += 1
        place = self._random.randrange(self._mischief.corrupt_from, len(body))
        return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]


def run(options: argparse.Namespace) -> Counters:
    make_topics(options.to, options.topic)
    producer = Producer(kafka_client(options.to) | {"acks": "all", "linger.ms": 1})
    connection = pika.BlockingConnection(pika.URLParameters(options.source))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)

    def produce(message: Passing) -> None:
        topic = options.topic[zlib.crc32(message.body) % len(options.topic)]

        def delivered(error: KafkaError | None, _: Any) -> None:
            bridge.delivered(message, error)

        while True:
            try:
                producer.produce(
                    topic, message.body, headers=message.headers or None, on_delivery=delivered
                )
                return
            except BufferError:  # full: some of it must be confirmed first
                producer.poll(LONGEST_TURN_SECONDS)

    def settle(message: Passing) -> None:
        channel.basic_ack(message.tag)

    bridge = Bridge(
        TRANSFORMS[options.transform],
        Mischief(options.drop, options.duplicate, options.reorder, options.corrupt),
        options.seed,
        produce,
        settle,
    )

    def listen_to(queue: str) -> None:
        def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
            headers = [(key, as_bytes(value)) for key, value in (properties.headers or {}).items()]
            bridge.take(queue, Passing(method.delivery_tag, body, headers))

        channel.queue_declare(queue)
        channel.basic_consume(queue, take)

    for queue in options.queue:
        listen_to(queue)
    is_over = stop_signal()
    print("ready", file=sys.stderr, flush=True)
    while not is_over():
        connection.process_data_events(time_limit=LONGEST_TURN_SECONDS)
        producer.poll(0)
        bridge.release(RELEASE_SECONDS)
    bridge.release(0)
    producer.flush(10)
    connection.close()
    return bridge.counters


def as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def kafka_client(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": SYSLOG_WARNING}


def make_topics(servers: str, topics: list[str]) -> None:
    admin = AdminClient(kafka_client(servers))
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def stop_signal() -> Callable[[], bool]:
    """Whether somebody has asked the program to end."""
    seen: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: seen.append(received))
    return lambda: bool(seen)


def probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability; allowed: 0 to 1")
    return value


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Takes from AMQP queues, puts into Kafka topics.")
    parser.add_argument("--from", dest="source", required=True, help="amqp://... to take from")
    parser.add_argument("--queue", action="append", required=True, help="several are merged")
    parser.add_argument("--to", required=True, help="Kafka's HOST:PORT to put into")
    parser.add_argument("--topic", action="append", required=True, help="several are routed over")
    parser.add_argument("--transform", choices=TRANSFORMS, default="pass")
    for name in ("drop", "duplicate", "reorder", "corrupt"):
        parser.add_argument(f"--{name}", type=probability, default=0.0, metavar="PROBABILITY")
    parser.add_argument("--seed", type=int, default=0, help="what happens by chance, repeatably")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    print(json.dumps(asdict(run(parse()))))
