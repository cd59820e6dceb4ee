"""Lanes that are down, and what the time they were down cost. Pure: the caller owns the clock.

`Outages` keeps the record of who was down for how long. `WriteOff` answers the question that a lost
connection leaves behind: how many of the messages that are out will never arrive?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench_spark.core.clock import NANOSECONDS

QUIET_NS = NANOSECONDS
"""Once a lane is back, messages that survived arrive; when none has for this long, none will."""


@dataclass
class Outage:
    """What one lane went through, all its losses together."""

    role: str
    member: int
    losses: int = 0
    reopened: int = 0
    down_ns: int = 0
    reason: str = ""
    """Of the last loss, in the broker's words where it has any."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "member": self.member,
            "losses": self.losses,
            "reopened": self.reopened,
            "down_seconds": self.down_ns / NANOSECONDS,
            "reason": self.reason,
        }


class Outages:
    """Of the lanes of one agent."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], Outage] = {}
        self._booked_until: dict[tuple[str, int], int] = {}
        """Of lanes that are down: up to when their down time is booked."""

    def count_down(self, role: str | None = None) -> int:
        """How many lanes are down, of this role or of both."""
        return sum(1 for of_role, _ in self._booked_until if role in (None, of_role))

    def is_down(self, role: str, lane: int) -> bool:
        return (role, lane) in self._booked_until

    def lost(self, role: str, lane: int, member: int, at_ns: int, reason: str) -> None:
        outage = self._lanes.setdefault((role, lane), Outage(role, member))
        outage.losses += 1
        outage.reason = reason
        self._booked_until[role, lane] = at_ns

    def book(
        self, role: str, lane: int, until_ns: int, tick_end_ns: Callable[[int], int]
    ) -> list[tuple[int, int]]:
        """How long the lane was down since it was booked last: by tick, a moment in it and that.

        `tick_end_ns`: when the tick ends in which a moment lies.
        """
        pieces = []
        since_ns = self._booked_until[role, lane]
        while since_ns < until_ns:
            end_ns = min(until_ns, tick_end_ns(since_ns))
            pieces.append((since_ns, end_ns - since_ns))
            since_ns = end_ns
        self._booked_until[role, lane] = since_ns
        self._lanes[role, lane].down_ns += sum(down_ns for _, down_ns in pieces)
        return pieces

    def reopened(self, role: str, lane: int) -> None:
        """The lane is up again; its down time was booked before."""
        self._lanes[role, lane].reopened += 1
        del self._booked_until[role, lane]

    def down(self) -> list[tuple[str, int]]:
        """Role and lane of all that are down."""
        return list(self._booked_until)

    def report(self) -> list[dict[str, Any]]:
        found = sorted(self._lanes.values(), key=lambda one: (one.role, one.member))
        return [outage.as_dict() for outage in found]


class Quiet:
    """How long a number has not changed."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._since_ns = 0

    def lasts_ns(self, number: int, now_ns: int) -> int:
        if number != self._seen:
            self._seen, self._since_ns = number, now_ns
        return now_ns - self._since_ns

    def start_again(self) -> None:
        self._seen = None


class WriteOff:
    """Messages that are counted as out although they went down with a connection.

    Without confirms nobody can tell them from those still on their way. So after a connection came
    back they are written off once nothing has arrived for `QUIET_NS`. Those that arrive all the
    same are taken back.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.is_due = False
        """A connection came back, and it is not known yet what went down with it."""
        self._quiet = Quiet()

    def reopened(self) -> None:
        self.is_due = True
        self._quiet.start_again()

    def look(self, out: int, received: int, now_ns: int) -> None:
        """`out`: sent, and not received or known to have failed."""
        self.messages = max(0, min(self.messages, out))
        if self.is_due and (out <= 0 or self._quiet.lasts_ns(received, now_ns) >= QUIET_NS):
            self.messages = max(0, out)
            self.is_due = False
