"""Messages as agents and transports pass them to each other: by column, never one by one.

What is sent (`Batch`), what became of it (`Outcomes`) and what arrived (`Received`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import ENVELOPE_DTYPE, Envelopes, word_rows_of

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
ItemT = TypeVar("ItemT")


class Part(Enum):
    """What consumers hand over of a message, where it is wanted, besides the envelope in
    `Received.rows`. `Capabilities.parts` says which parts a protocol has."""

    BODY = "body"
    KEY = "key"
    HEADERS = "headers"


ENVELOPE_ONLY: frozenset[Part] = frozenset()

Payloads = bytes | U8 | Sequence[bytes]
"""What follows the envelopes of messages: the same bytes for all, or a row of a two-dimensional
array for each, or bytes of any length for each."""

Headers = Mapping[str, bytes]
"""Of one message: values by name. Text is UTF-8. Of several values of one name, the last one."""


@dataclass
class Batch:
    """Messages to send, in order. Body = first `envelope_bytes` of the envelope + payload.

    With `envelope_bytes` 0 the payloads are whole bodies. The envelopes are not sent then, but say
    which message is which and come back in the outcomes.

    The agent owns the arrays and reuses them after `send`: a transport copies what it keeps.
    """

    lane: U32
    envelope: Envelopes
    payload: Payloads
    """One for all messages (a transport may cache whole frames), or one per message."""
    route: U16
    keys: Sequence[bytes] | None = None
    envelope_bytes: int = 32
    """How much of each envelope is sent: 32 bytes, 8 (the send time) in smaller bodies, or none."""
    headers: Sequence[Headers] | None = None
    """Only for protocols that have them (`Part.HEADERS`). MQTT takes text only."""
    sizes: U32 | None = None
    """Body sizes, for the agent's own counts, where they differ."""
    hashes: I64 | None = None
    """Of the bodies' contents, for the agent as well, where the scenario asks for them."""
    envelope_words: I64 = field(init=False, repr=False, compare=False)
    """The same memory as `envelope` in rows of four words, for kernels that are called for a few
    messages."""

    def __post_init__(self) -> None:
        self.envelope_words = word_rows_of(self.envelope)

    def __len__(self) -> int:
        return len(self.envelope)

    def fits(self, most_bytes: int) -> bool:
        """Whether the bodies have at most so many bytes in all; False if only a look at each body
        could tell."""
        payload = self.payload
        payload_bytes = len(payload) if type(payload) is bytes else common_payload_bytes(payload)
        return (
            payload_bytes is not None
            and len(self) * (self.envelope_bytes + payload_bytes) <= most_bytes
        )

    def part(self, start: int, end: int) -> Batch:
        """Some consecutive messages (views, no copies of envelopes)."""
        return Batch(
            lane=self.lane[start:end],
            envelope=self.envelope[start:end],
            payload=self.payload if isinstance(self.payload, bytes) else self.payload[start:end],
            route=self.route[start:end],
            keys=None if self.keys is None else self.keys[start:end],
            envelope_bytes=self.envelope_bytes,
            hashes=None if self.hashes is None else self.hashes[start:end],
            headers=None if self.headers is None else self.headers[start:end],
        )

    def starting_at(self, first: int) -> Batch:
        """What is left after `first` messages were accepted."""
        return self.part(first, len(self))

    def at(self, places: I64) -> Batch:
        """Some of these messages, in that order (copies)."""

        def of(column: Sequence[ItemT]) -> Sequence[ItemT]:
            return [column[place] for place in places.tolist()]

        return Batch(
            lane=self.lane[places],
            envelope=self.envelope[places],
            payload=payloads_at(self.payload, places),
            route=self.route[places],
            keys=None if self.keys is None else of(self.keys),
            envelope_bytes=self.envelope_bytes,
            hashes=None if self.hashes is None else self.hashes[places],
            headers=None if self.headers is None else of(self.headers),
        )


def payloads_at(payloads: Payloads, places: I64) -> Payloads:
    """The payloads of some messages, in that order."""
    if isinstance(payloads, bytes):
        return payloads
    if isinstance(payloads, np.ndarray):
        rows: U8 = payloads[places]
        return rows
    return [payloads[place] for place in places.tolist()]


def each_payload(payloads: Payloads) -> Iterable[bytes]:
    """Payloads one after the other; one that all messages share is repeated without end."""
    if isinstance(payloads, bytes):
        return repeat(payloads)
    if isinstance(payloads, np.ndarray):
        return (row.tobytes() for row in payloads)
    return payloads


def common_payload_bytes(payloads: Payloads) -> int | None:
    """The length that all payloads have, or None if only a look at each could tell."""
    if isinstance(payloads, bytes):
        return len(payloads)
    return payloads.shape[1] if isinstance(payloads, np.ndarray) else None


class OutcomeKind(IntEnum):
    CONFIRMED = 0
    REFUSED = 1
    RETURNED = 2
    UNKNOWN = 3


OUTCOME_DTYPE = np.dtype(
    [
        ("at_ns", "<i8"),
        ("envelope", ENVELOPE_DTYPE),
        ("lane", "<u4"),
        ("kind", "u1"),
        # Explicit padding: numpy drops implicit gaps where it joins arrays, and kernels are
        # compiled for one layout.
        ("unused", "u1", (3,)),
    ]
)
"""What became of a message sent earlier, with the envelope that it was sent with. `kind` is an
OutcomeKind."""


@dataclass
class Outcomes:
    rows: Rows
    """Of OUTCOME_DTYPE; a view, valid until the next call."""
    answers: Sequence[bytes] | None = None
    """What the peer answered to each message, where the protocol has answers and the scenario wants
    them; empty for messages without an answer."""

    @classmethod
    def of_columns(
        cls,
        at_ns: I64,
        lane: U32,
        kind: U8,
        envelope: Envelopes,
        answers: Sequence[bytes] | None = None,
    ) -> Outcomes:
        rows = np.zeros(len(envelope), OUTCOME_DTYPE)
        rows["at_ns"] = at_ns
        rows["lane"] = lane
        rows["kind"] = kind
        rows["envelope"] = envelope
        return cls(rows, answers)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def at_ns(self) -> I64:
        return self.rows["at_ns"]

    @property
    def lane(self) -> U32:
        return self.rows["lane"]

    @property
    def kind(self) -> U8:
        return self.rows["kind"]

    @property
    def envelope(self) -> Envelopes:
        return self.rows["envelope"]


RECEIVED_DTYPE = np.dtype(
    [
        ("received_ns", "<i8"),
        ("tag", "<u8"),
        ("envelope", ENVELOPE_DTYPE),
        ("lane", "<u4"),
        ("size", "<u4"),
        ("subscription", "<i4"),
        ("route", "<u2"),
        ("redelivered", "?"),
        ("corrupted", "?"),
    ]
)
"""A message received: 64 bytes, which kernels write and read in place.

`envelope` holds the first bytes of the body, padded with zeros where the body is shorter than 32
bytes; `size` is the true size of the body. `tag` is the transport's own: what it needs to
acknowledge this message. The agent fills in `subscription` (its index among those that the agent
serves) and `corrupted` (the content is not what this agent sent).
"""

Rows = npt.NDArray[Any]
"""A one-dimensional array of RECEIVED_DTYPE or OUTCOME_DTYPE."""


@dataclass
class Received:
    """Messages received, in order per lane. Rows and bodies are views until the next receive."""

    rows: Rows
    """Of RECEIVED_DTYPE and contiguous: kernels are compiled for that layout."""
    bodies: Sequence[bytes] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    hashes: I64 | None = None
    """Of the bodies' contents, filled in by the agent where the scenario asks for them."""

    @classmethod
    def of_columns(
        cls,
        received_ns: I64,
        lane: U32,
        route: U16,
        envelope: Envelopes,
        size: U32,
        redelivered: Bool,
        tag: npt.NDArray[np.uint64] | None = None,
        **others: Any,
    ) -> Received:
        """Copy columns into rows. `others` are further fields of this class."""
        rows = np.zeros(len(envelope), RECEIVED_DTYPE)
        rows["received_ns"] = received_ns
        rows["lane"] = lane
        rows["route"] = route
        rows["envelope"] = envelope
        rows["size"] = size
        rows["redelivered"] = redelivered
        if tag is not None:
            rows["tag"] = tag
        return cls(rows, **others)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def received_ns(self) -> I64:
        return self.rows["received_ns"]

    @property
    def tag(self) -> npt.NDArray[np.uint64]:
        return self.rows["tag"]

    @property
    def envelope(self) -> Envelopes:
        return self.rows["envelope"]

    @property
    def lane(self) -> U32:
        return self.rows["lane"]

    @property
    def size(self) -> U32:
        return self.rows["size"]

    @property
    def route(self) -> U16:
        return self.rows["route"]

    @property
    def redelivered(self) -> Bool:
        return self.rows["redelivered"]

    @property
    def corrupted(self) -> Bool:
        return self.rows["corrupted"]

    def kept(self) -> Received:
        """The same messages, with a copy of the rows that stays valid after the next receive."""
        return replace(self, rows=self.rows.copy())

    def at(self, places: slice | I64) -> Received:
        """Some of these messages."""

        def of(column: Sequence[Any] | None) -> Sequence[Any] | None:
            if column is None:
                return None
            if isinstance(places, slice):
                return column[places]
            return [column[place] for place in places.tolist()]

        return Received(
            np.ascontiguousarray(self.rows[places]),
            bodies=of(self.bodies),
            keys=of(self.keys),
            headers=of(self.headers),
            hashes=None if self.hashes is None else self.hashes[places],
        )


def joined(parts: Sequence[Received]) -> Received:
    """Messages of several receives of one transport. Bodies, keys and headers are dropped, unless
    there is only one part."""
    if not parts:
        return nothing_received()
    if len(parts) == 1:
        return parts[0]
    return Received(
        np.concatenate([part.rows for part in parts]),
        hashes=_chained([part.hashes for part in parts]),
    )


def _chained(columns: Sequence[Any]) -> Any:
    """Concatenate a column that either all parts have or none."""
    return None if columns[0] is None else np.concatenate(columns)


def no_outcomes() -> Outcomes:
    return Outcomes(np.zeros(0, OUTCOME_DTYPE))


_NO_OUTCOMES = no_outcomes()


def joined_outcomes(parts: Sequence[Outcomes]) -> Outcomes:
    if len(parts) < 2:
        return parts[0] if parts else _NO_OUTCOMES
    return Outcomes(np.concatenate([one.rows for one in parts]), _joined_answers(parts))


def _joined_answers(parts: Sequence[Outcomes]) -> list[bytes] | None:
    if all(one.answers is None for one in parts):
        return None
    empty = repeat(b"")
    return [
        answer
        for one in parts
        for answer, _ in zip(one.answers or empty, range(len(one)), strict=False)
    ]


def nothing_received() -> Received:
    return Received(np.zeros(0, RECEIVED_DTYPE))
