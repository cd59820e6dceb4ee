"""What became of the messages of one producer lane, from the broker's acknowledgements. Pure.

QoS 1: a PUBACK is the end. QoS 2: a PUBREC is answered by a PUBREL, and the PUBCOMP that follows is
the end. In version 5 a PUBACK or PUBREC may also say no.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from bench_spark.core.envelope import Envelopes
from bench_spark.transports.base import U16, OutcomeKind, Outcomes
from bench_spark.transports.mqtt.acks import AckRuns, identifiers_in
from bench_spark.transports.mqtt.identifiers import PacketIdentifiers
from bench_spark.transports.mqtt.packets import FAILED, PUBACK, PUBCOMP, PUBREC, BadPacket
from bench_spark.transports.mqtt.parsing import Message
from bench_spark.transports.sockets.runs import ReadBuffer


class Settlement:
    """The receiver of one producer lane. Outcomes are appended to `sink`, which lanes may share."""

    def __init__(
        self, lane: int, in_flight: int, sink: list[Outcomes], release: Callable[[U16], None]
    ) -> None:
        """`in_flight`: most messages unacknowledged; 0 without acknowledgements. `release` is told
        of identifiers to be released (PUBREL)."""
        self._lane = lane
        self._identifiers = PacketIdentifiers(in_flight) if in_flight else None
        self._sink = sink
        self._release = release
        self._runs = AckRuns()
        self._collected: list[tuple[int, int, int]] = []
        """Kind, identifier and reason code of acknowledgements that came one by one."""

    @property
    def room(self) -> int:
        """How many more may be sent now."""
        return sys.maxsize if self._identifiers is None else self._identifiers.room

    @property
    def in_flight(self) -> int:
        return 0 if self._identifiers is None else self._identifiers.open_count

    def sent(self, heads: Envelopes) -> U16 | None:
        """The identifiers to send these messages with; None where they have none."""
        return None if self._identifiers is None else self._identifiers.sent(heads)

    def abandon(self, at_ns: int) -> None:
        """The lane is gone: what is still open will never be known."""
        if self._identifiers is not None:
            self._settle(self._identifiers.abandon(), OutcomeKind.UNKNOWN, at_ns)

    # -- what arrives ------------------------------------------------------------------------------

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        at = start
        while (run := self._runs.at(buffer, at, end)) is not None:
            kind, code, rows = run
            self._settle_collected(at_ns)
            self._acknowledged(kind, identifiers_in(rows), code, at_ns)
            at += rows.size
        return at - start

    def on_ack(self, kind: int, identifier: int, code: int, at_ns: int) -> None:
        self._collected.append((kind, identifier, code))

    def on_message(self, message: Message, at_ns: int) -> None:
        raise BadPacket("a message to somebody who has not subscribed to any")

    def on_read_end(self, at_ns: int) -> None:
        self._settle_collected(at_ns)

    def _settle_collected(self, at_ns: int) -> None:
        if not self._collected:
            return
        collected, self._collected = self._collected, []
        groups: dict[tuple[int, int], list[int]] = {}
        for kind, identifier, code in collected:
            groups.setdefault((kind, code), []).append(identifier)
        for (kind, code), identifiers in groups.items():
            self._acknowledged(kind, np.array(identifiers, np.uint16), code, at_ns)

    def _acknowledged(self, kind: int, identifiers: U16, code: int, at_ns: int) -> None:
        if self._identifiers is None:
            return
        if kind == PUBREC and code < FAILED:
            own = self._identifiers.received(identifiers)
            if len(own):
                self._release(own)
        elif kind in (PUBACK, PUBREC):
            outcome = OutcomeKind.REFUSED if code >= FAILED else OutcomeKind.CONFIRMED
            self._settle(self._identifiers.settle(identifiers), outcome, at_ns)
        elif kind == PUBCOMP:
            self._settle(self._identifiers.settle(identifiers), OutcomeKind.CONFIRMED, at_ns)

    def _settle(self, heads: Envelopes, kind: OutcomeKind, at_ns: int) -> None:
        count = len(heads)
        if count:
            self._sink.append(
                Outcomes.of_columns(
                    at_ns=np.full(count, at_ns, np.int64),
                    lane=np.full(count, self._lane, np.uint32),
                    kind=np.full(count, kind, np.uint8),
                    head=heads,
                )
            )
