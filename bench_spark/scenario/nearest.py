"""What a misspelt word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILAR_ENOUGH = 0.65
_LONGEST_WORD = 100
_SHORTEST_PREFIX = 3


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `word`, or None if a guess would rather mislead than help.

    Case and the choice between '-', '_', '.' and a space do not count. A beginning that only one
    candidate has is taken for it: `rate` for `rate_per_second`.
    """
    if len(word) > _LONGEST_WORD:
        return None
    by_plain = {_plain(candidate): candidate for candidate in candidates}
    plain = _plain(word)
    if len(plain) >= _SHORTEST_PREFIX:
        completions = [known for known in by_plain if known.startswith(plain)]
        if len(completions) == 1:
            return by_plain[completions[0]]
    similar = difflib.get_close_matches(plain, by_plain, n=1, cutoff=_SIMILAR_ENOUGH)
    return by_plain[similar[0]] if similar else None


def _plain(word: str) -> str:
    return word.lower().translate(str.maketrans("- .", "___"))
