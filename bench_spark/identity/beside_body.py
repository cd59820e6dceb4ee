"""IDs beside bodies: in a header, as the key, or given by the system itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench_spark.datasets.source import Records
from bench_spark.identity.base import NO_ID, Carried
from bench_spark.identity.in_body import ByPattern
from bench_spark.scenario.pattern import Pattern
from bench_spark.transports.base import HEAD_ONLY, Part, Received


class _WholeBody:
    """What carriers have in common that leave bodies alone."""

    added_bytes = 0

    def contents(self, received: Received) -> Sequence[bytes]:
        return received.bodies or ()

    def ambiguity(self, record: bytes) -> str | None:
        return None


class InHeader(_WholeBody):
    puts_into = frozenset({Part.HEADERS})
    wants = frozenset({Part.HEADERS})

    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        name = self._name
        headers: list[Mapping[str, bytes]]
        if records.headers is None:
            headers = [{name: one} for one in ids]
        else:
            headers = [{**own, name: one} for own, one in zip(records.headers, ids, strict=True)]
        return Carried(records.bodies, records.keys, headers)

    def find(self, received: Received) -> list[bytes]:
        headers: Sequence[Any] = received.headers or [None] * len(received)
        return [_value(_header(own, self._name)) for own in headers]


class AsKey(_WholeBody):
    puts_into = frozenset({Part.KEY})
    wants = frozenset({Part.KEY})

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        return Carried(records.bodies, ids, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return [key or NO_ID for key in received.keys or [None] * len(received)]


class ByAcknowledgement(_WholeBody):
    """The system names an ID in its answer to each message, and puts it into what comes out."""

    puts_into = HEAD_ONLY
    wants = frozenset({Part.BODY})

    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._finding = ByPattern(pattern)

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        return Carried(records.bodies, records.keys, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return self._finding.find(received.bodies or ())

    def contents(self, received: Received) -> Sequence[bytes]:
        return self._finding.contents(received.bodies or ())


def _header(headers: Any, name: str) -> Any:
    """By its name in any case: systems on the way may write it in their own."""
    if not headers:
        return None
    if isinstance(headers, Mapping):
        if name in headers:
            return headers[name]
        headers = headers.items()
    wanted = name.casefold()
    return next((value for own, value in headers if str(own).casefold() == wanted), None)


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else NO_ID
