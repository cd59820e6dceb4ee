"""Messages as agents and transports pass them to each other: by column, never one by one.

What is sent (`Batch`), what became of it (`Outcomes`) and what arrived (`Received`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bench_spark.measure.envelope import Envelopes, empty_envelopes, joined_envelopes

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
ItemT = TypeVar("ItemT")


class Part(Enum):
    """What a message has besides its head. Which of them a protocol has: `registry.parts_of`."""

    BODY = "body"
    KEY = "key"
    HEADERS = "headers"


HEAD_ONLY: frozenset[Part] = frozenset()

Headers = Mapping[str, bytes]
"""Of one message: values by name. Text is UTF-8; where a name comes twice, its last value."""


@dataclass
class Batch:
    """Messages to send, in order. Body = head (cut to the body's size) + tail.

    With `head_bytes` 0 the tails are whole bodies. The heads still say which message is which, and
    come back in its outcome.

    The arrays are the agent's: it uses them again after `send`, so a transport keeps copies.
    """

    lane: U32
    head: Envelopes
    tail: bytes | Sequence[bytes]
    """One shared by all (frames may be cached), or one per message."""
    route: U16
    keys: Sequence[bytes] | None = None
    head_bytes: int = 32
    """How many bytes of each head go into the body: 32, fewer for tiny bodies, or none."""
    headers: Sequence[Headers] | None = None
    """Only for protocols that have them (`Part.HEADERS`); MQTT takes text only."""
    sizes: U32 | None = None
    """Of the bodies, for the agent's own books, where they differ."""
    hashes: I64 | None = None
    """Of the bodies' contents, likewise, where they are asked for."""

    def __len__(self) -> int:
        return len(self.head)

    def starting_at(self, first: int) -> Batch:
        """What is left after `first` messages were accepted (views, no copies of heads)."""
        return Batch(
            lane=self.lane[first:],
            head=self.head[first:],
            tail=self.tail if isinstance(self.tail, bytes) else self.tail[first:],
            route=self.route[first:],
            keys=None if self.keys is None else self.keys[first:],
            head_bytes=self.head_bytes,
            hashes=None if self.hashes is None else self.hashes[first:],
            headers=None if self.headers is None else self.headers[first:],
        )

    def rows(self, places: I64) -> Batch:
        """Some of these messages, in that order (copies)."""

        def of(column: Sequence[ItemT]) -> Sequence[ItemT]:
            return [column[place] for place in places.tolist()]

        return Batch(
            lane=self.lane[places],
            head=self.head[places],
            tail=self.tail if isinstance(self.tail, bytes) else of(self.tail),
            route=self.route[places],
            keys=None if self.keys is None else of(self.keys),
            head_bytes=self.head_bytes,
            hashes=None if self.hashes is None else self.hashes[places],
            headers=None if self.headers is None else of(self.headers),
        )


class OutcomeKind(IntEnum):
    CONFIRMED = 0
    REFUSED = 1
    RETURNED = 2
    UNKNOWN = 3


@dataclass
class Outcomes:
    """What became of messages sent earlier, with the heads they were sent with."""

    at_ns: I64
    lane: U32
    kind: U8
    head: Envelopes
    answers: Sequence[bytes] | None = None
    """What the peer answered to each, where the protocol has answers and the scenario wants them;
    empty where there was none."""

    def __len__(self) -> int:
        return len(self.head)


@dataclass
class Received:
    """Messages received, in order per lane. Bodies are views until the next receive.

    `head` holds the first bytes of the body, padded with zeros where the body is shorter than 32
    bytes; `size` is the true body size.
    """

    received_ns: I64
    lane: U32
    route: U16
    head: Envelopes
    size: U32
    redelivered: Bool
    bodies: Sequence[bytes] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    token: Any = None
    """What the transport needs to acknowledge exactly these messages: an array with a place for
    each, or None."""
    hashes: I64 | None = None
    """Of the bodies' contents, put there by the agent where they are asked for."""
    corrupted: Bool | None = None
    """Likewise: whose content is not what this agent sent."""

    def __len__(self) -> int:
        return len(self.head)

    def rows(self, places: slice | I64) -> Received:
        """Some of these messages."""

        def of(column: Sequence[Any] | None) -> Sequence[Any] | None:
            if column is None:
                return None
            if isinstance(places, slice):
                return column[places]
            return [column[place] for place in places.tolist()]

        return Received(
            received_ns=self.received_ns[places],
            lane=self.lane[places],
            route=self.route[places],
            head=self.head[places],
            size=self.size[places],
            redelivered=self.redelivered[places],
            bodies=of(self.bodies),
            keys=of(self.keys),
            headers=of(self.headers),
            token=None if self.token is None else self.token[places],
            hashes=None if self.hashes is None else self.hashes[places],
            corrupted=None if self.corrupted is None else self.corrupted[places],
        )


def joined(parts: Sequence[Received]) -> Received:
    """Messages of several receives of one transport, without bodies, keys and headers."""
    if not parts:
        return nothing_received()
    if len(parts) == 1:
        return parts[0]
    return Received(
        received_ns=np.concatenate([part.received_ns for part in parts]),
        lane=np.concatenate([part.lane for part in parts]),
        route=np.concatenate([part.route for part in parts]),
        head=np.concatenate([part.head for part in parts]),
        size=np.concatenate([part.size for part in parts]),
        redelivered=np.concatenate([part.redelivered for part in parts]),
        token=_chained([part.token for part in parts]),
        hashes=_chained([part.hashes for part in parts]),
        corrupted=_chained([part.corrupted for part in parts]),
    )


def _chained(columns: Sequence[Any]) -> Any:
    """A column that all parts have or none of them."""
    return None if columns[0] is None else np.concatenate(columns)


def no_outcomes() -> Outcomes:
    return Outcomes(
        np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint8), empty_envelopes(0)
    )


_NO_OUTCOMES = no_outcomes()


def joined_outcomes(parts: Sequence[Outcomes]) -> Outcomes:
    if len(parts) < 2:
        return parts[0] if parts else _NO_OUTCOMES
    return Outcomes(
        at_ns=np.concatenate([one.at_ns for one in parts]),
        lane=np.concatenate([one.lane for one in parts]),
        kind=np.concatenate([one.kind for one in parts]),
        head=joined_envelopes([one.head for one in parts]),
        answers=_joined_answers(parts),
    )


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
    return Received(
        received_ns=np.zeros(0, np.int64),
        lane=np.zeros(0, np.uint32),
        route=np.zeros(0, np.uint16),
        head=empty_envelopes(0),
        size=np.zeros(0, np.uint32),
        redelivered=np.zeros(0, np.bool_),
    )
