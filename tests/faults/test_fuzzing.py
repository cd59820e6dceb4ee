"""Spoiled streams, frames and bodies: understood or refused, never a crash.

`fuzzed_streams.py` makes, spoils and reads those of protocols: a hundred thousand of each protocol,
shared by its kinds of streams, and a million of each in `make test-faults`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fuzzed_streams
import numpy as np
import pytest
from fault_records import Seen
from fuzzed_streams import FUZZED, SEED, spoiled

from bench_spark.agent.protocol import (
    EventRow,
    FrameReader,
    WireError,
    decode_rows,
    encode_frame,
    encode_rows,
)
from bench_spark.agent.recorder import CONSUMER, Recorder, RecorderSetup
from bench_spark.agent.records import BodySizes
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, byte_rows_of, empty_envelopes
from bench_spark.core.hdr import shape_for
from bench_spark.core.sequences import SequencePages, SequenceSets
from bench_spark.transports.batches import Received

STREAMS = 100_000
FRAMES = 25_000
BODIES = 100_000


def tried(
    read: Callable[[bytes], None], make: Callable[[], bytes], refusal: type[Exception]
) -> int:
    """How many of the spoiled streams were refused; any other exception is a failure."""
    refused = 0
    chance = random.Random(SEED)
    for _ in range(FRAMES):
        stream = spoiled(chance, make())
        try:
            read(stream)
        except refusal:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{stream.hex()}: {error!r}") from error
    return refused


@pytest.mark.fault(case=16)
@pytest.mark.parametrize(
    "streams", [STREAMS, pytest.param(10 * STREAMS, marks=pytest.mark.faults_slow)]
)
@pytest.mark.parametrize("kind", FUZZED)
def test_spoiled_streams_are_understood_or_refused(kind: str, streams: int, seen: Seen) -> None:
    """In a process of its own, where kernels are compiled with bounds checks."""
    protocol = kind.partition("-")[0]
    streams = -(-streams // sum(other.partition("-")[0] == protocol for other in FUZZED))
    program = Path(fuzzed_streams.__file__)
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": str(program.parents[2])}
    command = [sys.executable, str(program), kind, str(streams)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    refused = json.loads(ended.stdout)["refused"]
    # Any bytes are lines.
    assert 0 < refused < streams or (kind == "tcp-line" and not refused)
    seen(f"{streams:,} {kind} streams, {refused:,} refused")


def link_frame(chance: random.Random) -> bytes:
    row = EventRow(chance.randrange(9), "producer", "measure", 1, 2, 1.0, {"sent": 3})
    header, columns = encode_rows([row])
    message = chance.choice(
        [
            ({"type": "rows", "rows": header}, columns),
            ({"type": "reached", "step": "ready"}, b""),
            ({"type": "hello", "agent": 0, "answer": "00"}, b""),
        ]
    )
    return encode_frame(*message)


@pytest.mark.fault(case=16)
def test_spoiled_frames_of_a_link_are_understood_or_refused(seen: Seen) -> None:
    chance = random.Random(SEED)

    def read(data: bytes) -> None:
        for message, payload in FrameReader().feed(data):
            if message["type"] == "rows" and "rows" in message:
                try:
                    decode_rows(message["rows"], payload)
                except (ValueError, KeyError) as error:
                    raise WireError(str(error)) from error

    refused = tried(read, lambda: link_frame(chance), WireError)
    assert 0 < refused < FRAMES
    seen(f"{FRAMES:,} frames of links, {refused:,} refused")


@pytest.mark.fault(case=16)
def test_spoiled_sets_of_numbers_are_understood_or_refused() -> None:
    sets = SequenceSets(2)
    sets.add(np.zeros(5000, np.int64), np.arange(0, 10_000, 2))
    good = sets.export().to_bytes()

    def read(data: bytes) -> None:
        pages = SequencePages.from_bytes(data)
        SequenceSets(2).absorb(pages)

    assert 0 < tried(read, lambda: good, ValueError) <= FRAMES


@pytest.mark.fault(case=16)
def test_bodies_of_any_bytes_are_counted_apart_and_move_no_latency(seen: Seen) -> None:
    """Beside ten messages of our own, each with a latency of a millisecond."""
    start_ns = 1_700_000_000 * NANOSECONDS
    timeline = Timeline(start_ns, NANOSECONDS, 2 * NANOSECONDS, NANOSECONDS)
    recorder = Recorder(
        RecorderSetup(
            shape=shape_for(10_000_000),
            run_tag=77,
            producers=1,
            stream_of_producer=np.array([0]),
            streams_per_subscription=1,
            subscriptions=("red",),
            destinations_by_producer=("red",),
            sizes=BodySizes(100),
            has_schedule=True,
        ),
        timeline,
    )
    numbers = np.random.default_rng(SEED)
    envelopes = empty_envelopes(BODIES)
    byte_rows_of(envelopes)[:] = numbers.integers(0, 256, (BODIES, ENVELOPE_BYTES), np.uint8)
    # Whose tag is right by chance, or forged, but whose producer or number cannot be.
    envelopes["run_tag"][: BODIES // 4] = 77
    envelopes["producer"][: BODIES // 4] = numbers.integers(1, 1 << 32, BODIES // 4)
    ours = empty_envelopes(10)
    ours["sent_ns"] = ours["intended_ns"] = start_ns + NANOSECONDS
    ours["sequence"], ours["run_tag"] = np.arange(10), 77
    for part in np.array_split(envelopes, 100):
        receive(recorder, part, start_ns + NANOSECONDS + 1_000_000, numbers)
    receive(recorder, ours, start_ns + NANOSECONDS + 1_000_000, None)
    rows = recorder.rows_until(timeline.measure_end_ns + 2 * NANOSECONDS)
    total = {
        name: sum(row.counters.get(name, 0) for row in rows if row.role == CONSUMER)
        for name in ("received", "malformed", "foreign", "duplicates")
    }
    assert total["received"] == 10
    assert total["malformed"] + total["foreign"] == BODIES
    assert total["malformed"] >= BODIES // 4
    latencies = [row.histograms["latency"] for row in rows if "latency" in row.histograms]
    assert sum(one.count for one in latencies) == 10
    assert {(one.min_us, one.max_us) for one in latencies if one.count} == {(1000, 1000)}
    seen(f"{BODIES:,} bodies: {total['malformed']:,} malformed, {total['foreign']:,} foreign")


def receive(
    recorder: Recorder, envelope: np.ndarray, at_ns: int, sizes: np.random.Generator | None
) -> None:
    count = len(envelope)
    size = np.full(count, 100) if sizes is None else sizes.choice([0, 7, 31, 32, 100], count)
    recorder.received(
        Received.of_columns(
            received_ns=np.full(count, at_ns, np.int64),
            lane=np.zeros(count, np.uint32),
            route=np.zeros(count, np.uint16),
            envelope=envelope,
            size=size.astype(np.uint32),
            redelivered=np.zeros(count, np.bool_),
        ).rows
    )
