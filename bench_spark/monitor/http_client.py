"""A GET that is bounded in time and size, follows nobody elsewhere, and asks no proxy."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from bench_spark.config.broker import Tls
from bench_spark.monitor.reading import Unreadable
from bench_spark.transports.direct_http import direct_opener

MOST_BYTES = 32 * 1024 * 1024


class HttpSource:
    """One URL and how to log in there. Its errors name host and port, never the URL."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        *,
        login: tuple[str, str] | None = None,
        bearer_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        """A login in the URL itself wins over `login`."""
        parts = urllib.parse.urlsplit(url)
        if parts.username:
            unquote = urllib.parse.unquote
            login = (unquote(parts.username), unquote(parts.password or ""))
        self._base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.host = parts.hostname or ""
        self._shown = f"{self.host}:{parts.port or http_port(parts.scheme)}"
        self._timeout_seconds = timeout_seconds
        self._headers: dict[str, str] = {}
        if bearer_token is not None:
            self._headers["Authorization"] = f"Bearer {bearer_token}"
        elif login is not None:
            encoded = base64.b64encode(":".join(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._opener = direct_opener(_tls_context(tls))

    def get(self, path: str = "", headers: Mapping[str, str] | None = None) -> bytes:
        request = urllib.request.Request(  # noqa: S310 (http and https only: checked when loaded)
            self._base.rstrip("/") + path if path else self._base,
            headers=self._headers | dict(headers or {}),
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                body: bytes = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise Unreadable(f"{self._shown} answers {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Unreadable(f"{self._shown}: {type(reason).__name__}") from None
        if len(body) > MOST_BYTES:
            raise Unreadable(f"{self._shown} answers with more than {MOST_BYTES} bytes")
        return body


def http_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _tls_context(tls: Tls | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
        if tls is not None and tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls is not None and tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as error:
        raise Unreadable(f"TLS: {error.strerror}") from None
    return context
