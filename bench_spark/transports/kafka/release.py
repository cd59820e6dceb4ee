"""Which release of Kafka answers.

Kafka's protocol does not say; but a KRaft broker lists the feature levels it supports in its
answer to ApiVersions, the first request of every connection and allowed before logging in. The
highest `metadata.version` it supports grows with each release. librdkafka keeps that answer to
itself, so the question is asked once more here. Whoever answers otherwise is of an unknown
release.
"""

from __future__ import annotations

import contextlib
import io
import struct
import time

from bench_spark.errors import BenchError
from bench_spark.transports.base import TransportContext
from bench_spark.transports.sockets.opening import access_to, dialled

UNKNOWN = "unknown"

_API_VERSIONS = struct.Struct(">hhi")
_REQUEST = _API_VERSIONS.pack(18, 3, 1) + b"\xff\xff\0" + b"\x0cbench-spark" + b"\x021" + b"\0"
"""ApiVersions, version 3: no client id, the name and version of the client's software."""

_RELEASE_BY_METADATA_VERSION = (
    (7, "3.3"),
    (8, "3.4"),
    (11, "3.5"),
    (14, "3.6"),
    (19, "3.7"),
    (20, "3.8"),
    (21, "3.9"),
    (25, "4.0"),
    (27, "4.1"),
    (29, "4.2"),
    (30, "4.3"),
)
"""The highest level each release knows, as Kafka's `StorageTool version-mapping` lists them."""


def ask_release(context: TransportContext) -> str:
    """The release, such as `4.3`; `unknown` where it cannot be told."""
    for host, port in context.broker.addresses:
        with contextlib.suppress(BenchError, OSError, ValueError, IndexError, struct.error):
            return release_of(_exchange(context, host, port))
    return UNKNOWN


def release_of(response: bytes) -> str:
    """Read the release out of an answer to ApiVersions, without its length."""
    level = _supported_features(response).get("metadata.version")
    if level is None:
        return UNKNOWN
    for highest, release in _RELEASE_BY_METADATA_VERSION:
        if level <= highest:
            return release
    return f"newer than {_RELEASE_BY_METADATA_VERSION[-1][1]}"


def _supported_features(response: bytes) -> dict[str, int]:
    """Highest level by feature. Kafka's flexible encoding: lengths are varints, plus one."""
    answer = io.BytesIO(response)
    answer.seek(4)  # behind the request's number
    if answer.read(2) != b"\0\0":
        return {}
    for _ in range(_varint(answer) - 1):
        answer.seek(6, io.SEEK_CUR)  # an API with its lowest and highest version
        _skip_tags(answer)
    answer.seek(4, io.SEEK_CUR)  # throttled for so long
    for _ in range(_varint(answer)):
        tag, size = _varint(answer), _varint(answer)
        if tag != 0:
            answer.seek(size, io.SEEK_CUR)
            continue
        features = {}
        for _ in range(_varint(answer) - 1):
            name = answer.read(_varint(answer) - 1).decode()
            _lowest, features[name] = struct.unpack(">hh", answer.read(4))
            _skip_tags(answer)
        return features
    return {}


def _varint(answer: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = answer.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def _skip_tags(answer: io.BytesIO) -> None:
    for _ in range(_varint(answer)):
        _varint(answer)
        answer.seek(_varint(answer), io.SEEK_CUR)


def _exchange(context: TransportContext, host: str, port: int) -> bytes:
    access = access_to(context, host, port, context.broker.tls is not None)
    [connection] = dialled(access, 1, time.monotonic() + access.timeout_seconds)
    with connection:
        connection.settimeout(access.timeout_seconds)
        connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
        with connection.makefile("rb") as reply:
            (size,) = struct.unpack(">i", reply.read(4))
            return reply.read(min(size, 1 << 20))
