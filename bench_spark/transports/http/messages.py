"""HTTP/1.1 messages: heads read, messages taken out of a stream of bytes, requests written. Pure.

Heads of messages that follow each other are mostly the same bytes: each is read once and
remembered. Bodies are taken as they come, and of each as much is kept as is wanted.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from bench_spark.config.broker import Credentials
from bench_spark.config.protocols import Http, field_name
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import Batch, Headers
from bench_spark.transports.sockets.buffers import MOST_BYTES, ReadBuffer, Unreadable, too_large
from bench_spark.transports.sockets.listening import Place
from bench_spark.transports.sockets.messages import bodies_of

CHUNKED = -1
UNTIL_CLOSE = -2
_NO_BODY = frozenset({204, 304})
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")


class BadMessage(Unreadable):
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


# -- messages out of a stream ----------------------------------------------------------------------


LONGEST_HEAD_BYTES = 64 * 1024
MOST_HEADS = 1024
"""Heads that are remembered."""
_LONGEST_LINE_BYTES = 1024
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_LINE = b"\r\n"

HeadT = TypeVar("HeadT", bound=RequestHead | ResponseHead)


class _State(Enum):
    HEAD = 0
    BODY = 1
    CHUNK_SIZE = 2
    CHUNK = 3
    CHUNK_END = 4
    TRAILER = 5
    UNTIL_CLOSE = 6


class HttpParser(Generic[HeadT]):
    def __init__(
        self,
        read_head: Callable[[bytes], HeadT],
        on_message: Callable[[HeadT, int, bytes, int], None],
        kept_bytes: int | None,
        on_head: Callable[[HeadT], None] = lambda head: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`on_message` is called with the head, the size of the body, as much of it as is kept
        (`kept_bytes`; None: all), and the time. `on_head` before any of the body. `most_bytes`: of
        a body."""
        self._most_bytes = most_bytes
        self._read_head = read_head
        self._on_message = on_message
        self._on_head = on_head
        self._most_kept = kept_bytes
        self._heads: dict[bytes, HeadT] = {}
        self._state = _State.HEAD
        self._head: HeadT | None = None
        self._missing_bytes = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._kept_bytes = 0

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """
        at = 0
        while at < end:
            at = self._take_known(buffer.raw, at, end, at_ns)
            taken = self._step(buffer.raw, at, end, at_ns) if at < end else 0
            if not taken:
                break
            at += taken
        return at

    def _take_known(self, raw: bytearray, at: int, end: int, at_ns: int) -> int:
        """Messages that are all there and whose heads were seen before; where they end."""
        if self._state is not _State.HEAD:
            return at
        heads, on_message, most_kept = self._heads, self._on_message, self._most_kept
        while (stop := raw.find(_END_OF_HEAD, at, end)) >= 0:
            head = heads.get(bytes(raw[at:stop]))
            if head is None or head.body_bytes < 0:
                break
            size = head.body_bytes
            body_at = stop + len(_END_OF_HEAD)
            if body_at + size > end:
                break
            kept = size if most_kept is None or size < most_kept else most_kept
            on_message(head, size, bytes(raw[body_at : body_at + kept]), at_ns)
            at = body_at + size
        return at

    def finish(self, at_ns: int) -> None:
        """The peer has closed the connection, which ends a body that has no other end."""
        if self._state is _State.UNTIL_CLOSE:
            self._end(at_ns)

    def _step(self, raw: bytearray, at: int, end: int, at_ns: int) -> int:
        if self._state is _State.HEAD:
            return self._take_head(raw, at, end, at_ns)
        if self._state in (_State.BODY, _State.CHUNK):
            return self._take_body(raw, at, end, at_ns)
        if self._state is _State.UNTIL_CLOSE:
            self._keep(raw, at, end)
            return end - at
        return self._take_line(raw, at, end, at_ns)

    def _take_head(self, raw: bytearray, at: int, end: int, at_ns: int) -> int:
        if raw.startswith(_END_OF_LINE, at, end):
            return len(_END_OF_LINE)  # some say one too many behind a body
        stop = raw.find(_END_OF_HEAD, at, end)
        if stop < 0:
            if end - at > LONGEST_HEAD_BYTES:
                raise BadMessage(f"a head of more than {LONGEST_HEAD_BYTES} bytes")
            return 0
        block = bytes(raw[at:stop])
        head = self._heads.get(block)
        if head is None:
            head = self._read_head(block)
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[block] = head
        self._begin(head, at_ns)
        return stop + len(_END_OF_HEAD) - at

    def _begin(self, head: HeadT, at_ns: int) -> None:
        self._head = head
        self._size = self._kept_bytes = 0
        self._pieces = []
        self._on_head(head)
        if head.body_bytes == CHUNKED:
            self._state = _State.CHUNK_SIZE
        elif head.body_bytes == UNTIL_CLOSE:
            self._state = _State.UNTIL_CLOSE
        elif head.body_bytes > self._most_bytes:
            raise BadMessage(too_large(head.body_bytes, self._most_bytes))
        elif head.body_bytes:
            self._state, self._missing_bytes = _State.BODY, head.body_bytes
        else:
            self._end(at_ns)

    def _take_body(self, raw: bytearray, at: int, end: int, at_ns: int) -> int:
        count = min(self._missing_bytes, end - at)
        self._keep(raw, at, at + count)
        self._missing_bytes -= count
        if not self._missing_bytes:
            if self._state is _State.BODY:
                self._end(at_ns)
            else:
                self._state = _State.CHUNK_END
        return count

    def _keep(self, raw: bytearray, start: int, end: int) -> None:
        self._size += end - start
        if self._size > self._most_bytes:  # of a body whose size was not announced
            raise BadMessage(too_large(self._size, self._most_bytes))
        if self._most_kept is not None:
            end = min(end, start + self._most_kept - self._kept_bytes)
        if end > start:
            self._pieces.append(bytes(raw[start:end]))
            self._kept_bytes += end - start

    def _take_line(self, raw: bytearray, at: int, end: int, at_ns: int) -> int:
        stop = raw.find(_END_OF_LINE, at, end)
        if stop < 0:
            if end - at > _LONGEST_LINE_BYTES:
                raise BadMessage("a chunk without its size")
            return 0
        line = bytes(raw[at:stop])
        if self._state is _State.CHUNK_SIZE:
            self._begin_chunk(line)
        elif self._state is _State.CHUNK_END:
            if line:
                raise BadMessage("a chunk that is longer than announced")
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._end(at_ns)
        return stop + len(_END_OF_LINE) - at

    def _begin_chunk(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0].strip(), 16)
        except ValueError:
            raise BadMessage(f"a chunk of size {line[:20]!r}") from None
        if size < 0:
            raise BadMessage(f"a chunk of size {line[:20]!r}")
        self._missing_bytes = size
        self._state = _State.CHUNK if size else _State.TRAILER

    def _end(self, at_ns: int) -> None:
        head, self._head = self._head, None
        self._state = _State.HEAD
        assert head is not None
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self._on_message(head, self._size, body, at_ns)


# -- requests --------------------------------------------------------------------------------------


_FORBIDDEN = re.compile(rb"[\x00\r\n]")
_KNOWN_NAMES = 4096


class RequestFrames:
    """Requests to one target."""

    def __init__(self, http: Http, place: Place, credentials: Credentials) -> None:
        fields = {"Host": place.host_and_port, **login_fields(credentials), **http.headers}
        if http.content_type:
            fields.setdefault("Content-Type", http.content_type)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        first = f"{http.method} {place.target} HTTP/1.1\r\n"
        self._start = (first + lines).encode() + b"Content-Length: "
        self._names: dict[str, bytes] = {}

    def pieces(self, body: bytes, headers: Headers | None) -> tuple[bytes, ...]:
        """One request, to be joined with others."""
        length = b"%d\r\n" % len(body)
        if headers:
            return self._start, length, *map(self._field, headers.items()), b"\r\n", body
        return self._start, length, b"\r\n", body

    def _field(self, header: tuple[str, bytes]) -> bytes:
        name, value = header
        start = self._names.get(name)
        if start is None:
            try:
                start = field_name(name).encode() + b": "
            except ValueError as error:
                raise ConfigurationError(f"header {name!r}: no name in HTTP; {error}") from None
            if len(self._names) < _KNOWN_NAMES:
                self._names[name] = start
        if _FORBIDDEN.search(value):
            raise ConfigurationError(
                f"header {name!r}: {value[:40]!r} is more than one line, which HTTP cannot carry"
            )
        return start + value + b"\r\n"


def login_fields(credentials: Credentials) -> Mapping[str, str]:
    """A user and a password are sent as they are (Basic); a password alone is a token (Bearer)."""
    password = credentials.password.get_secret_value() if credentials.password else None
    if credentials.username is not None:
        pair = f"{credentials.username}:{password or ''}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {} if password is None else {"Authorization": f"Bearer {password}"}


def requests_of(frames: Sequence[RequestFrames], batch: Batch) -> bytes:
    """The bytes of all these messages; `frames` by route."""
    headers = itertools.repeat(None) if batch.headers is None else batch.headers
    # Headers that nobody has never end, so the bodies decide.
    return b"".join(
        itertools.chain.from_iterable(
            frames[route].pieces(body, own)
            for body, route, own in zip(
                bodies_of(batch), batch.route.tolist(), headers, strict=False
            )
        )
    )
