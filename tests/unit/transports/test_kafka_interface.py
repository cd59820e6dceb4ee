"""Whether librdkafka is what we take it for, what is said where it is not, and its clients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pytest

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.doctor import program_checks
from bench_spark.errors import EXIT_PREFLIGHT, ConfigurationError, EnvironmentNotReady
from bench_spark.transports.base import TransportContext
from bench_spark.transports.kafka import librdkafka
from bench_spark.transports.kafka.librdkafka import (
    LOGGER,
    PRODUCER,
    Library,
    NativeClient,
    QuietLog,
    client_library,
    interface_difference,
    library,
    require_interface,
)
from bench_spark.transports.kafka.transport import KafkaTransport

VERSIONS = (
    f"confluent-kafka {confluent_kafka.version()} / librdkafka {confluent_kafka.libversion()[0]}"
)


def ask_again() -> None:
    interface_difference.cache_clear()
    library.cache_clear()


@pytest.fixture(autouse=True)
def asked_once_more() -> Iterator[None]:
    ask_again()
    yield
    ask_again()


def test_this_librdkafka_is_what_we_take_it_for() -> None:
    require_interface()
    assert client_library() == VERSIONS


def with_one_field_more() -> np.dtype[Any]:
    """As if one had been put in before the last."""
    known: Any = librdkafka.MESSAGE_DTYPE.fields
    fields = [(name, field[0]) for name, field in known.items()]
    return np.dtype([*fields[:-1], ("new", np.int64), fields[-1]], align=True)


@pytest.fixture
def other_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "MESSAGE_DTYPE", with_one_field_more())


@pytest.mark.usefixtures("other_messages")
def test_a_librdkafka_with_other_messages_is_refused_by_name() -> None:
    with pytest.raises(EnvironmentNotReady) as raised:
        require_interface()
    assert str(raised.value).startswith(f"{VERSIONS}: librdkafka ")
    assert "has other messages than expected" in str(raised.value)
    assert raised.value.exit_code == EXIT_PREFLIGHT


@pytest.mark.usefixtures("other_messages")
def test_a_run_on_it_is_refused_before_anything_connects() -> None:
    context = TransportContext(
        run_id="r",
        scenario=Scenario(),
        broker=Broker(name="k", kind="kafka", bootstrap_servers="127.0.0.1:1"),
        credentials=Credentials(),
    )
    with pytest.raises(EnvironmentNotReady, match="has other messages than expected"):
        KafkaTransport(context).probe()


def found_by_doctor() -> Any:
    return program_checks()["kafka client"]()


def test_doctor_says_whether_it_is_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VERSIONS in found_by_doctor().text
    ask_again()
    monkeypatch.setattr(librdkafka, "_MAJOR_VERSION", 3)
    assert "is not of version 3" in found_by_doctor().text


def test_a_librdkafka_of_another_major_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "_MAJOR_VERSION", 3)
    assert "is not of version 3" in str(interface_difference())


def test_a_librdkafka_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(librdkafka._FUNCTIONS, "think_for_me", (None, ()))
    assert "has no rd_kafka_think_for_me" in str(interface_difference())


def test_where_no_library_is_found_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libc.so.6\n")
    monkeypatch.setattr(librdkafka, "_MAPS", maps)
    assert "has no librdkafka in a file of its own" in str(interface_difference())
    maps.unlink()
    ask_again()
    assert "does not tell which libraries" in str(interface_difference())


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


def test_a_flood_of_log_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog()
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        for _ in range(500):
            quiet.log(logging.ERROR, "%s [%s] %s", "FAIL", "client", "connection refused")
    assert 0 < len(caplog.records) <= 20
