"""Which release of Kafka answers.

Kafka's protocol does not say; but a KRaft broker lists the feature levels it supports in its
answer to ApiVersions, the first request of every connection and allowed before logging in. The
highest `metadata.version` it supports grows with each release. librdkafka keeps that answer to
itself, so the question is asked once more here. Whoever answers otherwise is of an unknown
release.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct

from bench_spark.config.broker import Broker, Tls

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


def ask_release(broker: Broker) -> str:
    """The release, such as `4.3`; `unknown` where it cannot be told."""
    for address in broker.addresses:
        with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            return release_of(_exchange(broker, address))
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
    reader = _Reader(response)
    reader.skip(4)  # the request's number
    if reader.int16() != 0:
        return {}
    for _ in range(reader.varint() - 1):
        reader.skip(6)  # an API with its lowest and highest version
        reader.skip_tags()
    reader.skip(4)  # throttled for so long
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        if tag != 0:
            reader.skip(size)
            continue
        features = {}
        for _ in range(reader.varint() - 1):
            name = reader.take(reader.varint() - 1).decode()
            reader.skip(2)  # the lowest level
            features[name] = reader.int16()
            reader.skip_tags()
        return features
    return {}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise ValueError("the answer ends too early")
        self._at += size
        return taken

    def skip(self, size: int) -> None:
        self.take(size)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def _exchange(broker: Broker, address: tuple[str, int]) -> bytes:
    timeout_seconds = broker.connect_timeout_seconds
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, timeout_seconds))
        if broker.tls is not None:
            connection = stack.enter_context(
                _tls_context(broker.tls).wrap_socket(connection, server_hostname=address[0])
            )
        connection.settimeout(timeout_seconds)
        connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
        reply = stack.enter_context(connection.makefile("rb"))
        (size,) = struct.unpack(">i", reply.read(4))
        return reply.read(min(size, 1 << 20))


def _tls_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
