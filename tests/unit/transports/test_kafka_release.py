"""Reading Kafka's release out of its answer to ApiVersions."""

from __future__ import annotations

import socket
import threading

import pytest

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.transports.base import TransportContext
from bench_spark.transports.kafka.release import ask_release, release_of


def answer(features: dict[str, tuple[int, int]], error: int = 0) -> bytes:
    """An ApiVersions response, version 3, that lists one API and these features."""
    listed = b"".join(
        bytes([len(name) + 1])
        + name.encode()
        + low.to_bytes(2, "big")
        + high.to_bytes(2, "big")
        + b"\0"
        for name, (low, high) in features.items()
    )
    supported = bytes([len(features) + 1]) + listed
    apis = b"\x02" + b"\0\x12\0\0\0\x04\0"
    epoch = b"\x01\x08" + bytes(8)
    tags = b"\x02\x00" + bytes([len(supported)]) + supported + epoch
    return b"\0\0\0\x01" + error.to_bytes(2, "big") + apis + bytes(4) + tags


@pytest.mark.parametrize(
    ("level", "release"),
    [(7, "3.3"), (9, "3.5"), (25, "4.0"), (26, "4.1"), (30, "4.3"), (31, "newer than 4.3")],
)
def test_the_highest_metadata_version_tells_the_release(level: int, release: str) -> None:
    assert release_of(answer({"group.version": (0, 1), "metadata.version": (1, level)})) == release


def test_an_answer_without_that_feature_or_with_an_error_tells_nothing() -> None:
    assert release_of(answer({"group.version": (0, 1)})) == "unknown"
    assert release_of(answer({"metadata.version": (1, 30)}, error=35)) == "unknown"


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\x01"]
)
def test_a_peer_that_speaks_otherwise_is_of_an_unknown_release(reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        broker = Broker(kind="kafka", bootstrap_servers=f"127.0.0.1:{port}")
        context = TransportContext("run", Scenario(), broker, Credentials())
        assert ask_release(context) == "unknown"
