"""Whether a client still reaches its cluster, and the signals that say so.

librdkafka reconnects by itself and says "all brokers are down" at every interruption, however short.
A lane counts as lost only after the cluster has not answered a question asked afterwards; it counts
as reopened at the first sign of life after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from bench_spark.measure.clock import NowNs
from bench_spark.transports.base import Signal, SignalKind
from bench_spark.transports.kafka.bell import Bell

_QUESTION_SECONDS = 2.0


class Health:
    """Of one client and the lanes that share it. `on_error` is called by librdkafka."""

    def __init__(self, lanes: Sequence[int], address: str, now_ns: NowNs, bell: Bell) -> None:
        self._lanes = tuple(lanes)
        self._address = address
        self._now_ns = now_ns
        self._bell = bell
        self._signals: deque[Signal] = deque()
        self._generation = 0
        self._last_words = ""
        self._lost_at_ns = 0
        self.is_suspect = False
        self.is_lost = False
        self.was_interrupted = False
        """Whether messages may have been sent twice: a retry after a broken connection."""

    def on_error(self, error: KafkaError) -> None:
        self.was_interrupted = True
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_suspect = True
        elif error.code() == KafkaError._AUTHENTICATION:
            self.lost(error.str())
        else:
            self._last_words = error.str()

    def examine(self, client: Producer | Consumer) -> None:
        """Ask the cluster for an answer; blocks for up to two seconds, so not in the agent's loop."""
        self.is_suspect = False
        try:
            client.list_topics(timeout=_QUESTION_SECONDS)
        except KafkaException as error:
            self.lost(f"no broker answers: {self._last_words or error.args[0].str()}")

    def lost(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._lost_at_ns = self._now_ns()
            self._tell(SignalKind.LOST, f"{self._address}: {reason}")

    def alive(self, at_ns: int) -> None:
        """A message came through at that time."""
        if self.is_lost and at_ns > self._lost_at_ns:
            self.is_lost = False
            self._generation += 1
            self._tell(SignalKind.REOPENED, self._address)

    def take_signals(self) -> list[Signal]:
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def _tell(self, kind: SignalKind, reason: str) -> None:
        now = self._now_ns()
        self._signals.extend(
            Signal(kind, now, lane, self._generation, reason) for lane in self._lanes
        )
        self._bell.ring()
