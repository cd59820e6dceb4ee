"""Where librdkafka's own log lines go: to a Python logger, a few at a time, never to the terminal.

A client whose broker is gone writes some twenty lines a second, all alike.
"""

from __future__ import annotations

import logging
import time

_LINES_PER_PERIOD = 10
_PERIOD_SECONDS = 10.0

LOGGER = logging.getLogger("bench_spark.transports.kafka")
# Without a handler of its own Python would print warnings on standard error when a program that
# embeds us has not configured logging.
LOGGER.addHandler(logging.NullHandler())


class QuietLog:
    """Stands in for a `logging.Logger` towards confluent-kafka, which only calls `log`."""

    def __init__(self) -> None:
        self._period_ends = 0.0
        self._lines = 0

    def log(self, level: int, text: str, *arguments: object) -> None:
        now = time.monotonic()
        if now >= self._period_ends:
            if self._lines > _LINES_PER_PERIOD:
                LOGGER.info("%d more lines of librdkafka left out", self._lines - _LINES_PER_PERIOD)
            self._period_ends = now + _PERIOD_SECONDS
            self._lines = 0
        self._lines += 1
        if self._lines <= _LINES_PER_PERIOD:
            LOGGER.log(level, text, *arguments)
