"""Messages received, collected into columns: many at once, or one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench_spark.measure.envelope import joined_envelopes, leading_envelopes
from bench_spark.transports.base import Headers, Part, Received, nothing_received

Row = tuple[int, int, int, int, int, int, bytes, Headers]
"""When, lane, route, delivery tag, redelivered (a bit), size, body, headers."""
NO_HEADERS: Headers = {}


class Arrivals:
    """Shared by the lanes of one agent: a thousand lanes with a message each make one batch.

    The token of what is taken holds the delivery tags.
    """

    def __init__(self, want: frozenset[Part]) -> None:
        self.wants_bodies = Part.BODY in want
        self.wants_headers = Part.HEADERS in want
        self._rows: list[Row] = []
        self._parts: list[Received] = []
        self._nothing = nothing_received()

    def __bool__(self) -> bool:
        return bool(self._rows or self._parts)

    def add_row(self, row: Row) -> None:
        """One message, in the order of `Row`; of its body at least the envelope."""
        self._rows.append(row)

    def add_run(self, run: Received) -> None:
        self._close_rows()
        self._parts.append(run)

    def take(self) -> Received:
        self._close_rows()
        parts, self._parts = self._parts, []
        if not parts:
            return self._nothing
        return parts[0] if len(parts) == 1 else self._joined(parts)

    def _close_rows(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        at_ns, lane, route, tags, redelivered, sizes, bodies, headers = zip(*rows, strict=True)
        self._parts.append(
            Received(
                received_ns=np.array(at_ns, np.int64),
                lane=np.array(lane, np.uint32),
                route=np.array(route, np.uint16),
                head=leading_envelopes(bodies),
                size=np.array(sizes, np.uint32),
                redelivered=np.array(redelivered, np.bool_),
                bodies=bodies if self.wants_bodies else None,
                headers=headers if self.wants_headers else None,
                token=np.array(tags, np.uint64),
            )
        )

    def _joined(self, parts: list[Received]) -> Received:
        return Received(
            received_ns=np.concatenate([one.received_ns for one in parts]),
            lane=np.concatenate([one.lane for one in parts]),
            route=np.concatenate([one.route for one in parts]),
            head=joined_envelopes([one.head for one in parts]),
            size=np.concatenate([one.size for one in parts]),
            redelivered=np.concatenate([one.redelivered for one in parts]),
            bodies=_chained([one.bodies for one in parts]) if self.wants_bodies else None,
            headers=_chained([one.headers for one in parts]) if self.wants_headers else None,
            token=np.concatenate([one.token for one in parts]),
        )


def _chained(parts: Sequence[Sequence[Any] | None]) -> list[Any]:
    return [one for part in parts for one in part or ()]
