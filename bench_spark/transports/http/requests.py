"""Messages as requests. Pure."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping, Sequence

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Credentials
from bench_spark.scenario.http_section import Http, field_name
from bench_spark.transports.base import Headers
from bench_spark.transports.sockets.places import Place
from bench_spark.transports.sockets.sending import Load

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


def requests_of(frames: Sequence[RequestFrames], load: Load) -> bytes:
    """The bytes of all these messages; `frames` by route."""
    headers = itertools.repeat(None) if load.headers is None else load.headers
    # Headers that nobody has never end, so the bodies decide.
    return b"".join(
        itertools.chain.from_iterable(
            frames[route].pieces(body, own)
            for body, route, own in zip(load.bodies(), load.routes.tolist(), headers, strict=False)
        )
    )
