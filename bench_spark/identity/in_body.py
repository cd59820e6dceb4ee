"""IDs inside bodies: before the record, behind it, or where a pattern says.

Where the ID goes (`Placing`) and where it is looked for (`Finding`) are two things: a system that
wraps or changes bodies moves what was put in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import regex

from bench_spark.core.identity import ID_BYTES
from bench_spark.datasets.source import Records
from bench_spark.errors import RunError
from bench_spark.identity.base import NO_ID, Carried, NoPlace
from bench_spark.scenario.pattern import Pattern, TooSlow
from bench_spark.transports.base import Part, Received

_SAMPLE_ID = b"0123456789abcdef" * 2
_BODY = frozenset({Part.BODY})

MOST_GIVEN_UP = 10
"""Messages on which `identity.find` may take too long, and which count as malformed; then the run
fails: an agent that waits for a pattern keeps no schedule."""


class Placing(Protocol):
    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]: ...

    def ambiguity(self, record: bytes) -> str | None: ...


class Finding(Protocol):
    def find(self, bodies: Sequence[bytes]) -> list[bytes]: ...

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]: ...


class Before:
    """Both a placing and a finding, as are the next two."""

    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        return [one + body for one, body in zip(ids, bodies, strict=True)]

    def ambiguity(self, record: bytes) -> str | None:
        return None

    def find(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[:ID_BYTES] for body in bodies]

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[ID_BYTES:] for body in bodies]


class Behind:
    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        return [body + one for one, body in zip(ids, bodies, strict=True)]

    def ambiguity(self, record: bytes) -> str | None:
        return None

    def find(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[-ID_BYTES:] for body in bodies]

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[:-ID_BYTES] for body in bodies]


class AtMatch:
    """At the start of the pattern's group, or behind the match of a pattern without one."""

    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._pattern = pattern
        self._has_group = pattern.groups > 0

    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        carried = []
        for place, (one, body) in enumerate(zip(ids, bodies, strict=True)):
            try:
                match = self._pattern.search(body)
            except TooSlow as error:
                raise NoPlace(place, f"identity.insert: {error}") from error
            at = -1 if match is None else self._at(match)
            if at < 0:
                raise NoPlace(place, "identity.insert does not match")
            carried.append(body[:at] + one + body[at:])
        return carried

    def _at(self, match: regex.Match[bytes]) -> int:
        """-1 for a group that has no part in the match."""
        return match.start(1) if self._has_group else match.end()

    def ambiguity(self, record: bytes) -> str | None:
        try:
            places = [self._at(match) for match in self._pattern.all_in(record)]
        except TooSlow as error:
            return f"identity.insert: {error}"
        if not places or places[0] < 0:
            return "identity.insert does not match"
        if len(places) > 1:
            return f"identity.insert matches {len(places)} times"
        return None


class ByPattern:
    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._pattern = pattern
        self._given_up = 0

    def _search(self, body: bytes) -> regex.Match[bytes] | None:
        """None also where the search was given up; after some of those, the run is."""
        try:
            return self._pattern.search(body)
        except TooSlow as error:
            self._given_up += 1
            if self._given_up >= MOST_GIVEN_UP:
                text = f"identity.find: {error} on each of {self._given_up} messages"
                raise RunError(text) from error
            return None

    def find(self, bodies: Sequence[bytes]) -> list[bytes]:
        search = self._search
        return [match[1] or NO_ID if (match := search(body)) else NO_ID for body in bodies]

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]:
        search = self._search
        return [
            body[: match.start(1)] + body[match.end(1) :] if (match := search(body)) else body
            for body in bodies
        ]


class InBody:
    """The carriers `prefix`, `append` and `regex`."""

    puts_into = _BODY
    wants = _BODY
    added_bytes = ID_BYTES

    def __init__(
        self,
        placing: Placing,
        finding: Finding,
        find_pattern: Pattern[bytes] | None,
        has_given_pattern: bool = False,
    ) -> None:
        """`find_pattern`: what `finding` goes by, if that is a pattern. `has_given_pattern`: the
        scenario gives it, for what the system makes of a record and not for the record."""
        self._placing = placing
        self._finding = finding
        self._find_pattern = find_pattern
        self.has_given_pattern = has_given_pattern

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        bodies = self._placing.put(ids, records.bodies)
        return Carried(bodies, records.keys, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return self._finding.find(received.bodies or ())

    def contents(self, received: Received) -> Sequence[bytes]:
        return self._finding.contents(received.bodies or ())

    def ambiguity(self, record: bytes) -> str | None:
        problem = self._placing.ambiguity(record)
        if problem is not None or self.has_given_pattern:
            return problem
        return self.find_problem(record)

    def find_problem(self, record: bytes) -> str | None:
        """Why the ID could not be found in this record if it came out as it was sent."""
        if self._find_pattern is None:
            return None
        [body] = self._placing.put([_SAMPLE_ID], [record])
        try:
            found = [match[1] for match in self._find_pattern.all_in(body)]
        except TooSlow as error:
            return f"identity.find: {error}"
        if not found:
            return "identity.find does not match the record with its ID"
        if found[0] != _SAMPLE_ID:
            return "identity.find finds something else than the ID"
        if len(found) > 1:
            return f"identity.find matches {len(found)} times"
        return None
