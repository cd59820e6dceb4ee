"""What goes on while lanes are opened, here and in other agents: news of it, and of open lanes."""

from __future__ import annotations

import time

from bench_spark.agent.link import Link
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.plan import Assignment
from bench_spark.transports.base import Consumers, Producers, Signal
from bench_spark.transports.pace import OpeningPace

OPENING_NEWS_SECONDS = 0.25


def pace_of(assignment: Assignment) -> OpeningPace:
    """This agent's share of the rate at which connections are opened."""
    asked = assignment.scenario.connections_per_second
    return OpeningPace(None if asked is None else asked / assignment.agents)


class OpeningNews:
    """Tells the driver how many lanes are open, now and then."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._opened = 0
        self._next_seconds = 0.0

    def opened(self, lanes: int) -> None:
        self._opened += lanes
        now_seconds = time.monotonic()
        if now_seconds >= self._next_seconds:
            self._next_seconds = now_seconds + OPENING_NEWS_SECONDS
            self._link.send({"type": "opening", "opened": self._opened})


class EarlySignals:
    """What happens to open lanes before the load begins.

    Others may take minutes to open theirs, and lanes live only while they are served: unanswered
    heartbeats end a connection.
    """

    def __init__(self, producers: Producers | None, consumers: Consumers | None) -> None:
        self._ends = [
            (role, end)
            for role, end in ((PRODUCER, producers), (CONSUMER, consumers))
            if end is not None
        ]
        self.collected: list[tuple[str, Signal]] = []

    def collect(self) -> None:
        for role, end in self._ends:
            self.collected += [(role, signal) for signal in end.signals()]
