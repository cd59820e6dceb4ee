"""RabbitMQ's management API: one request, one answer, in the words of the broker."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.errors import BrokerRefused, BrokerUnreachable, LoginRefused
from bench_spark.transports.amqp.connection import Access
from bench_spark.transports.direct_http import direct_opener

_NOT_FOUND = 404
_LOGIN_REFUSED = (401, 403)
_LONGEST_REASON = 300


def quoted(text: str) -> str:
    """A name as a part of a path."""
    return urllib.parse.quote(text, safe="")


class Management:
    """`purpose` is what errors name: the key that needs the API."""

    def __init__(self, broker: Broker, access: Access, purpose: str) -> None:
        assert broker.management_uri is not None
        parts = urllib.parse.urlsplit(broker.management_uri)
        self.host = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._purpose = purpose
        self._api = f"{parts.scheme}://{self.host}{parts.path.rstrip('/')}/api"
        self._authorization = _basic(parts, access)
        self._timeout_seconds = access.timeout_seconds
        self._opener = direct_opener(access.tls_context or ssl.create_default_context())

    def __repr__(self) -> str:
        return f"Management({self.host})"

    def get(self, path: str) -> Any:
        return json.loads(self._ask("GET", path))

    def put(self, path: str, body: Any) -> None:
        self._ask("PUT", path, json.dumps(body).encode())

    def delete(self, path: str) -> None:
        """What is not there need not be deleted."""
        self._ask("DELETE", path, may_be_missing=True)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, may_be_missing: bool = False
    ) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the broker file allows http and https only
            f"{self._api}/{path}",
            data=body,
            method=method,
            headers={"Authorization": self._authorization, "Content-Type": "application/json"},
        )
        where = f"{self.host}: {self._purpose}"
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND and may_be_missing:
                return b""
            kind = LoginRefused if error.code in _LOGIN_REFUSED else BrokerRefused
            raise kind(f"{where}: {error.code} {_reason(error)}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise BrokerUnreachable(f"{where}: {reason}") from None


def _basic(parts: urllib.parse.SplitResult, access: Access) -> str:
    """The login in management_uri, if there is one, else the broker's own."""
    user, password = parts.username, parts.password
    if user is None:
        user, password = access.username, access.credentials.password
    else:
        user, password = urllib.parse.unquote(user), urllib.parse.unquote(password or "")
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def _reason(error: urllib.error.HTTPError) -> str:
    """RabbitMQ's own words for a refusal, which name what is wrong with a definition."""
    text = error.read(4096).decode(errors="replace")
    try:
        text = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        text = error.reason
    return " ".join(str(text).split())[:_LONGEST_REASON]
