"""An interpreter that interrupts the loop as little as possible."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

SWITCH_SECONDS = 0.0005


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection and short thread switches while the load runs."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()
