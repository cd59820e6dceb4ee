"""Regular expressions that files bring along, with an end to every search.

They have Python's syntax and meet data of any kind: bodies, records, command lines. Some patterns
take a time that grows exponentially with the text ("(x+x+)+y" in Python's own engine), so the
engine is that of the package `regex`, which can give up.
"""

from __future__ import annotations

import warnings
from typing import AnyStr, Generic

import regex

SEARCH_SECONDS = 0.1
"""CPU time that a search may take, and as much again for every so many bytes:"""
_BYTES_PER_SEARCH_SECONDS = 1_000_000


class TooSlow(Exception):
    """A search that was given up; the text names the pattern."""


class Pattern(Generic[AnyStr]):
    def __init__(self, text: AnyStr) -> None:
        """Raises ValueError where the text is no regular expression."""
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                self._compiled: regex.Pattern[AnyStr] = regex.compile(text)
        except (regex.error, OverflowError, RecursionError, MemoryError) as error:
            raise ValueError(f"is no regular expression: {error}") from None
        self._text: AnyStr = text
        self.groups = self._compiled.groups

    def search(self, data: AnyStr) -> regex.Match[AnyStr] | None:
        try:
            return self._compiled.search(data, timeout=_seconds_for(data))
        except TimeoutError:
            raise self._too_slow(data) from None

    def all_in(self, data: AnyStr) -> list[regex.Match[AnyStr]]:
        """All matches that do not overlap."""
        try:
            return list(self._compiled.finditer(data, timeout=_seconds_for(data)))
        except TimeoutError:
            raise self._too_slow(data) from None

    def _too_slow(self, data: AnyStr) -> TooSlow:
        text = self._text if isinstance(self._text, str) else self._text.decode()
        return TooSlow(f"{text} takes longer than {_seconds_for(data):.1f} s")


def _seconds_for(data: AnyStr) -> float:
    return SEARCH_SECONDS * (1 + len(data) / _BYTES_PER_SEARCH_SECONDS)
