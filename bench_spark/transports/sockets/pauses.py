"""How long lost lanes wait before they are dialled again."""

from __future__ import annotations

import random

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class Pauses:
    """Doubled each time, and never the same twice."""

    def __init__(self) -> None:
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        # Agents that lost the same broker must not come back in step.
        return pause * random.uniform(0.5, 1.0)
