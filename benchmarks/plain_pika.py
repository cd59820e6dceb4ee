"""The program one writes with pika in a quarter of an hour: `python -m benchmarks.plain_pika`.

Two processes with a BlockingConnection each: basic_publish in a loop, basic_consume with a
callback. With `--confirms` pika waits for the broker's answer to every message, because its
blocking channel knows no other way. Prints the messages received so far, once a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from bench_spark.config.broker import Broker
from benchmarks.counting import figures_of_counting, seconds_to_count
from benchmarks.figures import Figures
from benchmarks.lines import Effort

PLAIN_PIKA = "plain pika"
QUEUE = "plain-pika"


def produce(uri: str, body_bytes: int, confirms: bool) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(uri)).channel()
    if confirms:
        channel.confirm_delivery()
    body = bytes(body_bytes)
    properties = BasicProperties(delivery_mode=1)
    while True:
        channel.basic_publish("", QUEUE, body, properties)


def consume(uri: str, ack_every: int) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(uri)).channel()
    channel.basic_qos(prefetch_count=2 * ack_every)
    received, next_word = 0, time.monotonic() + 1

    def receive(
        channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        nonlocal received, next_word
        received += 1
        if ack_every and received % ack_every == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if time.monotonic() >= next_word:
            next_word += 1
            print(received, flush=True)

    channel.basic_consume(QUEUE, receive, auto_ack=not ack_every)
    channel.start_consuming()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("uri")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--confirms", action="store_true")
    parser.add_argument("--ack-every", type=int, default=0, help="0: automatic acknowledgement")
    asked = parser.parse_args()
    channel = pika.BlockingConnection(pika.URLParameters(asked.uri)).channel()
    channel.queue_declare(QUEUE)
    ends = [
        multiprocessing.Process(target=consume, args=(asked.uri, asked.ack_every), daemon=True),
        multiprocessing.Process(
            target=produce, args=(asked.uri, asked.bytes, asked.confirms), daemon=True
        ),
    ]
    for end in ends:
        end.start()
    # Keeps the connection alive that deletes the queue at the end.
    channel.connection.sleep(asked.seconds)
    for end in ends:
        end.terminate()
        end.join()
    channel.queue_delete(QUEUE)
    channel.connection.close()


def run(
    broker: Broker, effort: Effort, body_bytes: int, confirms: bool = False, ack_every: int = 0
) -> Figures:
    """Both processes for warm-up and measured phase; messages received and the CPU of both."""
    seconds = seconds_to_count(effort)
    command = [
        *(sys.executable, "-m", "benchmarks.plain_pika", str(broker.uri)),
        *("--seconds", str(seconds), "--bytes", str(body_bytes), "--ack-every", str(ack_every)),
        *(("--confirms",) if confirms else ()),
    ]
    return figures_of_counting(PLAIN_PIKA, command, effort)


if __name__ == "__main__":
    main()
