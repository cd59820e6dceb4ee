"""Transactional producers: a client, and a thread, for every lane, by confluent-kafka.

librdkafka's calls that begin, commit and abort a transaction block, so each lane has a thread of
its own for them. The two threads of a lane take turns with the client:

- While the transaction is *open*, the agent's thread hands messages to the client, which sends them
  as it always does. With the last of `kafka.transaction_messages`, or when `commit` is called, the
  agent hands the lane over.
- From then on the lane takes no more. Its thread commits (or aborts, where the client demands it),
  puts down what became of the messages, begins the next transaction and hands the lane back.

**Outcomes** are those of the transaction: confirmed once the commit has returned, which is also the
time that `confirm_latency` counts to; refused after an abort, because consumers that read committed
messages will never see them; unknown where a commit was under way and nobody said how it ended. So
delivery reports, which cost a Python call per message, are not asked for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer

from bench_spark.core.envelope import Envelopes
from bench_spark.errors import BenchError, BrokerRefused, BrokerUnreachable, ConfigurationError
from bench_spark.transports.base import Lane, Producers
from bench_spark.transports.batches import Batch, Headers, OutcomeKind, Outcomes, joined_outcomes
from bench_spark.transports.kafka.client_pool import (
    ClientPool,
    Health,
    ThreadedClient,
    Wakeup,
    close_all,
)
from bench_spark.transports.kafka.librdkafka import ANY_PARTITION, QuietLog, reason_of
from bench_spark.transports.kafka.message_block import Keys, bodies_to_send, with_common_headers
from bench_spark.transports.kafka.producers import ProducerTerms
from bench_spark.transports.kafka.settings import Properties

INIT_SECONDS = 20.0
"""A cluster's first transaction makes it create the topic in which it keeps their state."""

_IDLE_SECONDS = 0.1
_BLOCKING_SECONDS = 1.0
"""How long a call to the coordinator may block before the thread looks up."""

_NEEDS_ANOTHER_STATE = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})
"""Answers to `produce` that are about the transaction and not about the message."""


class MustEnd(Exception):
    """The open transaction takes no more; its thread will learn why."""


class Transactor(ThreadedClient):
    """One lane: its client, the thread that ends its transactions, and what is in the open one."""

    LEAVE_SECONDS = 4.0
    LEAVE_WHEN_LOST_SECONDS = 1.5

    def __init__(
        self,
        number: int,
        transactional_id: str,
        messages: int,
        terms: ProducerTerms,
        wakeup: Wakeup,
    ) -> None:
        self._number = number
        self._messages = messages
        self._address = terms.address
        self._now_ns = terms.now_ns
        self._wakeup = wakeup
        super().__init__(
            Health([number], terms.address, terms.now_ns, wakeup, terms.reconnect_seconds)
        )
        self.is_open = False
        """Whose turn it is: True while the agent's thread may use the client."""
        self.settled: deque[Outcomes] = deque()
        self.has_begun = threading.Event()
        self.is_idle = threading.Event()
        self.failure: BenchError | None = None
        self._envelopes: list[Envelopes] = []
        self._taken = 0
        self._is_due = threading.Event()
        named = terms.properties | {"transactional.id": transactional_id}
        self._producer = _made_producer(named, self.health)

    # -- the agent's turn ------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def room(self) -> int:
        return self._messages - self._taken if self.is_open else 0

    def produce(
        self, topic: str, body: bytes, key: bytes | None, headers: Headers | None
    ) -> KafkaError | None:
        """Hand over one message; the library's no, if it will not take this one.

        Raises BufferError if it must wait, and MustEnd if only ending the transaction helps.
        """
        try:
            if headers is None:
                self._producer.produce(topic, body, key, ANY_PARTITION)
            else:
                self._producer.produce(topic, body, key, ANY_PARTITION, headers=dict(headers))
        except BufferError:
            self._producer.poll(0)  # makes room of what has been delivered meanwhile
            raise
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.fatal() or error.code() in _NEEDS_ANOTHER_STATE:
                raise MustEnd from None
            return error
        self._taken += 1
        return None

    def keep(self, envelopes: Envelopes) -> None:
        """Remember what was handed over, until it is known what became of it."""
        self._envelopes.append(envelopes)

    def hand_over(self) -> None:
        """End the transaction; nothing to do where it is ending already."""
        if self.is_open:
            self.is_open = False
            self.is_idle.clear()
            self._is_due.set()

    @property
    def is_full(self) -> bool:
        return self._taken >= self._messages

    @property
    def is_empty(self) -> bool:
        return self._taken == 0

    def leave(self) -> None:
        super().leave()
        self._is_due.set()

    # -- the thread's turn -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._initialise()
            while not self._is_ending.is_set() and self._begin():
                self._await_order()
                self.is_open = False
                self._settle(self._abort() if self._is_unasked else self._commit())
        except BenchError as error:
            self.failure = error
        except Exception as error:  # our own bug must end the run, not one silent thread
            self.health.lost_for_good(f"the thread of a transaction failed: {type(error).__name__}")
        finally:
            self._discard()
            self.has_begun.set()
            self.is_idle.set()
            self._wakeup.wake()

    def _initialise(self) -> None:
        deadline = time.monotonic() + INIT_SECONDS
        while True:
            try:
                self._producer.init_transactions(_BLOCKING_SECONDS)
                return
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
            if self._is_ending.is_set():
                return
            if not error.retriable():
                raise BrokerRefused(f"{self._address}: transactions: {reason_of(error)}")
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"{self._address}: transactions: {reason_of(error)}")

    def _begin(self) -> bool:
        self._envelopes, self._taken = [], 0
        try:
            self._producer.begin_transaction()
        except KafkaException as raised:
            self.health.lost_for_good(_final(raised.args[0]))
            return False
        self._is_due.clear()
        if self._is_ending.is_set():
            return False
        self.is_open = True
        self.has_begun.set()
        self.is_idle.set()
        self._wakeup.wake()
        return True

    def _await_order(self) -> None:
        while not self._is_due.wait(_IDLE_SECONDS):
            self._look_up()

    def _look_up(self) -> None:
        """Let the client say what is wrong, and see whether the cluster is still there."""
        self._producer.poll(0)
        if self.health.needs_examination:
            self.health.examine(self._producer)

    @property
    def _is_unasked(self) -> bool:
        """Whether the run ends in the middle of a transaction that nobody asked to commit."""
        return self._is_ending.is_set() and self.is_idle.is_set()

    def _commit(self) -> OutcomeKind:
        while True:
            try:
                self._producer.commit_transaction(_BLOCKING_SECONDS)
                self.health.alive(self._now_ns())
                return OutcomeKind.CONFIRMED
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
            if error.txn_requires_abort():
                return self._abort()
            if not error.retriable():
                self.health.lost_for_good(_final(error))
                self._is_ending.set()
                return OutcomeKind.UNKNOWN
            if self._is_ending.is_set():
                return OutcomeKind.UNKNOWN
            self._look_up()

    def _abort(self) -> OutcomeKind:
        """Abort; if the cluster never learns of it, no reader sees the messages all the same."""
        while True:
            try:
                self._producer.abort_transaction(_BLOCKING_SECONDS)
                return OutcomeKind.REFUSED
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
            if not error.retriable():
                self.health.lost_for_good(_final(error))
                self._is_ending.set()
                return OutcomeKind.REFUSED
            if self._is_ending.is_set():
                return OutcomeKind.REFUSED
            self._look_up()

    def _discard(self) -> None:
        """Let go of the client, and of whatever it could not send."""
        with contextlib.suppress(KafkaException):  # one that has failed for good keeps nothing
            self._producer.purge()
            self._producer.flush(_BLOCKING_SECONDS)
        # Closing would try to abort once more what has failed for good, and complain.
        if not len(self._producer) and not self.health.is_lost:
            self._producer.close()

    def _settle(self, kind: OutcomeKind) -> None:
        at_ns, envelopes = self._now_ns(), self._envelopes
        if envelopes:
            envelope = envelopes[0] if len(envelopes) == 1 else np.concatenate(envelopes)
            self.settled.append(
                Outcomes.of_columns(
                    at_ns=np.full(len(envelope), at_ns, np.int64),
                    lane=np.full(len(envelope), self._number, np.uint32),
                    kind=np.full(len(envelope), kind, np.uint8),
                    envelope=envelope,
                )
            )
            self._wakeup.wake()


def _final(error: KafkaError) -> str:
    return f"the producer's transactions have ended for good: {reason_of(error)}"


def _made_producer(properties: Properties, health: Health) -> Producer:
    try:
        return Producer(properties | {"error_cb": health.on_error}, logger=QuietLog())
    except KafkaException as error:
        raise ConfigurationError(f"kafka.producer: {error.args[0].str()}") from None


class TransactionalProducers(ClientPool[Transactor], Producers):
    """See `bench_spark.transports.base.Producers`."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        terms: ProducerTerms,
        *,
        transactional_ids: Sequence[str],
        messages: int,
    ) -> None:
        super().__init__(terms.address)
        self._now_ns = terms.now_ns
        self._headers = terms.headers
        self._keys = Keys(terms.keys, lanes)
        self._accepted = 0
        self._settled = 0
        self._refused_at_once: list[Outcomes] = []
        self._topics = [[str(d.name) for d in lane.destinations] for lane in lanes]
        self._clients = [
            Transactor(number, name, messages, terms, self._wakeup)
            for number, name in enumerate(transactional_ids)
        ]

    def connect(self) -> None:
        """Return when every lane has begun its first transaction."""
        for transactor in self._clients:
            transactor.start()
        for transactor in self._clients:
            transactor.has_begun.wait()
            lost = transactor.health.take_signals()
            if lost and transactor.failure is None:
                transactor.failure = BrokerRefused(lost[-1].reason)
            if transactor.failure is not None:
                self.close()
                raise transactor.failure

    # -- sending ---------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        batch = with_common_headers(batch, self._headers)
        accepted = 0
        broken: Transactor | None = None
        taken: dict[int, list[int]] = {}
        lanes, routes = batch.lane.tolist(), batch.route.tolist()
        headers = repeat(None) if batch.headers is None else batch.headers
        bodies, keys = bodies_to_send(batch), self._keys.of(batch)
        for lane, route, body, key, own in zip(lanes, routes, bodies, keys, headers, strict=False):
            transactor = self._clients[lane]
            if not transactor.room:
                break
            try:
                refusal = transactor.produce(self._topics[lane][route], body, key, own)
            except BufferError:
                break
            except MustEnd:
                broken = transactor
                break
            if refusal is not None:
                self._refuse(batch, accepted)
            else:
                taken.setdefault(lane, []).append(accepted)
                if transactor.is_full:
                    transactor.keep(batch.envelope[taken.pop(lane)])
                    transactor.hand_over()
            accepted += 1
        for lane, places in taken.items():
            self._clients[lane].keep(batch.envelope[places])
        if broken is not None:
            broken.hand_over()
        self._accepted += accepted
        return accepted

    def _refuse(self, batch: Batch, place: int) -> None:
        """A message that the library itself will not take: its outcome is known at once."""
        self._refused_at_once.append(
            Outcomes.of_columns(
                at_ns=np.array([self._now_ns()], np.int64),
                lane=batch.lane[place : place + 1].copy(),
                kind=np.array([OutcomeKind.REFUSED], np.uint8),
                envelope=batch.envelope[place : place + 1].copy(),
            )
        )
        self._wakeup.wake()

    def commit(self) -> None:
        """End the transactions that have something in them; `flush` waits for it."""
        for transactor in self._clients:
            if not transactor.is_empty:
                transactor.hand_over()

    # -- what became of it -----------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        parts, self._refused_at_once = self._refused_at_once, []
        if not self._is_closed:
            self._wakeup.clear()
        for transactor in self._clients:
            while transactor.settled:
                parts.append(transactor.settled.popleft())
        self._settled += sum(map(len, parts))
        return joined_outcomes(parts)

    def in_flight(self) -> int:
        return self._accepted - self._settled

    def flush(self, timeout_seconds: float) -> None:
        """Wait for transactions that are ending; one that is still open stays so."""
        deadline = time.monotonic() + timeout_seconds
        for transactor in self._clients:
            transactor.is_idle.wait(max(0.0, deadline - time.monotonic()))

    def _close_clients(self) -> bool:
        """Aborts what nobody committed."""
        return close_all(self._clients)
