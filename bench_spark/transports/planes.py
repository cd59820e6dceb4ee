"""Which data plane moves the messages: the fast one, or the client library's own, the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Plane:
    library: str
    """The client library and its version."""
    name: str
    reason: str = ""
    """Why it is not the one that was asked for."""

    @property
    def is_fast(self) -> bool:
        return self.name == "fast"

    @property
    def client_library(self) -> str:
        """For the result: what moved the messages."""
        because = f": {self.reason}" if self.reason else ""
        return f"{self.library} ({self.name} plane{because})"


def plane_of(library: str, asked: str, reference: str, obstacle: Callable[[], str | None]) -> Plane:
    """The one asked for, or the reference where there is an obstacle to the fast one."""
    if asked == reference:
        return Plane(library, reference)
    found = obstacle()
    return Plane(library, "fast") if found is None else Plane(library, reference, found)
