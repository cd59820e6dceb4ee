"""HTTP/1.1 as bytes: requests written, and read again whatever way they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from bench_spark.config.broker import Credentials
from bench_spark.config.protocols import Http
from bench_spark.core.envelope import empty_envelopes
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import Batch, Headers, OutcomeKind
from bench_spark.transports.http.messages import (
    LONGEST_HEAD_BYTES,
    BadMessage,
    HttpParser,
    RequestFrames,
    RequestHead,
    ResponseHead,
    read_request,
    read_response,
    requests_of,
)
from bench_spark.transports.http.producers import Answered, Unanswered
from bench_spark.transports.sockets.buffers import ReadBuffer
from bench_spark.transports.sockets.listening import Place

PLACE = Place.by_scheme("http://user:secret@example.org:8080/in?to=1")
NOBODY = Credentials()
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def frames(http: Http | None = None, credentials: Credentials = NOBODY) -> RequestFrames:
    return RequestFrames(http or Http(), PLACE, credentials)


def load(bodies: list[bytes], headers: list[Headers] | None = None) -> Batch:
    envelopes = empty_envelopes(len(bodies))
    routes = np.zeros(len(bodies), np.uint16)
    lanes = np.zeros(len(envelopes), np.uint32)
    return Batch(lanes, envelopes, bodies, routes, envelope_bytes=0, headers=headers)


class Reader:
    """The parser with a socket's part."""

    def __init__(self, read_head: object = read_request, kept_bytes: int | None = None) -> None:
        self.heads: list[RequestHead | ResponseHead] = []
        self.bodies: list[bytes] = []
        self.sizes: list[int] = []
        self.parser: HttpParser[RequestHead | ResponseHead] = HttpParser(
            read_head,  # type: ignore[arg-type]
            self._keep,
            kept_bytes,
        )
        self._rest = b""
        self._buffer = ReadBuffer(1 << 20)

    def _keep(self, head: RequestHead | ResponseHead, size: int, body: bytes, at_ns: int) -> None:
        self.heads.append(head)
        self.sizes.append(size)
        self.bodies.append(body)

    def read(self, piece: bytes) -> None:
        data = self._rest + piece
        self._buffer.raw[: len(data)] = data
        done = self.parser.parse(self._buffer, len(data), 7)
        self._rest = data[done:]
        self._buffer.raw[: len(data)] = bytes(len(data))


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    lines = b"".join(b"%x;note=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = b"POST /in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + lines + b"0\r\nTrailer: yes\r\n\r\n"


bodies_of_requests = st.lists(st.binary(max_size=200), min_size=1, max_size=12)


@given(bodies_of_requests, st.data())
def test_requests_are_read_as_they_were_written_wherever_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    kinds = [data.draw(st.sampled_from(["plain", "headers", "chunked"])) for _ in bodies]
    stream = b""
    for body, kind in zip(bodies, kinds, strict=True):
        if kind == "chunked":
            stream += chunked(body, data.draw(st.integers(1, 50)))
        else:
            own = [{"X-Id": b"%d" % len(body)}] if kind == "headers" else None
            stream += requests_of([frames()], load([body], own))
    reader = Reader()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.read(stream[start:end])
    assert reader.bodies == bodies
    assert reader.sizes == list(map(len, bodies))
    for head, kind, body in zip(reader.heads, kinds, bodies, strict=True):
        assert isinstance(head, RequestHead)
        assert (head.method, head.path) == ("POST", "/in")
        assert head.fields.get("x-ID") == (b"%d" % len(body) if kind == "headers" else None)


@given(bodies_of_requests, st.integers(0, 40))
def test_no_more_of_a_body_is_kept_than_is_wanted(bodies: list[bytes], most: int) -> None:
    reader = Reader(kept_bytes=most)
    for _ in range(2):  # the second time the heads are known
        reader.read(requests_of([frames()], load(bodies)))
    assert reader.bodies == [body[:most] for body in bodies] * 2
    assert reader.sizes == list(map(len, bodies)) * 2


def test_a_request_says_what_the_scenario_says_and_never_the_uris_login() -> None:
    http = Http(method="PUT", content_type="text/plain", headers={"X-Kind": "order"})
    request = requests_of([frames(http)], load([b"body"]))
    assert request == (
        b"PUT /in?to=1 HTTP/1.1\r\nHost: example.org:8080\r\nX-Kind: order\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody"
    )


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        (Credentials(username="u", password=SecretStr("p")), b"Basic dTpw"),
        (Credentials(password=SecretStr("token")), b"Bearer token"),
        (NOBODY, None),
    ],
)
def test_a_user_logs_in_by_basic_and_a_password_alone_is_a_token(
    credentials: Credentials, expected: bytes | None
) -> None:
    reader = Reader()
    reader.read(requests_of([frames(credentials=credentials)], load([b""])))
    [head] = reader.heads
    assert head.fields.get("Authorization") == expected


@pytest.mark.parametrize(
    "header", [{"a b": b"x"}, {"": b"x"}, {"x": b"a\r\nEvil: 1"}, {"x": b"\0"}, {"grün": b"x"}]
)
def test_headers_that_http_cannot_carry_are_refused_by_name(header: Headers) -> None:
    with pytest.raises(ConfigurationError, match="header"):
        requests_of([frames()], load([b""], [header]))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", True)),
        (b"HTTP/1.1 200\r\ncontent-length:2\r\nConnection: close\r\n\r\nok", (200, b"ok", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", False)),
        (b"HTTP/1.1 503 No\r\n" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n", (503, b"x", True)),
        (b"\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", (304, b"", True)),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", (200, b"to the end", False)),
    ],
)
def test_answers_end_where_their_heads_say(
    stream: bytes, expected: tuple[int, bytes, bool]
) -> None:
    reader = Reader(read_response)
    for byte in stream:
        reader.read(bytes([byte]))
    reader.parser.finish(9)
    [head] = reader.heads
    assert isinstance(head, ResponseHead)
    assert (head.status, reader.bodies[0], head.keeps_alive) == expected


@pytest.mark.parametrize(
    "stream",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
        b"POST / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: " + b"y" * LONGEST_HEAD_BYTES,
    ],
)
def test_what_is_no_http_is_said_to_be_none(stream: bytes) -> None:
    with pytest.raises(BadMessage):
        Reader().read(stream)


def answer(status: int, words: str = "") -> ResponseHead:
    return read_response(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\nX-Id: {words}".encode())


def test_outcomes_have_the_heads_of_their_requests_and_what_was_answered() -> None:
    shared = Answered(Http(in_flight=5, answer="header", answer_header="x-id"))
    lane = Unanswered(3, shared)
    envelopes = empty_envelopes(5)
    envelopes["sequence"] = np.arange(5)
    lane.sent(envelopes[:2])
    lane.sent(envelopes[2:])
    assert lane.room == 0
    for number, status in enumerate((200, 503, 201)):
        assert lane.answered(answer(status, f"id-{number}"), b"", at_ns=100 + number)
    lane.read_ended()
    assert lane.room == 3
    lane.abandon(at_ns=500)
    assert not lane.answered(answer(200), b"", 600)
    kinds = [kind for part in shared.outcomes for kind in part.kind.tolist()]
    ok, no, unknown = OutcomeKind.CONFIRMED, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
    assert kinds == [ok, no, ok, unknown, unknown]
    told = [one for part in shared.outcomes for one in part.envelope["sequence"].tolist()]
    assert told == [0, 1, 2, 3, 4]
    times = [at for part in shared.outcomes for at in part.at_ns.tolist()]
    assert times == [100, 101, 102, 500, 500]
    answers = [one for part in shared.outcomes for one in part.answers or ()]
    assert answers == [b"id-0", b"id-1", b"id-2", b"", b""]
    assert shared.statuses == {200: 1, 503: 1, 201: 1}


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"headers": {"Authorization": "x"}}, "headers"),
        ({"headers": {"X": "a\nb"}}, "headers"),
        ({"answer": "header"}, "answer_header"),
        ({"answer_header": "X"}, "answer_header"),
        ({"method": "GET /"}, "method"),
        ({"consumer_uri": "tcp://host:1"}, "consumer_uri"),
        ({"status": 100}, "status"),
    ],
)
def test_a_section_that_contradicts_itself_or_http_is_refused(
    section: dict[str, object], named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        Http.model_validate(section)
