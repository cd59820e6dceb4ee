"""Numbers that look random and belong to a message: the same for it, whoever asks and how often.

A message that was refused keeps what was chosen for it, and every data plane chooses the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes

U64 = npt.NDArray[np.uint64]

_PRODUCER_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIXERS = (
    (np.uint64(30), np.uint64(0xBF58_476D_1CE4_E5B9)),
    (np.uint64(27), np.uint64(0x94D0_49BB_1331_11EB)),
)


def mixed(heads: Envelopes) -> U64:
    """64 bits for each message, evenly spread, in no order (splitmix64's mixing)."""
    bits: U64 = (heads["producer"] + np.uint64(1)) * _PRODUCER_STEP + heads["sequence"]
    bits *= _PRODUCER_STEP
    for shift, factor in _MIXERS:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits


def fractions(heads: Envelopes) -> npt.NDArray[np.float64]:
    """The same as a number from 0 to 1, 1 excluded."""
    return (mixed(heads) >> np.uint64(11)).astype(np.float64) * 2.0**-53
