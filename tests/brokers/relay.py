"""A small system under test: takes requests, answers, and sends each on to another address, by
Python's own HTTP server and client. How it answers can be chosen.

What came by one connection leaves by one, in order.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""

_HOP_BY_HOP = {"host", "connection", "content-length", "keep-alive", "transfer-encoding"}


@dataclass
class Relay:
    target_port: int | None
    """Where on this machine to send requests; None: nowhere."""
    answer: Callable[[int], Answer] = lambda number: (204, {}, b"")
    """To the request of that number, once it was sent on."""
    change: Callable[[int, bytes], bytes] = lambda number, body: body
    """What is sent on in place of the body of the request of that number."""
    requests_per_connection: int | None = None
    """After so many the connection is closed, with a word; None: never."""
    head_status: int = 405
    """The answer to a request that asks only whether there is something."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Method, path and headers of each request."""
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def relaying(relay: Relay, tls_context: ssl.SSLContext | None = None) -> Iterator[Relay]:
    server = _Server(relay)
    if tls_context is not None:
        server.socket = tls_context.wrap_socket(server.socket, server_side=True)
    relay.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "Relay/1.5"
    wbufsize = -1  # an answer in one piece
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._handled = 0
        relay = self.server.relay
        with relay.lock:
            relay.connections += 1
        self._taken: queue.SimpleQueue[_Taken | None] = queue.SimpleQueue()
        if relay.target_port is not None:
            port = relay.target_port
            threading.Thread(target=_send_on, args=(port, self._taken), daemon=True).start()

    def finish(self) -> None:
        self._taken.put(None)
        with contextlib.suppress(OSError):  # whoever asked may be gone
            super().finish()

    def do_POST(self) -> None:
        relay = self.server.relay
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with relay.lock:
            number = len(relay.seen)
            relay.seen.append(
                {"method": self.command, "path": self.path, "headers": dict(self.headers)}
            )
            relay.bodies.append(body)
        fields = {
            name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP
        }
        self._taken.put((self.path, relay.change(number, body), fields))
        self._handled += 1
        status, headers, words = relay.answer(number)
        if self._handled == relay.requests_per_connection:
            headers = {**headers, "Connection": "close"}
        self._say(status, headers, words)

    do_PUT = do_POST  # noqa: N815

    def do_HEAD(self) -> None:
        relay = self.server.relay
        if relay.head_status == 401:
            relay.seen.append({"method": "HEAD", "headers": dict(self.headers)})
        self._say(relay.head_status, {}, b"")

    def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests are silent."""


_Taken = tuple[str, bytes, dict[str, str]]
"""Path, body, headers."""


def _send_on(port: int, taken: queue.SimpleQueue[_Taken | None]) -> None:
    outgoing = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(outgoing), contextlib.suppress(OSError, http.client.HTTPException):
        while (one := taken.get()) is not None:
            path, body, fields = one
            if outgoing.sock is None:
                outgoing.connect()
                outgoing.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outgoing.request("POST", path, body, fields)
            outgoing.getresponse().read()
