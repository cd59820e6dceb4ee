"""Random numbers that belong to a message, and random bytes that fill bodies.

The numbers are the same for a message, whoever asks and how often: one that was refused keeps what
was chosen for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes
from bench_spark.core.kernels import kernel

U64 = npt.NDArray[np.uint64]

_PRODUCER_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIXERS = (
    (np.uint64(30), np.uint64(0xBF58_476D_1CE4_E5B9)),
    (np.uint64(27), np.uint64(0x94D0_49BB_1331_11EB)),
)


def mixed(envelopes: Envelopes) -> U64:
    """64 bits for each message, evenly spread, in no order (splitmix64's mixing)."""
    bits: U64 = (envelopes["producer"] + np.uint64(1)) * _PRODUCER_STEP + envelopes["sequence"]
    bits *= _PRODUCER_STEP
    for shift, factor in _MIXERS:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits


def fractions(envelopes: Envelopes) -> npt.NDArray[np.float64]:
    """The same as a number from 0 to 1, 1 excluded."""
    return (mixed(envelopes) >> np.uint64(11)).astype(np.float64) * 2.0**-53


U8 = npt.NDArray[np.uint8]

_WORD_BYTES = 8
_STREAMS = 4
"""Side by side: the next word of a generator waits for the one before it."""


@kernel
def fill_random(words: U64, count: int, state: U64) -> None:
    """Write the next words of Marsaglia's xorshift generators, at least so many."""
    a, b, c, d = state[0], state[1], state[2], state[3]
    left, right, again = np.uint64(13), np.uint64(7), np.uint64(17)
    for at in range(0, count, _STREAMS):
        a ^= a << left
        b ^= b << left
        c ^= c << left
        d ^= d << left
        a ^= a >> right
        b ^= b >> right
        c ^= c >> right
        d ^= d >> right
        a ^= a << again
        b ^= b << again
        c ^= c << again
        d ^= d << again
        words[at] = a
        words[at + 1] = b
        words[at + 2] = c
        words[at + 3] = d
    state[0], state[1], state[2], state[3] = a, b, c, d


class RandomBytes:
    """A stream of random bytes, the same for the same seed. Some gigabytes a second."""

    def __init__(self, seed: int) -> None:
        self.state: U64 = np.random.SFC64(seed).random_raw(_STREAMS) | np.uint64(1)

    def rows(self, count: int, width: int) -> U8:
        """The next bytes of the stream, so many in each row."""
        return RandomRows(self, count, width).rows


class RandomRows:
    """Rows of random bytes that can be drawn anew in place."""

    def __init__(self, source: RandomBytes, count: int, width: int) -> None:
        self._state = source.state
        self._width = width
        words = -(-count * width // (_WORD_BYTES * _STREAMS)) * _STREAMS
        self._words: U64 = np.empty(words, np.uint64)
        # In one piece: kernels are compiled for arrays without gaps.
        self.rows: U8 = self._words.view(np.uint8)[: count * width].reshape(count, width)
        self.renew(count)

    def renew(self, count: int) -> None:
        """Draw the first rows anew."""
        fill_random(self._words, -(-count * self._width // _WORD_BYTES), self._state)
