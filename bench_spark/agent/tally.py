"""How many messages an agent has sent and got: what the parts of its loop know of each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Every number has one part that adds to it, and others that read it."""

    sent: int = 0
    """Accepted by the transport."""
    received: int = 0
    """Of this run: what another one left behind counts for nothing here."""
    freed: int = 0
    """Refused or returned by the broker: no longer on their way."""
    reopened: int = 0
    """Lanes that came back, not messages."""
