"""Random bytes by the row: what fills bodies that have nothing to say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORD_BYTES = 8


class RandomBytes:
    """A stream of random bytes, the same for the same seed. Some gigabytes a second: whole words
    straight from the generator, without the detours of `Generator.bytes`."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.SFC64(seed)

    def rows(self, count: int, width: int) -> npt.NDArray[np.uint8]:
        """The next bytes of the stream, so many in each row."""
        words = -(-width // _WORD_BYTES)
        drawn: npt.NDArray[np.uint8] = self._source.random_raw(count * words).view(np.uint8)
        return drawn.reshape(count, words * _WORD_BYTES)[:, :width]
