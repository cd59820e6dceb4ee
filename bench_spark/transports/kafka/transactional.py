"""Transactional producers: a librdkafka client, and a thread, for every lane (`transactor.py`).

**Outcomes** are those of the transaction: confirmed once the commit has returned, which is also the
time that `confirm_latency` counts to; refused after an abort, because consumers that read committed
messages will never see them; unknown where a commit was under way and nobody said how it ended. So
delivery reports, which cost a Python call per message, are not asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from bench_spark.errors import BrokerRefused
from bench_spark.transports.base import (
    Batch,
    Lane,
    OutcomeKind,
    Outcomes,
    joined_outcomes,
)
from bench_spark.transports.kafka.common_headers import with_common_headers
from bench_spark.transports.kafka.crew import Crew, have_all_left
from bench_spark.transports.kafka.shared_clients import ProducerTerms
from bench_spark.transports.kafka.single_messages import Keys, bodies_to_send
from bench_spark.transports.kafka.transactor import MustEnd, Transactor


class TransactionalProducers(Crew[Transactor]):
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
        self._crew = [
            Transactor(number, name, messages, terms, self._bell)
            for number, name in enumerate(transactional_ids)
        ]

    def connect(self) -> None:
        """Return when every lane has begun its first transaction."""
        for transactor in self._crew:
            transactor.start()
        for transactor in self._crew:
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
            transactor = self._crew[lane]
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
                    transactor.keep(batch.head[taken.pop(lane)])
                    transactor.hand_over()
            accepted += 1
        for lane, places in taken.items():
            self._crew[lane].keep(batch.head[places])
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
                head=batch.head[place : place + 1].copy(),
            )
        )
        self._bell.ring()

    def commit(self) -> None:
        """End the transactions that have something in them; `flush` waits for it."""
        for transactor in self._crew:
            if not transactor.is_empty:
                transactor.hand_over()

    # -- what became of it -----------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        parts, self._refused_at_once = self._refused_at_once, []
        if not self._is_closed:
            self._bell.hush()
        for transactor in self._crew:
            while transactor.settled:
                parts.append(transactor.settled.popleft())
        self._settled += sum(map(len, parts))
        return joined_outcomes(parts)

    def in_flight(self) -> int:
        return self._accepted - self._settled

    def flush(self, timeout_seconds: float) -> None:
        """Wait for transactions that are ending; one that is still open stays so."""
        deadline = time.monotonic() + timeout_seconds
        for transactor in self._crew:
            transactor.is_idle.wait(max(0.0, deadline - time.monotonic()))

    def _let_go(self) -> bool:
        """Aborts what nobody committed."""
        return have_all_left(self._crew)
