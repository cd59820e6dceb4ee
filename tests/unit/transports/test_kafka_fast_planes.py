"""Which plane is used, and what is said where it is not the one asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pytest

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.kafka_section import Kafka
from bench_spark.transports.kafka import librdkafka, messages, obstacles
from bench_spark.transports.kafka.librdkafka import PRODUCER, Library, library
from bench_spark.transports.kafka.native_client import NativeClient
from bench_spark.transports.kafka.planes import chosen_plane

VERSIONS = (
    f"confluent-kafka {confluent_kafka.version()} / librdkafka {confluent_kafka.libversion()[0]}"
)


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    for each in (obstacles.obstacle, librdkafka.library):
        each.cache_clear()
    yield
    for each in (obstacles.obstacle, librdkafka.library):
        each.cache_clear()


def test_this_librdkafka_is_what_the_fast_plane_takes_it_for() -> None:
    assert obstacles.obstacle() is None


@pytest.mark.parametrize("asked", ["fast", "confluent"])
def test_the_plane_asked_for_is_used_and_named(asked: Any) -> None:
    plane = chosen_plane(Kafka(plane=asked))
    assert plane.is_fast == (asked == "fast")
    assert plane.client_library == f"{VERSIONS} ({asked} plane)"


def test_transactions_are_confluent_kafkas_and_the_result_says_so() -> None:
    plane = chosen_plane(Kafka(transaction_messages=5))
    assert not plane.is_fast
    assert plane.client_library == f"{VERSIONS} (confluent plane: kafka.transaction_messages)"


def with_one_field_more() -> np.dtype[Any]:
    """As if one had been put in before the last."""
    known: Any = messages.MESSAGE_DTYPE.fields
    fields = [(name, field[0]) for name, field in known.items()]
    return np.dtype([*fields[:-1], ("new", np.int64), fields[-1]], align=True)


def test_a_librdkafka_with_other_messages_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = with_one_field_more()
    for module in (messages, obstacles):
        monkeypatch.setattr(module, "MESSAGE_DTYPE", layout)
    said = chosen_plane(Kafka()).client_library
    assert "(confluent plane: librdkafka" in said
    assert "has other messages than expected" in said


def test_a_librdkafka_of_another_major_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstacles, "_MAJOR_VERSION", 3)
    assert "is not of version 3" in chosen_plane(Kafka()).client_library


def test_a_librdkafka_without_a_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(librdkafka._FUNCTIONS, "think_for_me", (None, ()))
    assert "has no rd_kafka_think_for_me" in chosen_plane(Kafka()).client_library


def test_where_no_library_is_found_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libc.so.6\n")
    monkeypatch.setattr(librdkafka, "_MAPS", maps)
    assert "has no librdkafka in a file of its own" in chosen_plane(Kafka()).client_library
    maps.unlink()
    library.cache_clear()
    obstacles.obstacle.cache_clear()
    assert "does not tell which libraries" in chosen_plane(Kafka()).client_library


def listen(_library: Library, _configuration: int) -> None:
    """For nothing."""


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"acks": "many"}, r"^kafka\.producer\.acks: Invalid value"),
        ({"linger.mx": 5}, r"^kafka\.producer\.linger\.mx: no such property; did you mean"),
        ({"acks": 1, "enable.idempotence": True}, r"^kafka\.producer: .*acks"),
    ],
)
def test_properties_that_it_does_not_take_are_named(properties: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        NativeClient(PRODUCER, properties, listen)


def test_a_secret_that_it_does_not_take_is_not_repeated() -> None:
    properties = {"security.protocol": "ssl", "ssl.key.pem": "swordfish"}
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.pem") as raised:
        NativeClient(PRODUCER, properties, listen)
    assert "swordfish" not in repr(raised.value)
