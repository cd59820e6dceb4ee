"""Producers whose lanes share a few clients, whatever the plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import Headers, Lane
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.crew import Client, Crew
from bench_spark.transports.kafka.health import Health
from bench_spark.transports.kafka.key_choice import KeyRule
from bench_spark.transports.kafka.settings import Properties

MOST_CLIENTS = 4
"""Lanes share this many clients: a client batches better the more it has to send, and a thousand of
them would be some three thousand threads."""


@dataclass(frozen=True)
class ProducerTerms:
    """What producers are told besides their lanes, with transactions or without."""

    properties: Properties
    address: str
    now_ns: NowNs
    reconnect_seconds: float
    confirms: bool
    keys: KeyRule
    headers: Headers
    """Of every message."""


class SharedClient(Client, Protocol):
    def connect(self, timeout_seconds: float) -> None:
        """Learn the cluster's topics, so that the first message does not wait for them."""


SharedT = TypeVar("SharedT", bound=SharedClient)


class SharedClients(Crew[SharedT]):
    """What the planes' producers have in common; the lane of number n has the client n modulo their
    count."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        terms: ProducerTerms,
        make_client: Callable[[Health, Bell], SharedT],
    ) -> None:
        super().__init__(terms.address)
        self._now_ns = terms.now_ns
        self._confirms = terms.confirms
        self._headers = terms.headers
        self._accepted = 0
        self._settled = 0
        count = min(len(lanes), MOST_CLIENTS)
        self._crew = [
            make_client(
                Health(
                    range(first, len(lanes), count),
                    terms.address,
                    terms.now_ns,
                    self._bell,
                    terms.reconnect_seconds,
                ),
                self._bell,
            )
            for first in range(count)
        ]

    def connect(self, timeout_seconds: float) -> None:
        with self._connecting():
            for client in self._crew:
                client.connect(timeout_seconds)

    def commit(self) -> None:
        """Nothing to end: transactions are made in `transactional.py`."""

    def in_flight(self) -> int:
        return self._accepted - self._settled if self._confirms else 0
