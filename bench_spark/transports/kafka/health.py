"""Whether a client still reaches its cluster, and the signals that say so.

librdkafka reconnects by itself and complains at every interruption, however short, about each of
the brokers. So a complaint only makes a client suspect; its lanes are lost when the cluster has not
answered a question asked afterwards. The client then has `reconnect_seconds` to reach it again,
which shows by an answer or by a message that comes through; after that, and after an error that no
waiting mends, they are lost for good.

Other than a connection of AMQP, a client of librdkafka keeps what it was given while the cluster is
away, and sends it afterwards: those messages have their outcome late, but it is the true one.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import Signal, SignalKind
from bench_spark.transports.kafka.bell import Bell

_QUESTION_SECONDS = 2.0
_BETWEEN_QUESTIONS_SECONDS = 1.0

_OTHER_PROTOCOL = "Invalid response size"
"""What librdkafka makes of the first bytes of an answer in another protocol. It goes on to advise
larger messages."""
_DECORATION = re.compile(r"^\S+/(?:bootstrap|\d+): |\s*\(after \d+ms in state \w+[^)]*\)")


def reason_of(error: KafkaError) -> str:
    """librdkafka's words without the address in front and the internal state behind."""
    if _OTHER_PROTOCOL in error.str():
        return "answers, but not in Kafka's protocol"
    return _DECORATION.sub("", error.str())


class Answering(Protocol):
    """A client that can be asked whether anybody is there."""

    def list_topics(self, *, timeout: float) -> object:
        """Raises KafkaException where no broker answers in time."""


class Health:
    """Of one client and the lanes that share it. `on_error` is called by librdkafka."""

    def __init__(
        self,
        lanes: Sequence[int],
        address: str,
        now_ns: NowNs,
        bell: Bell,
        reconnect_seconds: float,
    ) -> None:
        """`reconnect_seconds`: how long a cluster may stay away; 0: lost is lost for good."""
        self._reconnect_seconds = reconnect_seconds
        self._lanes = tuple(lanes)
        self._address = address
        self._now_ns = now_ns
        self._bell = bell
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

    def examine(self, client: Answering) -> None:
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
            self._tell(SignalKind.LOST, f"{self._address}: {reason}", is_reopening=True)
        elif time.monotonic() >= self._give_up_at:
            self.lost_for_good(f"{reason}, for {self._reconnect_seconds:g} s")

    def lost_for_good(self, reason: str) -> None:
        """No waiting mends it."""
        if not self.is_lost_for_good:
            self.is_lost = self.is_lost_for_good = True
            self._tell(SignalKind.LOST, f"{self._address}: {reason}")

    def alive(self, at_ns: int) -> None:
        """The cluster has answered, or a message came through, at that time."""
        if self.is_lost and not self.is_lost_for_good and at_ns > self._lost_at_ns:
            self.is_lost = False
            self._generation += 1
            self._tell(SignalKind.REOPENED, self._address)

    def take_signals(self) -> list[Signal]:
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def _tell(self, kind: SignalKind, reason: str, is_reopening: bool = False) -> None:
        now = self._now_ns()
        self._signals.extend(
            Signal(kind, now, lane, self._generation, reason, is_reopening) for lane in self._lanes
        )
        self._bell.ring()
