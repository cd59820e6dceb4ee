"""The AMQP plane's own limits, without a broker: `python benchmarks/amqp_hot_paths.py [BYTES]`.

Each path is run a few times and the best is printed: messages per second of one processor, and
processor time per message. Writing includes the system's share; the sink is another process.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

import numpy as np
import pika.spec

from bench_spark.measure.envelope import ENVELOPE_BYTES, empty_envelopes, envelope_bytes
from bench_spark.transports.amqp.acks import AckFrames, Confirmations
from bench_spark.transports.amqp.arrivals import Arrivals
from bench_spark.transports.amqp.deliveries import Deliveries
from bench_spark.transports.amqp.frames import body_frame, header_frame, method_frame
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.publishing import MessageBlock, PublishFrames
from bench_spark.transports.amqp.runs import ReadBuffer
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.base import HEAD_ONLY, Outcomes

CHANNEL, FRAME_MAX = 1, 131_072
ROUNDS, REPETITIONS = 500, 5
BATCHES = (1, 16, 256)


def publish_to_a_sink(body_bytes: int, batch: int) -> Callable[[], None]:
    frames = PublishFrames(
        CHANNEL, "", "bench-run-0", mandatory=False, persistent=False, frame_max=FRAME_MAX
    )
    block = MessageBlock(frames, bytes(body_bytes - ENVELOPE_BYTES), ENVELOPE_BYTES)
    heads = empty_envelopes(batch)
    ours = sink()

    def send() -> None:
        heads["sent_ns"] = time.monotonic_ns()
        ours.sendall(block.stamped(envelope_bytes(heads)))

    return send


def sink() -> socket.socket:
    """A socket whose other end is read by another process until it is closed."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while theirs.recv(1 << 20):
            pass
        os._exit(0)
    theirs.close()
    return ours


def decode_deliveries(body_bytes: int, batch: int) -> Callable[[], None]:
    arrivals = Arrivals(HEAD_ONLY)
    receiver = Deliveries(0, CHANNEL, {b"bench-0-0": 0}, arrivals)
    parser = Parser(CHANNEL, FRAME_MAX, receiver, lambda method: None)
    properties = pika.spec.BasicProperties(delivery_mode=1)
    stream = b"".join(
        method_frame(CHANNEL, pika.spec.Basic.Deliver("bench-0-0", tag, False, "", "bench-run-0"))
        + header_frame(CHANNEL, body_bytes, properties)
        + body_frame(CHANNEL, bytes(body_bytes))
        for tag in range(max(batch, 2))
    )
    buffer = ReadBuffer(len(stream))
    buffer.raw[:] = stream
    parser.parse(buffer, len(stream), 0)
    end = len(stream) // max(batch, 2) * batch

    def decode() -> None:
        parser.parse(buffer, end, time.monotonic_ns())
        arrivals.take()

    return decode


def settle_confirms(_body_bytes: int, batch: int) -> Callable[[], None]:
    outcomes: list[Outcomes] = []
    settlement = Settlement(0, 10**6, False, outcomes)
    parser = Parser(CHANNEL, FRAME_MAX, Confirmations(CHANNEL, settlement), lambda method: None)
    acks, heads = AckFrames(CHANNEL, multiple=False), empty_envelopes(batch)
    buffer = ReadBuffer(len(acks.of(np.zeros(batch, np.uint64))))
    first = 1

    def settle() -> None:
        nonlocal first
        settlement.sent(heads, ENVELOPE_BYTES)
        buffer.raw[:] = acks.of(np.arange(first, first + batch, dtype=np.uint64))
        parser.parse(buffer, len(buffer.raw), time.monotonic_ns())
        outcomes.clear()
        first += batch

    return settle


def seconds_per_call(work: Callable[[], None]) -> float:
    """Processor time of the quickest repetition."""
    best = float("inf")
    for _ in range(REPETITIONS):
        before = time.process_time()
        for _ in range(ROUNDS):
            work()
        best = min(best, (time.process_time() - before) / ROUNDS)
    return best


def main() -> None:
    body_bytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{'bodies of ' + str(body_bytes) + ' B':24}{'batch':>8}{'messages/s':>14}{'us':>10}")
    for path in (publish_to_a_sink, decode_deliveries, settle_confirms):
        for batch in BATCHES:
            seconds = seconds_per_call(path(body_bytes, batch)) / batch
            name = path.__name__.replace("_", " ")
            print(f"{name:24}{batch:>8}{1 / seconds:>14,.0f}{seconds * 1e6:>10.3f}")


if __name__ == "__main__":
    main()
