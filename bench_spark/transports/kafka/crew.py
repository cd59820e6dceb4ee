"""What producers and consumers have in common: some clients of librdkafka, and the bell they ring.

Clients with a thread of their own are let go of by it: blocking calls of librdkafka are under way
there, which nobody else can end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from confluent_kafka import KafkaException

from bench_spark.errors import BrokerUnreachable
from bench_spark.threads import watched
from bench_spark.transports.base import Signal
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.health import Health, reason_of


class Client(Protocol):
    health: Health


ClientT = TypeVar("ClientT", bound=Client)


class Crew(Generic[ClientT]):
    """The clients that carry an agent's lanes of one role."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._bell = Bell()
        self._crew: Sequence[ClientT] = ()
        self._is_closed = False

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """What is done inside may find that nobody is there."""
        try:
            yield
        except KafkaException as error:
            self.close()
            raise BrokerUnreachable(f"{self._address}: {reason_of(error.args[0])}") from None

    @property
    def clients(self) -> int:
        """How many librdkafka clients, each with a connection per broker, carry the lanes."""
        return len(self._crew)

    @property
    def descriptor(self) -> int:
        return self._bell.descriptor

    def signals(self) -> list[Signal]:
        return [signal for client in self._crew for signal in client.health.take_signals()]

    def close(self) -> None:
        """Ends within a few seconds even if no broker answers; outcomes can still be asked for
        afterwards."""
        if self._is_closed:
            return
        self._is_closed = True
        # A thread that waits for a broker which is gone may still ring: then the pipe stays open.
        if self._let_go():
            self._bell.close()

    def _let_go(self) -> bool:
        """End every client; whether nobody is left who could ring."""
        raise NotImplementedError


class ThreadedClient:
    """A client with a thread of its own, which ends when it is asked to."""

    PATIENCE_SECONDS: float
    PATIENCE_WHEN_LOST_SECONDS: float
    """With a broker that is gone, librdkafka may block for much longer than anybody would wait."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=watched(self._run), daemon=True)

    def _run(self) -> None:
        """Returns soon after `_is_ending` is set, if the broker lets it."""
        raise NotImplementedError

    def leave(self) -> None:
        """Ask the thread to let go of the client; `has_left_by` says when it has."""
        self._is_ending.set()

    def has_left_by(self, asked_at: float) -> bool:
        is_lost = self.health.is_lost
        patience = self.PATIENCE_WHEN_LOST_SECONDS if is_lost else self.PATIENCE_SECONDS
        if self._thread.ident is not None:
            self._thread.join(max(0.0, asked_at + patience - time.monotonic()))
        return not self._thread.is_alive()


def have_all_left(clients: Sequence[ThreadedClient]) -> bool:
    for client in clients:
        client.leave()
    asked_at = time.monotonic()
    have_left = [client.has_left_by(asked_at) for client in clients]
    return all(have_left)
