"""Delivery tags that say of which generation of a lane they are. Pure.

A broker counts deliveries from 1 on every channel. What was received before a lane was lost must
not be acknowledged on its next channel, where the same numbers mean other messages; so the upper
bits of a tag hold the generation, as long as it is inside this program.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_SHIFT = 48
_TAG_BITS = (1 << _SHIFT) - 1


def mark(generation: int) -> int:
    """To be added to the tags of that generation; 0 for the first."""
    return generation << _SHIFT


def own_tags(tags: U64, generation: int) -> U64:
    """Those that are of this generation, as the broker knows them."""
    if not generation:
        return tags  # there were no others yet
    is_own = tags >> np.uint64(_SHIFT) == np.uint64(generation)
    own: U64 = tags[is_own] & np.uint64(_TAG_BITS)
    return own


def own_tag(tag: int, generation: int) -> int | None:
    """The tag as the broker knows it; None where it is of another generation."""
    return tag & _TAG_BITS if tag >> _SHIFT == generation else None
