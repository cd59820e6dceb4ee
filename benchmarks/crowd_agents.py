"""Simulated agents: links to a collector over which event rows come, without any load behind them.

`python -m benchmarks.crowd_agents` joins as many agents as it is told (one JSON object on standard
input) to a collector that another process runs. Every agent sends what a real one sends: its rows
at the end of every second, all agents at the same moment, and word of its progress in between.
Values are drawn once and sent again and again; only numbers and times change.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    EventRow,
    FrameReader,
    answer,
    encode_frame,
    encode_rows,
    new_challenge,
)
from bench_spark.agent.reports import MOST_REPORTS_PER_SECOND, PROGRESS_NS
from bench_spark.agent.timeline import MEASURE, Timeline
from bench_spark.core.clock import NANOSECONDS, Clock
from bench_spark.core.hdr import Histogram, SparseHistogram, shape_for
from bench_spark.store.schema import COUNTERS

HIGHEST_US = 10_000_000
MEASURES_OF = {
    "producer": ("send_lag", "insert_duration"),
    "consumer": ("latency", "delivery_latency"),
}
KINDS_OF_AGENTS = 8
"""Agents with different values; more would only cost this process memory."""


@dataclass(frozen=True)
class Crowd:
    """What a crowd is told."""

    host: str
    port: int
    token: str
    agents: int
    ticks: int
    messages_per_tick: int
    """Of every agent, sent as well as received."""


def timeline_of_ticks(start_ns: int, ticks: int) -> Timeline:
    return Timeline(start_ns, 0, ticks * NANOSECONDS, NANOSECONDS)


def rows_of_a_tick(messages: int, seed: int) -> list[EventRow]:
    """What an agent with these values sends every second: a row of producers, one of consumers."""
    random = np.random.default_rng(seed)
    counted = {"producer": "sent", "consumer": "received"}
    return [
        EventRow(
            row_number=number,
            role=role,
            phase=MEASURE,
            tick=0,
            tick_start_ns=0,
            tick_seconds=1.0,
            counters=dict.fromkeys(COUNTERS, 0) | {counted[role]: messages},
            cpu_seconds=0.25,
            histograms={measure: _drawn(random, messages) for measure in measures},
        )
        for number, (role, measures) in enumerate(MEASURES_OF.items())
    ]


def _drawn(random: np.random.Generator, messages: int) -> SparseHistogram:
    """Around a millisecond with a long payload, as latencies are."""
    histogram = Histogram(shape_for(HIGHEST_US))
    histogram.record_ns(random.lognormal(np.log(1e6), 1.0, messages).astype(np.int64))
    return histogram.sparse()


class _Agent:
    def __init__(self, crowd: Crowd, number: int) -> None:
        self.socket = socket.create_connection((crowd.host, crowd.port), timeout=30)
        self.reader = FrameReader()
        self.start_at_ns: int | None = None
        challenge = b""
        while len(challenge) < CHALLENGE_BYTES:
            challenge += self.socket.recv(CHALLENGE_BYTES - len(challenge))
        hello = {
            "type": "hello",
            "agent": number,
            "attempt": 0,
            "answer": answer(crowd.token, challenge, "agent"),
            "challenge": new_challenge().hex(),
        }
        self.socket.sendall(encode_frame(hello))
        self.anchor_ns: int | None = None

    def hear(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the collector has hung up")
        for message, _ in self.reader.feed(data):
            if message["type"] == "welcome":
                self.anchor_ns = int(message["anchor_ns"])
            elif message["type"] == "start":
                self.start_at_ns = int(message["start_at_ns"])


def take_part(crowd: Crowd) -> None:
    """Join, wait for the start, send the rows of every tick, and leave."""
    agents = [_Agent(crowd, number) for number in range(crowd.agents)]
    rows = [rows_of_a_tick(crowd.messages_per_tick, seed) for seed in range(KINDS_OF_AGENTS)]
    columns = [encode_rows(kind)[1] for kind in rows]
    with selectors.DefaultSelector() as selector:
        for agent in agents:
            selector.register(agent.socket, selectors.EVENT_READ, agent)
        while any(agent.start_at_ns is None for agent in agents):
            _hear_until(selector, time.monotonic() + 0.1)
        start_ns, anchor_ns = agents[0].start_at_ns, agents[0].anchor_ns
        assert start_ns is not None
        assert anchor_ns is not None
        progress_seconds = max(PROGRESS_NS / NANOSECONDS, crowd.agents / MOST_REPORTS_PER_SECOND)
        clock, timeline = Clock(anchor_ns), timeline_of_ticks(start_ns, crowd.ticks)
        for tick in range(crowd.ticks):
            while (left_ns := timeline.tick_end_ns(tick) - clock.now_ns()) > 0:
                wait = min(progress_seconds, left_ns / NANOSECONDS)
                _hear_until(selector, time.monotonic() + wait)
                _report_progress(agents, crowd.messages_per_tick * tick)
            headers = [_header(kind, tick, timeline) for kind in rows]
            for number, agent in enumerate(agents):
                kind = number % KINDS_OF_AGENTS
                frame = encode_frame({"type": "rows", "rows": headers[kind]}, columns[kind])
                agent.socket.sendall(frame)
        # Stay until the collector has hung up: an agent that leaves early counts as failed.
        with contextlib.suppress(ConnectionError):
            while True:
                _hear_until(selector, time.monotonic() + 1)


def _hear_until(selector: selectors.BaseSelector, deadline: float) -> None:
    while (left := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            key.data.hear()


def _report_progress(agents: list[_Agent], messages: int) -> None:
    names = ("sent", "received_once", "freed", "unsettled", "down", "reopened")
    counted = dict.fromkeys(names, 0) | {"sent": messages, "received_once": messages}
    frame = encode_frame({"type": "progress", **counted})
    for agent in agents:
        agent.socket.sendall(frame)


def _header(rows: list[EventRow], tick: int, timeline: Timeline) -> list[dict[str, Any]]:
    dated = [
        replace(
            row,
            row_number=tick * len(rows) + number,
            tick=tick,
            tick_start_ns=timeline.tick_start_ns(tick),
        )
        for number, row in enumerate(rows)
    ]
    return encode_rows(dated)[0]


if __name__ == "__main__":
    take_part(Crowd(**json.load(sys.stdin)))
