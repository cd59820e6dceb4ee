"""Serves HTTP beside a run, to a few browsers or Prometheus servers."""

from __future__ import annotations

import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench_spark.errors import EnvironmentNotReady
from bench_spark.process import watched

REQUEST_SECONDS = 5.0
CLOSING_SECONDS = 0.1
"""How often the server checks whether it is closed."""
MOST_AT_ONCE = 16
"""Requests that are answered side by side; others are refused, so that a client that asks too much
takes the processor from what is measured."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Question:
    path: str
    query: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


Answering = Callable[[Question], Answer | None]
"""None: there is no such page. Called from several threads."""


class Served:
    """Answers in threads of its own until it is closed."""

    def __init__(self, option: str, host: str, port: int, answer: Answering) -> None:
        """`option` is what the user gave the address by, for the complaint."""
        is_private = host in LOOPBACK_NAMES

        class Answers(_Handler):
            def answer(self, question: Question) -> Answer | None:
                return answer(question)

            def is_asked_by_name(self) -> bool:
                return not is_private or _host_of(self.headers.get("Host", "")) in LOOPBACK_NAMES

        try:
            self._server = _Server((host, port), Answers)
        except OSError as error:
            raise EnvironmentNotReady(
                f"{option}: cannot listen at {host}:{port}: {error.strerror}"
            ) from error
        self._thread = threading.Thread(
            target=watched(self._server.serve_forever),
            args=(CLOSING_SECONDS,),
            name=option.lstrip("-"),
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _host_of(header: str) -> str:
    """Of `Host: NAME:PORT`; of an IPv6 address without its brackets."""
    return urllib.parse.urlsplit(f"//{header}").hostname or ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: Any) -> None:
        """Ignores readers that close the connection early."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server_version = "bench-spark"
    sys_version = ""

    def answer(self, question: Question) -> Answer | None:
        raise NotImplementedError

    def is_asked_by_name(self) -> bool:
        """Whether the caller means this machine: a page of somebody else's, whose name was made to
        point here, says its own name."""
        raise NotImplementedError

    def do_GET(self) -> None:
        if not self.is_asked_by_name():
            self.send_error(421, "this is served on this machine only")
            return
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, max_num_fields=20))
        found = self.answer(Question(url.path, query))
        if found is None:
            self.send_error(404, "there is no such page")
            return
        self.send_response(200)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(found.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in found.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(found.body)

    def log_message(self, *_: Any) -> None:
        """Standard error belongs to the progress of the run."""
