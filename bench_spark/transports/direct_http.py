"""Asks a management API or a monitoring endpoint: directly, and nobody else."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any

MOST_BYTES = 32 * 1024 * 1024


class HttpRefusal(Exception):
    """The server's answer is an error."""

    def __init__(self, status: int, reason: str, body: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.reason, self.body = status, reason, body


class HttpUnreachable(Exception):
    """There was no answer; `cause` says why."""

    def __init__(self, cause: object) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Another host would be given the password that was meant for this one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _UnixHandler(urllib.request.HTTPHandler):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_UnixConnection, path=self._path), request)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, host: str, *, path: str, **kwargs: Any) -> None:
        super().__init__(host, **kwargs)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DirectHttp:
    """One server and the login there. Requests are bounded in time and size, follow no redirect and
    use no proxy of the shell's. Errors never name the URL, which may hold a password."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        *,
        login: tuple[str, str] | None = None,
        bearer_token: str | None = None,
        tls_context: ssl.SSLContext | None = None,
        unix_socket: str | None = None,
    ) -> None:
        """A login in the URL itself wins over `login`. With `unix_socket` the server is reached by
        that socket, whatever host the URL names."""
        parts = urllib.parse.urlsplit(url)
        if parts.username:
            unquote = urllib.parse.unquote
            login = (unquote(parts.username), unquote(parts.password or ""))
        self._base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.host = parts.hostname or ""
        self.address = f"{self.host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._timeout_seconds = timeout_seconds
        self._headers: dict[str, str] = {}
        if bearer_token is not None:
            self._headers["Authorization"] = f"Bearer {bearer_token}"
        elif login is not None:
            encoded = base64.b64encode(":".join(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _StayHere(),
            urllib.request.HTTPSHandler(context=tls_context or ssl.create_default_context()),
            *([] if unix_socket is None else [_UnixHandler(unix_socket)]),
        )

    def ask(
        self,
        path: str = "",
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The answer's body. Raises HttpRefusal or HttpUnreachable."""
        request = urllib.request.Request(  # noqa: S310 (http and https only: checked when loaded)
            self._base.rstrip("/") + path if path else self._base,
            data=body,
            method=method,
            headers=self._headers | dict(headers or {}),
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                found: bytes = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            text = error.read(4096).decode(errors="replace")
            raise HttpRefusal(error.code, str(error.reason), text) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HttpUnreachable(getattr(error, "reason", error)) from None
        if len(found) > MOST_BYTES:
            raise HttpRefusal(200, f"with more than {MOST_BYTES} bytes", "")
        return found
