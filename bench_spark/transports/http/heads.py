"""Heads of HTTP/1.1 messages: the first line, headers, and how long the body is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHUNKED = -1
UNTIL_CLOSE = -2
_NO_BODY = frozenset({204, 304})
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")


class BadMessage(Exception):
    """The bytes are no HTTP/1.1, or none that may come here."""


class FieldMap(dict[str, bytes]):
    """Headers by name in lower case, found by any: proxies change it as they like."""

    def __getitem__(self, name: str) -> bytes:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


@dataclass(frozen=True)
class RequestHead:
    method: str
    path: str
    """Without the query."""
    fields: FieldMap
    body_bytes: int
    keeps_alive: bool
    expects_continue: bool = False


@dataclass(frozen=True)
class ResponseHead:
    status: int
    fields: FieldMap
    body_bytes: int
    keeps_alive: bool

    @property
    def is_final(self) -> bool:
        """1xx announce another."""
        return self.status >= 200


def read_request(block: bytes) -> RequestHead:
    """`block`: all before the empty line."""
    first, fields = _lines(block)
    words = first.split(b" ")
    if len(words) != 3 or words[2] not in _VERSIONS:
        raise BadMessage(f"a request that begins with {first[:60]!r}")
    path = words[1].partition(b"?")[0]
    if not path.startswith(b"/"):
        # A proxy's form: http://host/path
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    length = _body_bytes(fields)
    return RequestHead(
        method=words[0].decode("latin-1"),
        path=path.decode("latin-1"),
        fields=fields,
        body_bytes=0 if length is None else length,
        keeps_alive=_keeps_alive(words[2], fields),
        expects_continue=fields.get("expect", b"").lower() == b"100-continue",
    )


def read_response(block: bytes) -> ResponseHead:
    first, fields = _lines(block)
    words = first.split(b" ", 2)
    if len(words) < 2 or words[0] not in _VERSIONS or not words[1].isdigit():
        raise BadMessage(f"an answer that begins with {first[:60]!r}")
    status = int(words[1])
    length = _body_bytes(fields)
    if status < 200 or status in _NO_BODY:
        length = 0
    elif length is None:
        length = UNTIL_CLOSE
    return ResponseHead(
        status=status,
        fields=fields,
        body_bytes=length,
        keeps_alive=length != UNTIL_CLOSE and _keeps_alive(words[0], fields),
    )


def _lines(block: bytes) -> tuple[bytes, FieldMap]:
    first, *rest = block.split(b"\r\n")
    fields = FieldMap()
    for line in rest:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise BadMessage(f"a header that is none: {line[:60]!r}")
        key, value = name.decode("latin-1").lower(), value.strip(b" \t")
        if key == "content-length" and dict.get(fields, key, value) != value:
            raise BadMessage("two lengths of one body")
        dict.__setitem__(fields, key, value)
    return first, fields


def _body_bytes(fields: Mapping[str, bytes]) -> int | None:
    coding = fields.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise BadMessage(f"a body in the coding {coding[:60]!r}")
        return CHUNKED
    length = fields.get("content-length")
    if length is None:
        return None
    if not length.isdigit():
        raise BadMessage(f"a body of length {length[:60]!r}")
    return int(length)


def _keeps_alive(version: bytes, fields: Mapping[str, bytes]) -> bool:
    said = fields.get("connection", b"").lower()
    return b"keep-alive" in said if version == b"HTTP/1.0" else b"close" not in said
