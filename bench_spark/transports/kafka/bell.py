"""A descriptor that other threads make readable, so that the agent can wait for them."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """A pipe that holds a byte while something new is waiting.

    Order matters: a thread puts its news down first and rings then; the agent hushes the bell first
    and collects then. So news may cost one needless look, but can never be overlooked.
    """

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer, False)
        self._is_rung = False

    @property
    def ringing_descriptor(self) -> int:
        """For a library that rings by writing to it, a byte each time."""
        return self._writer

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            os.write(self._writer, b"!")

    def hush(self) -> None:
        # Read even if nobody seems to have rung: a thread may be between marking and writing.
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 64)
        self._is_rung = False

    def close(self) -> None:
        """Only once no thread is left that could ring: the number may be given to another file."""
        os.close(self.descriptor)
        os.close(self._writer)
