"""Whether this pika lets go of a connection, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pika.connection
import pytest

from bench_spark.transports.amqp import handover


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    handover.obstacle.cache_clear()
    yield
    handover.obstacle.cache_clear()


def test_this_pika_hands_over_its_connections() -> None:
    assert handover.obstacle() is None


def without_its_heartbeat(connection: Any) -> None:
    """As if stopping it had another name."""


def decode_elsewhere(self: Any, data: bytes) -> None:
    """As if undecoded bytes were kept in another place."""
    self._on_frame_bytes = getattr(self, "_on_frame_bytes", b"") + data
    while self._on_frame_bytes:
        used, frame = pika.frame.decode_frame(self._on_frame_bytes)
        if not frame:
            return
        self._on_frame_bytes = self._on_frame_bytes[used:]
        self._process_frame(frame)


def no_such_method(*_: Any) -> None:
    raise AttributeError("_remove_heartbeat")


@pytest.mark.parametrize(
    ("name", "replacement", "said"),
    [
        ("_remove_heartbeat", without_its_heartbeat, "keeps its heartbeats running"),
        ("_on_data_available", decode_elsewhere, "something else than expected"),
        ("_remove_heartbeat", no_such_method, "does not hand over"),
    ],
)
def test_another_pika_is_an_obstacle_and_is_named(
    name: str, replacement: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pika.connection.Connection, name, replacement)
    found = handover.obstacle()
    assert found is not None
    assert said in found
    assert pika.__version__ in found
