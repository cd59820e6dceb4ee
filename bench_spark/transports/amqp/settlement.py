"""What became of the messages of one lane, from the broker's acks, nacks and returns. Pure.

A message that reaches no queue is returned *and* settled, and brokers differ in how: RabbitMQ
returns it first and acks it then, Qpid Broker-J nacks it first and returns it then. Both must count
as returned. So a return is remembered until its ack comes, and where messages may be returned at
all a nack is held back for a moment in case its return follows.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    Envelopes,
    envelope_bytes,
)
from bench_spark.transports.amqp.confirms import ConfirmLedger
from bench_spark.transports.base import I64, Bool, OutcomeKind, Outcomes

NANOSECONDS_HELD = 100_000_000
"""How long after a nack its return may come."""

_FEW = 64
"""Outcomes of one read that share columns made once: most reads of many lanes bring one or two."""
_CONFIRMED = np.full(_FEW, OutcomeKind.CONFIRMED, np.uint8)
_CONFIRMED.flags.writeable = False


class Settlement:
    """Of one lane. Outcomes are appended to `sink`, which lanes may share."""

    def __init__(
        self, lane_number: int, confirms: int, may_return: bool, sink: list[Outcomes]
    ) -> None:
        self._lanes = np.full(_FEW, lane_number, np.uint32)
        self._lanes.flags.writeable = False
        self._ledger = ConfirmLedger(confirms) if confirms else None
        self._may_return = may_return
        self._sink = sink
        self._head_bytes = ENVELOPE_BYTES
        self._returned: Counter[bytes] = Counter()
        """Heads that were returned and are still to be acked."""
        self._held: list[Outcomes] = []
        """Nacks whose returns may follow."""

    @property
    def room(self) -> int:
        """How many more may be sent now."""
        return sys.maxsize if self._ledger is None else self._ledger.room

    @property
    def in_flight(self) -> int:
        open_count = 0 if self._ledger is None else self._ledger.open_count
        if not self._held:
            return open_count
        return open_count + sum(len(one) for one in self._held)

    def sent(self, heads: Envelopes, head_bytes: int) -> None:
        """These were published; their bodies begin with so many bytes of their heads. Those that
        have none of it bring the whole head back by another way."""
        self._head_bytes = head_bytes or ENVELOPE_BYTES
        if self._ledger is not None:
            self._ledger.sent(heads)

    def acked(self, tag: int, multiple: bool, at_ns: int) -> None:
        if self._ledger is not None:
            self._settle(self._ledger.settle(tag, multiple), OutcomeKind.CONFIRMED, at_ns)

    def acked_many(self, tags: I64, are_multiple: Bool, at_ns: int) -> None:
        if self._ledger is not None:
            settled = self._ledger.settle_many(tags, are_multiple)
            self._settle(settled, OutcomeKind.CONFIRMED, at_ns)

    def nacked(self, tag: int, multiple: bool, at_ns: int) -> None:
        if self._ledger is None:
            return
        heads = self._ledger.settle(tag, multiple)
        if self._may_return and len(heads):
            self._held.append(self._outcomes(heads, OutcomeKind.REFUSED, at_ns))
        else:
            self._settle(heads, OutcomeKind.REFUSED, at_ns)

    def returned(self, body: bytes, at_ns: int) -> None:
        key = body[: self._head_bytes]
        if self._ledger is None:
            padded = bytearray(key.ljust(ENVELOPE_BYTES, b"\0"))
            self._settle(np.frombuffer(padded, dtype=ENVELOPE_DTYPE), OutcomeKind.RETURNED, at_ns)
        elif not self._was_nacked(key):
            self._returned[key] += 1

    def release(self, now_ns: int) -> None:
        """Nacks whose time has passed were refusals."""
        while self._held and self._held[0].at_ns[0] <= now_ns - NANOSECONDS_HELD:
            self._sink.append(self._held.pop(0))

    def abandon(self, at_ns: int) -> None:
        """The lane is gone: what is still open will never be known."""
        self._sink += self._held
        self._held = []
        if self._ledger is not None:
            self._settle(self._ledger.abandon(), OutcomeKind.UNKNOWN, at_ns)

    def _settle(self, heads: Envelopes, kind: OutcomeKind, at_ns: int) -> None:
        if len(heads):
            self._sink.append(self._outcomes(heads, kind, at_ns))

    def _outcomes(self, heads: Envelopes, kind: OutcomeKind, at_ns: int) -> Outcomes:
        count = len(heads)
        is_plain = kind is OutcomeKind.CONFIRMED and not self._returned and count <= _FEW
        outcomes = Outcomes.of_columns(
            at_ns=np.full(count, at_ns, np.int64),
            lane=self._lanes[:count] if count <= _FEW else np.full(count, self._lanes[0]),
            kind=_CONFIRMED[:count] if is_plain else np.full(count, kind, np.uint8),
            head=heads,
        )
        if self._returned:
            self._mark_returned(outcomes)
        return outcomes

    def _mark_returned(self, outcomes: Outcomes) -> None:
        for place, key in enumerate(self._keys(outcomes)):
            if self._returned[key] > 0:
                self._returned[key] -= 1
                outcomes.kind[place] = OutcomeKind.RETURNED
        self._returned = +self._returned  # forget those that are used up

    def _was_nacked(self, key: bytes) -> bool:
        """Whether a held nack was of this message; it then becomes a return."""
        for number, held in enumerate(self._held):
            for place, held_key in enumerate(self._keys(held)):
                if held_key == key and held.kind[place] == OutcomeKind.REFUSED:
                    held.kind[place] = OutcomeKind.RETURNED
                    if np.all(held.kind == OutcomeKind.RETURNED):
                        self._sink.append(self._held.pop(number))
                    return True
        return False

    def _keys(self, outcomes: Outcomes) -> list[bytes]:
        """What a returned body would begin with."""
        return [row.tobytes()[: self._head_bytes] for row in envelope_bytes(outcomes.head)]
