"""Our own code, one path at a time: a call on a batch of messages, made as the agent makes it.

A path is a function from the size of a batch to one such call, set up and ready, for the length of
a `with`. `processor_seconds_per_call` says what a call costs.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pika.spec
from hdrh.histogram import HdrHistogram

from bench_spark.agent.flow import Paced, RoundRobinFlow
from bench_spark.agent.pacing import Schedule
from bench_spark.agent.recorder import Recorder, RecorderSetup
from bench_spark.agent.records import BodySizes, PaddedBodies, RecordCodec, SentRing
from bench_spark.agent.timeline import Timeline
from bench_spark.config.sections import Dataset, Identity, Message
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, empty_envelopes, word_rows_of
from bench_spark.core.hdr import LOWEST_US, SIGNIFICANT_FIGURES, Histogram, shape_for
from bench_spark.data.carriers import carrier_named
from bench_spark.data.ordering import ordering_of
from bench_spark.data.records import RecordFiles
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms
from bench_spark.transports.amqp.consumers import AckFrames, ConsumerTags, DeliveryDecoder
from bench_spark.transports.amqp.frames import (
    FrameParser,
    FrameTerms,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.amqp.producers import PublishFrames, PublishWriter
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    Batch,
    OutcomeKind,
    Outcomes,
    Received,
    each_payload,
)
from bench_spark.transports.sockets.buffers import Arrivals, OutcomeRows, ReadBuffer

CHANNEL, FRAME_MAX = 1, 131_072
FRAMING = FrameTerms(CHANNEL, FRAME_MAX)
BODY_BYTES = 1000
HIGHEST_US = 10_000_000
MESSAGES_AHEAD = 4096
ROWS_AHEAD = 256
"""So few that they stay in the processor's cache, as rows do that were just decoded."""
SINK_PAUSE_SECONDS = 0.0002
RECORDS, RECORD_BYTES = 20_000, 500

Work = Callable[[], object]
HotPath = Callable[[int], AbstractContextManager[Work]]


@contextmanager
def publish_to_a_sink(batch: int) -> Iterator[Work]:
    """Stamp the frames of a batch, remember it as sent, and write it to a socket that another
    process reads."""
    frames = [_publish_frames()]
    writer, payload = PublishWriter(may_return=False), bytes(BODY_BYTES - ENVELOPE_BYTES)
    envelopes, routes = empty_envelopes(batch), np.zeros(batch, np.uint16)
    made = Batch(np.zeros(batch, np.uint32), envelopes, payload, routes)
    sent_ns, outcomes = envelopes["sent_ns"], OutcomeRows()
    confirms = Confirms(0, FRAMING, ConfirmTerms(10**6, may_return=False), outcomes)
    unconfirmed = 0
    with _sink() as sink:

        def send() -> None:
            nonlocal unconfirmed
            sent_ns.fill(time.monotonic_ns())
            sink.sendall(writer.write(frames, made, confirms))
            unconfirmed += batch
            if unconfirmed == MESSAGES_AHEAD:
                unconfirmed = 0
                confirms.settled(0, True, OutcomeKind.CONFIRMED, 0)
                outcomes.take()

        yield send


@contextmanager
def bare_socket_send(batch: int) -> Iterator[Work]:
    """Write as many bytes to such a socket: the floor of publishing."""
    data = _publish_frames().message(bytes(BODY_BYTES)) * batch
    with _sink() as sink:
        yield partial(sink.sendall, data)


def _publish_frames() -> PublishFrames:
    publish = pika.spec.Basic.Publish(routing_key="bench-run-0")
    return PublishFrames(FRAMING, publish, persistent=False)


@contextmanager
def _sink() -> Iterator[socket.socket]:
    """A socket whose other end is read by another process until it is closed. That one never waits
    in a call for data: then every write would pay for waking it, or not, as the machine likes."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while theirs.recv(1 << 20):
            time.sleep(SINK_PAUSE_SECONDS)
        os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(child, 0)


def decode_deliveries(batch: int) -> AbstractContextManager[Work]:
    """Take the envelopes of a batch of deliveries out of the bytes that a broker would send."""
    arrivals = Arrivals(ENVELOPE_ONLY)
    receiver = DeliveryDecoder(0, FRAMING, ConsumerTags(b"bench-0-", 1), arrivals)
    parser = FrameParser(FRAMING, receiver, lambda method: None)
    properties = pika.spec.BasicProperties(delivery_mode=1)
    stream = b"".join(
        method_frame(CHANNEL, pika.spec.Basic.Deliver("bench-0-0", tag, False, "", "bench-run-0"))
        + header_frame(CHANNEL, BODY_BYTES, properties)
        + body_frame(CHANNEL, bytes(BODY_BYTES))
        for tag in range(batch)
    )
    buffer = ReadBuffer(len(stream))
    buffer.raw[:] = stream

    def decode() -> None:
        parser.parse(buffer, len(stream), time.monotonic_ns())
        arrivals.take()

    return nullcontext(decode)


def settle_confirms(batch: int) -> AbstractContextManager[Work]:
    """Decode and book the broker's confirm of each message of a batch. (Whoever writes a batch
    remembers it as sent: see `publish_to_a_sink`.)"""
    outcomes = OutcomeRows()
    confirms = Confirms(0, FRAMING, ConfirmTerms(10**6, may_return=False), outcomes)
    parser = FrameParser(FRAMING, confirms, lambda method: None)
    ahead = -(-MESSAGES_AHEAD // batch) * batch
    acks, envelopes = AckFrames(CHANNEL, multiple=False), empty_envelopes(ahead)
    one_read = len(acks.of(np.zeros(batch, np.uint64)))
    buffer, first, stream, at = ReadBuffer(one_read), 1, memoryview(b""), 0

    def settle() -> None:
        nonlocal first, stream, at
        if at == len(stream):  # what a broker would send next, made for many calls at once
            tags = np.arange(first, first + ahead, dtype=np.uint64)
            stream, at = acks.of(tags), 0
            first += len(tags)
            confirms.sent(envelopes, ENVELOPE_BYTES)
        buffer.view[:] = stream[at : at + one_read]
        parser.parse(buffer, one_read, time.monotonic_ns())
        assert len(outcomes.take()) == batch
        at += one_read

    return nullcontext(settle)


def stamp_envelopes(batch: int) -> AbstractContextManager[Work]:
    """Deal lanes and numbers to a batch and fill in its measurement data, as the loop does."""
    flow = RoundRobinFlow((0,), owes=True)
    pacer = Paced(Schedule(10_000_000.0), 0, 10**12, flow)
    envelopes, lanes = empty_envelopes(batch), np.zeros(batch, np.uint32)
    words = word_rows_of(envelopes)

    def stamp() -> None:
        flow.next_batch(words, lanes, batch)
        pacer.stamp(words, lanes, time.monotonic_ns())
        flow.accepted(lanes, envelopes)

    return nullcontext(stamp)


def draw_padding(batch: int) -> AbstractContextManager[Work]:
    """Random bytes for the bodies of a batch, other ones for every message."""
    bodies = PaddedBodies(Message(bytes=BODY_BYTES), seed=1)
    bodies.set_size(BODY_BYTES, batch)
    envelopes, lanes = empty_envelopes(batch), np.zeros(batch, np.uint32)
    made = Batch(lanes, envelopes, bodies.payloads(batch), np.zeros(batch, np.uint16))
    return nullcontext(lambda: bodies.accepted(made, batch))


@contextmanager
def carry_records(batch: int) -> Iterator[Work]:
    """Read records of a file, put an ID before each, and know each again by it."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        write_records(Path(file.name))
        dataset = Dataset(path=file.name)
        carrier = carrier_named("prefix", Identity())
        with closing(RecordFiles(dataset)) as records:
            ordering = ordering_of(dataset, records.count, producers=1)
            codec = RecordCodec(carrier, records, ordering, SentRing((0,)))
            lane, route = np.zeros(batch, np.uint32), np.zeros(batch, np.uint16)
            received_ns, redelivered = np.zeros(batch, np.int64), np.zeros(batch, np.bool_)
            envelope, first = empty_envelopes(batch), 0
            envelope["run_tag"] = 1

            def carry() -> None:
                nonlocal first
                envelope["sequence"] = np.arange(first, first + batch)
                made = Batch(lane, envelope, b"", route)
                codec.prepare(made)
                codec.accepted(made, batch)
                assert made.sizes is not None
                arrived = Received.of_columns(
                    received_ns, lane, route, envelope, made.sizes, redelivered
                )
                arrived.bodies = list(each_payload(made.payload))
                codec.identify(arrived)
                first += batch

            yield carry


def write_records(path: Path) -> None:
    """A data set of many records of 500 bytes."""
    with path.open("wb") as file:
        for number in range(RECORDS):
            file.write(b"%0*d\n" % (RECORD_BYTES, number))


def _latencies_ns(messages: int) -> npt.NDArray[np.int64]:
    """Around a millisecond with a long payload, as latencies are; the same every time."""
    return np.random.default_rng(1).lognormal(np.log(1e6), 1.0, messages).astype(np.int64)


def record_latencies(batch: int) -> AbstractContextManager[Work]:
    histogram, latencies_ns = Histogram(shape_for(HIGHEST_US)), _latencies_ns(batch)
    return nullcontext(lambda: histogram.record_ns(latencies_ns))


def record_by_hdrhistogram(batch: int) -> AbstractContextManager[Work]:
    histogram = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_FIGURES)
    latencies_us = (_latencies_ns(batch) // 1000).tolist()

    def record() -> None:
        for latency_us in latencies_us:
            histogram.record_value(latency_us)

    return nullcontext(record)


def record_both_ends(batch: int) -> AbstractContextManager[Work]:
    """All that the recorder does for a message: sent, received, accounted for, its latency."""
    recorder, start_ns = _recorder()
    lane, envelope = np.zeros(batch, np.uint32), empty_envelopes(batch)
    words = word_rows_of(envelope)
    envelope["run_tag"] = 1
    envelope["sent_ns"] = envelope["intended_ns"] = start_ns
    # Made for many calls at once: numbering messages is not what is measured.
    ahead = -(-ROWS_AHEAD // batch) * batch
    rows = Received.of_columns(
        received_ns=start_ns + _latencies_ns(ahead),
        lane=np.zeros(ahead, np.uint32),
        route=np.zeros(ahead, np.uint16),
        envelope=np.resize(envelope, ahead),
        size=np.full(ahead, BODY_BYTES, np.uint32),
        redelivered=np.zeros(ahead, np.bool_),
    ).rows
    sequence, first, at = rows["envelope"]["sequence"], 0, 0
    sequence[:] = np.arange(ahead)

    def record() -> None:
        nonlocal first, at
        if at == ahead:
            first, at = first + ahead, 0
            sequence[:] = np.arange(first, first + ahead)
        recorder.sent(lane, words, 1000)
        recorder.received(rows[at : at + batch])
        at += batch

    return nullcontext(record)


def record_confirms(batch: int) -> AbstractContextManager[Work]:
    """All that the recorder does for a confirm: counted, accounted for, its latency."""
    recorder, start_ns = _recorder()
    ahead = -(-ROWS_AHEAD // batch) * batch
    envelope = empty_envelopes(ahead)
    envelope["run_tag"], envelope["sequence"] = 1, np.arange(ahead)
    envelope["sent_ns"] = envelope["intended_ns"] = start_ns
    kinds = np.full(ahead, OutcomeKind.CONFIRMED, np.uint8)
    at_ns = start_ns + _latencies_ns(ahead)
    rows = Outcomes.of_columns(at_ns, np.zeros(ahead, np.uint32), kinds, envelope).rows
    sequence, first, at = rows["envelope"]["sequence"], 0, 0

    def record() -> None:
        nonlocal first, at
        if at == ahead:
            first, at = first + ahead, 0
            sequence[:] = np.arange(first, first + ahead)
        recorder.outcomes(Outcomes(rows[at : at + batch]))
        at += batch

    return nullcontext(record)


def _recorder() -> tuple[Recorder, int]:
    """Of one producer and one consumer, and the start of its run."""
    timeline = Timeline(1_700_000_000 * NANOSECONDS, 0, 10**12, NANOSECONDS)
    setup = RecorderSetup(
        shape=shape_for(HIGHEST_US),
        run_tag=1,
        producers=1,
        stream_of_producer=np.zeros(1, np.int64),
        streams_per_subscription=1,
        subscriptions=("bench-0",),
        destinations_by_producer=("bench-0",),
        sizes=BodySizes(BODY_BYTES),
        has_schedule=True,
        own_producers=(0,),
    )
    return Recorder(setup, timeline), timeline.start_ns


def processor_seconds_per_call(work: Work, for_seconds: float) -> float:
    """Calls the work for about that long, in groups so that asking for the time costs nothing."""
    work()
    calls, group, used = 0, 1, 0.0
    while used < for_seconds:
        before = time.process_time()
        for _ in range(group):
            work()
        spent = time.process_time() - before
        calls, used = calls + group, used + spent
        if spent < for_seconds / 10:
            group *= 2
    return used / calls
