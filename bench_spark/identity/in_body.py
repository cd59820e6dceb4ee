"""IDs inside bodies: before the record, behind it, or where a pattern says.

Where the ID goes (`Placing`) and where it is looked for (`Finding`) are two things: a system that
wraps or changes bodies moves what was put in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from bench_spark.datasets.source import Records
from bench_spark.identity.base import NO_ID, Carried, NoPlace
from bench_spark.measure.identity import ID_BYTES
from bench_spark.transports.base import Part, Received

_SAMPLE_ID = b"0123456789abcdef" * 2
_BODY = frozenset({Part.BODY})


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

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._search = pattern.search
        self._finditer = pattern.finditer
        self._has_group = pattern.groups > 0

    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        carried = []
        for place, (one, body) in enumerate(zip(ids, bodies, strict=True)):
            match = self._search(body)
            at = -1 if match is None else self._at(match)
            if at < 0:
                raise NoPlace(place, "identity.insert does not match")
            carried.append(body[:at] + one + body[at:])
        return carried

    def _at(self, match: re.Match[bytes]) -> int:
        """-1 for a group that has no part in the match."""
        return match.start(1) if self._has_group else match.end()

    def ambiguity(self, record: bytes) -> str | None:
        places = [self._at(match) for match in self._finditer(record)]
        if not places or places[0] < 0:
            return "identity.insert does not match"
        if len(places) > 1:
            return f"identity.insert matches {len(places)} times"
        return None


class ByPattern:
    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._search = pattern.search

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
        self, placing: Placing, finding: Finding, find_pattern: re.Pattern[bytes] | None
    ) -> None:
        """`find_pattern`: what `finding` goes by, if that is a pattern."""
        self._placing = placing
        self._finding = finding
        self._find_pattern = find_pattern

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        bodies = self._placing.put(ids, records.bodies)
        return Carried(bodies, records.keys, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return self._finding.find(received.bodies or ())

    def contents(self, received: Received) -> Sequence[bytes]:
        return self._finding.contents(received.bodies or ())

    def ambiguity(self, record: bytes) -> str | None:
        problem = self._placing.ambiguity(record)
        if problem is not None or self._find_pattern is None:
            return problem
        [body] = self._placing.put([_SAMPLE_ID], [record])
        found = [match[1] for match in self._find_pattern.finditer(body)]
        if not found:
            return "identity.find does not match the record with its ID"
        if found[0] != _SAMPLE_ID:
            return "identity.find finds something else than the ID"
        if len(found) > 1:
            return f"identity.find matches {len(found)} times"
        return None
