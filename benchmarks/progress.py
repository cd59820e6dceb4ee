"""Steady figures from what a tool says while it runs. Pure.

Every tool prints how far it is about once a second. Between the first such word after the warm-up
and the last one lie only seconds in which messages moved: starting (a JVM, a connection, a group to
join) and ending are left out, of the messages as well as of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import CLIENT_CPU, RATE, Figures


@dataclass(frozen=True)
class Progress:
    at_seconds: float
    messages: int
    """Moved since the tool was started."""
    cpu_seconds: float
    """Used since the tool was started."""


class NoFigures(Exception):
    """A tool ended, or was ended, before it had said enough."""


def steady(progress: Sequence[Progress], warmup_seconds: float) -> Figures:
    """Rate and CPU per message from the end of the warm-up on, which begins with the first word."""
    since = [one for one in progress if one.at_seconds - progress[0].at_seconds >= warmup_seconds]
    if len(since) < 2 or since[-1].messages <= since[0].messages:
        raise NoFigures(f"only {len(since)} of {len(progress)} progress lines are of steady load")
    messages = since[-1].messages - since[0].messages
    seconds = since[-1].at_seconds - since[0].at_seconds
    cpu = since[-1].cpu_seconds - since[0].cpu_seconds
    return {RATE: messages / seconds, CLIENT_CPU: cpu * 1e6 / messages}
