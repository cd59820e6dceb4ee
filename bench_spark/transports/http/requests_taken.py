"""Requests of others: each that brings a message is received and answered at once."""

from __future__ import annotations

import http
import socket
from collections.abc import Callable, Mapping, Sequence

from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import Lane
from bench_spark.transports.http.heads import BadMessage, RequestHead, read_request
from bench_spark.transports.http.parsing import HttpParser
from bench_spark.transports.sockets.arrivals import NO_HEADERS, Arrivals
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.plain import PlainWire
from bench_spark.transports.sockets.runs import ReadBuffer
from bench_spark.transports.sockets.wire import Unreadable

BRINGING = frozenset({"POST", "PUT", "PATCH"})
"""Methods of requests that bring a message."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Serving = tuple[int, int]
"""A lane, and the route by which it gets messages of a destination."""


class Reception:
    """What all peers of one agent's consumers share: who gets what, and how it is answered."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        path_of: Callable[[int], str],
        status: int,
        arrivals: Arrivals,
    ) -> None:
        """`path_of` a destination, by its number."""
        self.arrivals = arrivals
        self.lanes = len(lanes)
        self._serving: dict[str, list[Serving]] = {}
        for number, lane in enumerate(lanes):
            for route, destination in enumerate(lane.destinations):
                self._serving.setdefault(path_of(destination.index), []).append((number, route))
        self.taken = _response(status)
        self.unknown_path = _response(404, "no consumer has this path")
        self.wrong_method = _response(405, "messages come by POST", {"Allow": "POST, PUT, PATCH"})
        self.not_understood = _response(400, "no HTTP/1.1", {"Connection": "close"})

    def serving(self, peer: int) -> Mapping[str, Serving]:
        """By path: who gets the messages of the peer of that number."""
        return {path: all_of[peer % len(all_of)] for path, all_of in self._serving.items()}

    def lanes_of(self, peer: int) -> set[int]:
        return {lane for lane, _ in self.serving(peer).values()}


def _response(status: int, words: str = "", fields: Mapping[str, str] | None = None) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Other"
    body = "" if status == http.HTTPStatus.NO_CONTENT else words
    lines = dict(fields or {})
    if status != http.HTTPStatus.NO_CONTENT:
        lines["Content-Length"] = str(len(body))
    told = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {phrase}\r\n{told}\r\n{body}".encode()


class Peer(PlainWire):
    """A connection on which requests come."""

    def __init__(
        self,
        reception: Reception,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        number: int,
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer)
        self._reception = reception
        self._arrivals = reception.arrivals
        self._serving = reception.serving(number)
        self._answers: list[bytes] = []
        self._is_last = False
        kept_bytes = None if self._arrivals.wants_bodies else ENVELOPE_BYTES
        self._parser = HttpParser(
            read_request,
            self._on_request,
            kept_bytes,
            self._on_head,
            self._arrivals.most_bytes,
        )

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        try:
            done = self._parser.parse(buffer, end, self.read_ns)
        except BadMessage as error:
            self._answers.append(self._reception.not_understood)
            self._answer()
            raise Unreadable(str(error)) from error
        self._answer()
        if self._is_last:
            self._loop.call_soon(self.close)
        return done

    def _answer(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self.send(b"".join(answers))

    def _on_head(self, head: RequestHead) -> None:
        if head.expects_continue and head.body_bytes:
            self._answers.append(_CONTINUE)
            # The body is not sent before this is read.
            self._answer()

    def _on_request(self, head: RequestHead, size: int, body: bytes, at_ns: int) -> None:
        if self._is_last:
            return  # it said that there would be no more
        serving = self._serving.get(head.path)
        if serving is None:
            answer = self._reception.unknown_path
        elif head.method not in BRINGING:
            answer = self._reception.wrong_method
        else:
            lane, route = serving
            headers = head.fields if self._arrivals.wants_headers else NO_HEADERS
            self._arrivals.add_row((at_ns, lane, route, 0, 0, size, body, headers))
            answer = self._reception.taken
        if not head.keeps_alive:
            self._is_last = True
            answer = answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        self._answers.append(answer)
