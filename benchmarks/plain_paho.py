"""The program one writes with paho in a quarter of an hour: `python -m benchmarks.plain_paho`.

Two processes with a client each: publish in a loop, a callback per message. Prints the messages
received so far, once a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from bench_spark.config.broker import Broker
from benchmarks.counting import figures_of_counting, seconds_to_count
from benchmarks.figures import Figures
from benchmarks.lines import Effort

PLAIN_PAHO = "plain paho"
TOPIC = "plain-paho"
MOST_QUEUED = 1000
"""Messages that paho has taken and not written yet: it would take any number."""
DRAIN_SECONDS = 0.0005


def connected(host: str, port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.max_queued_messages_set(MOST_QUEUED)
    client.connect(host, port)
    return client


def produce(host: str, port: int, body_bytes: int, qos: int) -> None:
    client = connected(host, port)
    client.loop_start()
    body = bytes(body_bytes)
    last = client.publish(TOPIC, body, qos)
    while True:
        for _ in range(MOST_QUEUED // 2):
            sent = client.publish(TOPIC, body, qos)
            if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                time.sleep(DRAIN_SECONDS)
        # At QoS 0 it queues without limit: wait until the half before this one is on the wire.
        last.wait_for_publish()
        last = sent


def consume(host: str, port: int, qos: int) -> None:
    client = connected(host, port)
    received, next_word = 0, time.monotonic() + 1

    def receive(client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        nonlocal received, next_word
        received += 1
        if time.monotonic() >= next_word:
            next_word += 1
            print(received, flush=True)

    client.on_message = receive
    client.subscribe(TOPIC, qos)
    client.loop_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--qos", type=int, default=0)
    asked = parser.parse_args()
    address = (asked.host, asked.port)
    ends = [
        multiprocessing.Process(target=consume, args=(*address, asked.qos), daemon=True),
        multiprocessing.Process(
            target=produce, args=(*address, asked.bytes, asked.qos), daemon=True
        ),
    ]
    for end in ends:
        end.start()
    time.sleep(asked.seconds)
    for end in ends:
        end.terminate()
        end.join()


def run(broker: Broker, effort: Effort, body_bytes: int, qos: int = 0) -> Figures:
    """Both processes for warm-up and measured phase; messages received and the CPU of both."""
    seconds = seconds_to_count(effort)
    command = [
        *(sys.executable, "-m", "benchmarks.plain_paho", broker.host, str(broker.port)),
        *("--seconds", str(seconds), "--bytes", str(body_bytes), "--qos", str(qos)),
    ]
    return figures_of_counting(PLAIN_PAHO, command, effort)


if __name__ == "__main__":
    main()
