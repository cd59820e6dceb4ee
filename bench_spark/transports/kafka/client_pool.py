"""What producers and consumers have in common: a few clients of librdkafka, whether each still
reaches its cluster, and the wakeup by which their threads reach the agent.

**Health.** librdkafka reconnects by itself and complains at every interruption, however short,
about each of the brokers. So a complaint only makes a client suspect; its lanes are lost when the
cluster has not answered a question asked afterwards. The client then has `reconnect_seconds` to
reach it again, which shows by an answer or by a message that comes through; after that, and after
an error that no waiting mends, they are lost for good. Other than a connection of AMQP, a client of
librdkafka keeps what it was given while the cluster is away, and sends it afterwards: those
messages have their outcome late, but it is the true one.

**Closing.** Clients with a thread of their own are closed by it: blocking calls of librdkafka are
under way there, which nobody else can end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerUnreachable
from bench_spark.process import watched
from bench_spark.transports.base import Signal, SignalKind
from bench_spark.transports.kafka.librdkafka import reason_of

_QUESTION_SECONDS = 2.0
_BETWEEN_QUESTIONS_SECONDS = 1.0


class Wakeup:
    """A pipe that other threads make readable, so that the agent can wait for them.

    Order matters: a thread puts its news down first and calls `wake` then; the agent calls `clear`
    first and collects then. So news may cost one needless look, but can never be overlooked.
    """

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer, False)
        self._is_awake = False

    @property
    def write_descriptor(self) -> int:
        """For a library that writes a byte to it each time."""
        return self._writer

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            os.write(self._writer, b"!")

    def clear(self) -> None:
        # Read even if nothing seems to be there: a thread may be between marking and writing.
        try:  # noqa: SIM105 - `suppress` costs as much as the call
            os.read(self.descriptor, 64)
        except BlockingIOError:
            pass
        self._is_awake = False

    def close(self) -> None:
        """Only once no thread is left that could write: the number may be given to another file."""
        os.close(self.descriptor)
        os.close(self._writer)


class Examined(Protocol):
    """A client that can ask its cluster for an answer."""

    def list_topics(self, *, timeout: float) -> object:
        """Raises KafkaException where no broker answers in time."""


class Health:
    """Of one client and the lanes that share it. `on_error` is called by librdkafka."""

    def __init__(
        self,
        lanes: Sequence[int],
        address: str,
        now_ns: NowNs,
        wakeup: Wakeup,
        reconnect_seconds: float,
    ) -> None:
        """`reconnect_seconds`: how long a cluster may stay away; 0: lost is lost for good."""
        self._reconnect_seconds = reconnect_seconds
        self._lanes = tuple(lanes)
        self._address = address
        self._now_ns = now_ns
        self.wakeup = wakeup
        self._signals: deque[Signal] = deque()
        self._generation = 0
        self._last_words = ""
        self._lost_at_ns = 0
        self._give_up_at = 0.0
        self._is_suspect = False
        self._next_question = 0.0
        self.is_lost = False
        self.is_lost_for_good = False
        self.was_interrupted = False
        """Whether messages may have been sent twice: a retry after a broken connection."""

    def on_error(self, error: KafkaError) -> None:
        self.was_interrupted = True
        if error.code() == KafkaError._AUTHENTICATION:
            self.lost_for_good(reason_of(error))
        else:
            self._is_suspect = True
            if error.code() != KafkaError._ALL_BROKERS_DOWN:
                self._last_words = reason_of(error)

    @property
    def is_doubtful(self) -> bool:
        return (self._is_suspect or self.is_lost) and not self.is_lost_for_good

    @property
    def needs_examination(self) -> bool:
        return self.is_doubtful and time.monotonic() >= self._next_question

    def examine(self, client: Examined) -> None:
        """Ask the cluster for an answer. Blocks for up to two seconds: not in the agent's loop."""
        self._is_suspect = False
        self._next_question = time.monotonic() + _BETWEEN_QUESTIONS_SECONDS
        try:
            client.list_topics(timeout=_QUESTION_SECONDS)
        except KafkaException as error:
            # One question goes to one broker: of the others it says nothing.
            why = self._last_words or reason_of(error.args[0])
            self._unanswered(f"no answer from the cluster in {_QUESTION_SECONDS:g} s: {why}")
        else:
            self.alive(self._now_ns())

    def _unanswered(self, reason: str) -> None:
        if not self._reconnect_seconds:
            self.lost_for_good(reason)
        elif not self.is_lost:
            self.is_lost = True
            self._lost_at_ns = self._now_ns()
            self._give_up_at = time.monotonic() + self._reconnect_seconds
            self._emit(SignalKind.LOST, f"{self._address}: {reason}", is_reopening=True)
        elif time.monotonic() >= self._give_up_at:
            self.lost_for_good(f"{reason}, for {self._reconnect_seconds:g} s")

    def lost_for_good(self, reason: str) -> None:
        """No waiting mends it."""
        if not self.is_lost_for_good:
            self.is_lost = self.is_lost_for_good = True
            self._emit(SignalKind.LOST, f"{self._address}: {reason}")

    def alive(self, at_ns: int) -> None:
        """The cluster has answered, or a message came through, at that time."""
        if self.is_lost and not self.is_lost_for_good and at_ns > self._lost_at_ns:
            self.is_lost = False
            self._generation += 1
            self._emit(SignalKind.REOPENED, self._address)

    def take_signals(self) -> list[Signal]:
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def _emit(self, kind: SignalKind, reason: str, is_reopening: bool = False) -> None:
        now = self._now_ns()
        self._signals.extend(
            Signal(kind, now, lane, self._generation, reason, is_reopening) for lane in self._lanes
        )
        self.wakeup.wake()


class Client(Protocol):
    health: Health


ClientT = TypeVar("ClientT", bound=Client)


class ClientPool(ABC, Generic[ClientT]):
    """The clients that carry an agent's lanes of one role."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._wakeup = Wakeup()
        self._clients: Sequence[ClientT] = ()
        self._is_closed = False

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """What is done inside may find that nobody is there."""
        try:
            yield
        except KafkaException as error:
            self.close()
            raise BrokerUnreachable(f"{self._address}: {reason_of(error.args[0])}") from None

    def connections(self, lanes: int) -> int:
        """How many librdkafka clients, each with a connection per broker, carry the lanes."""
        return len(self._clients)

    @property
    def descriptor(self) -> int:
        return self._wakeup.descriptor

    def signals(self) -> list[Signal]:
        return [signal for client in self._clients for signal in client.health.take_signals()]

    def close(self) -> None:
        """Ends within a few seconds even if no broker answers; outcomes can still be asked for
        afterwards."""
        if self._is_closed:
            return
        self._is_closed = True
        # A thread that waits for a broker which is gone may still write: then the pipe stays open.
        if self._close_clients():
            self._wakeup.close()

    @abstractmethod
    def _close_clients(self) -> bool:
        """End every client; whether nobody is left who could wake us."""


class ThreadedClient(ABC):
    """A client with a thread of its own, which ends when it is asked to."""

    LEAVE_SECONDS: float
    LEAVE_WHEN_LOST_SECONDS: float
    """With a broker that is gone, librdkafka may block for much longer than anybody would wait."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=watched(self._run), daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Returns soon after `_is_ending` is set, if the broker lets it."""

    def leave(self) -> None:
        """Ask the thread to let go of the client; `has_left_by` says when it has."""
        self._is_ending.set()

    def has_left_by(self, asked_at: float) -> bool:
        is_lost = self.health.is_lost
        patience = self.LEAVE_WHEN_LOST_SECONDS if is_lost else self.LEAVE_SECONDS
        if self._thread.ident is not None:
            self._thread.join(max(0.0, asked_at + patience - time.monotonic()))
        return not self._thread.is_alive()


def close_all(clients: Sequence[ThreadedClient]) -> bool:
    for client in clients:
        client.leave()
    asked_at = time.monotonic()
    have_left = [client.has_left_by(asked_at) for client in clients]
    return all(have_left)
