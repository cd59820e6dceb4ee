"""The line without a broker: what our own code costs a message, and the whole agent's ceiling.

A turn of a path gives the processor time per message, the system's share included, and the rate
that one core could do. The turn through a whole agent is a run of the product on the loopback
transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench_spark.config.broker import Broker
from benchmarks import ours
from benchmarks.figures import CLIENT_CPU, RATE, Bar, Figures, Measure
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.paths import (
    BODY_BYTES,
    RECORD_BYTES,
    HotPath,
    bare_socket_send,
    carry_records,
    decode_deliveries,
    draw_padding,
    processor_seconds_per_call,
    publish_to_a_sink,
    record_both_ends,
    record_by_hdrhistogram,
    record_confirms,
    record_latencies,
    settle_confirms,
    stamp_envelopes,
    write_records,
)

BATCHES = (1, 16, 256)
"""Messages at a time: a paced load sends few at a time, a maximum as many as this."""
RECORDED_BATCH = 1000
TURN_SECONDS = 0.2
LOOPBACK_WARMUP_SECONDS, LOOPBACK_MEASURE_SECONDS = 1, 3

RECORDS_PER_SECOND = 50_000

COST = Measure("CPU, ns per message", 1)


def _turn(path: HotPath, batch: int) -> Figures:
    with path(batch) as work:
        seconds = processor_seconds_per_call(work, TURN_SECONDS) / batch
    return {RATE: 1 / seconds, COST: seconds * 1e9}


def _named(path: HotPath, batch: int) -> str:
    return f"{path.__name__.replace('_', ' ')}, {batch} at a time"


def _loopback(settings: ours.Settings, effort: Effort, directory: Path) -> Figures:
    document = ours.run(settings, Broker(kind="loopback"), effort, directory, live=False)
    figures = ours.figures_of(document)
    return {measure: figures[measure] for measure in (RATE, CLIENT_CPU)}


def _records(directory: Path) -> ours.Settings:
    """Settings of a run that sends a data set, each record with its ID before it."""
    path = directory / "records.txt"
    write_records(path)
    return {"dataset.path": str(path), "identity.carrier": "prefix"}


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    paths: list[tuple[HotPath, int]] = [
        *(
            (path, batch)
            for path in (publish_to_a_sink, bare_socket_send, decode_deliveries)
            for batch in BATCHES
        ),
        *(
            (path, batch)
            for path in (settle_confirms, stamp_envelopes, draw_padding)
            for batch in BATCHES
        ),
        *((carry_records, batch) for batch in (25, 512)),
        *((record_both_ends, batch) for batch in (*BATCHES, RECORDED_BATCH)),
        *((record_confirms, batch) for batch in BATCHES),
        (record_latencies, RECORDED_BATCH),
        (record_by_hdrhistogram, RECORDED_BATCH),
    ]
    turns: dict[str, Turn] = {
        _named(path, batch): partial(_turn, path, batch) for path, batch in paths
    }
    bars = [
        Bar(COST, _named(decode_deliveries, 1), at_most=1_200),
        Bar(COST, _named(decode_deliveries, 256), at_most=80),
        Bar(COST, _named(settle_confirms, 1), at_most=1_200),
        Bar(COST, _named(settle_confirms, 256), at_most=40),
        Bar(COST, _named(publish_to_a_sink, 1), at_most=1_000, above=_named(bare_socket_send, 1)),
        Bar(COST, _named(record_latencies, RECORDED_BATCH), at_most=30),
        Bar(COST, _named(record_both_ends, RECORDED_BATCH), at_most=30),
        Bar(COST, _named(record_both_ends, 1), at_most=2_000),
    ]
    brief = replace(
        effort,
        warmup_seconds=LOOPBACK_WARMUP_SECONDS,
        measure_seconds=LOOPBACK_MEASURE_SECONDS,
    )
    unbounded: ours.Settings = {"load.mode": "maximum"}
    agents: dict[str, Turn] = {
        "as fast as possible": partial(_loopback, unbounded, brief, directory),
        "records as fast as possible": partial(
            _loopback, {**unbounded, **_records(directory)}, brief, directory
        ),
        f"{RECORDS_PER_SECOND} records a second": partial(
            _loopback,
            {"load.rate_per_second": RECORDS_PER_SECOND, **_records(directory)},
            brief,
            directory,
        ),
    }
    yield Opened(
        [
            Comparison("One path at a time", turns, (RATE, COST), bars=bars),
            Comparison(
                "Through a whole agent, on the loopback transport",
                agents,
                (RATE, CLIENT_CPU),
            ),
        ]
    )


LINES = (
    Line(
        "hot-paths",
        "Our own code, without a broker",
        f"Bodies of {BODY_BYTES} B, one core. Publishing includes the system's share of writing to "
        "a socket that another process reads; recording both ends is all that the recorder does "
        "for a message, its histograms included; `record by hdrhistogram` is that package's own "
        "call for every value. Records are lines of "
        f"{RECORD_BYTES} B from a file, found again by an ID that was put before them.",
        _open,
    ),
)
