"""RabbitMQ's management API: one request, one answer, in the words of the broker."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.errors import BrokerRefused, BrokerUnreachable, LoginRefused
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable

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
        credentials: Any = access.parameters.credentials
        self._http = DirectHttp(
            broker.management_uri,
            access.timeout_seconds,
            login=(credentials.username, credentials.password or ""),
            tls_context=access.tls_context,
        )
        self.host = self._http.address
        self._purpose = purpose

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
        where = f"{self.host}: {self._purpose}"
        json_body = {"Content-Type": "application/json"}
        try:
            return self._http.ask(f"/api/{path}", method=method, body=body, headers=json_body)
        except HttpRefusal as error:
            if error.status == _NOT_FOUND and may_be_missing:
                return b""
            kind = LoginRefused if error.status in _LOGIN_REFUSED else BrokerRefused
            raise kind(f"{where}: {error.status} {_reason(error)}") from None
        except HttpUnreachable as error:
            raise BrokerUnreachable(f"{where}: {error.cause}") from None


def _reason(error: HttpRefusal) -> str:
    """RabbitMQ's own words for a refusal, which name what is wrong with a definition."""
    try:
        text = str(json.loads(error.body)["reason"])
    except (ValueError, KeyError, TypeError):
        text = error.reason
    return " ".join(text.split())[:_LONGEST_REASON]
