"""Signals, handled for the length of a `with`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends the program gently beside Ctrl-C: a terminal that is closed means the same."""

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Python lets only the main thread handle signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers if not _is_nohup(number)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _is_nohup(number: signal.Signals) -> bool:
    """Whoever starts a run by `nohup` wants it to outlive the terminal."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
