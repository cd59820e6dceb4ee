"""Credentials stay where they belong, and pika stays quiet."""

from __future__ import annotations

import logging

import pytest

from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.transports.amqp.connection import AmqpAccess, access_for
from bench_spark.transports.base import TransportContext


def access(uri: str) -> AmqpAccess:
    broker = Broker(kind="amqp", uri=uri)
    return access_for(TransportContext("run", Scenario(), broker, resolve_credentials(broker)))


def test_the_password_is_in_no_representation() -> None:
    made = access("amqp://anna:opensesame@broker.example:5673/sales")
    assert "opensesame" not in f"{made!r} {made} {made.credentials!r} {made.client_properties!r}"
    assert made.address == "broker.example:5673"
    assert made.username == "anna"
    assert made.virtual_host == "sales"


def test_without_a_user_the_protocols_own_default_is_presented() -> None:
    assert access("amqp://broker.example").username == "guest"


def test_pika_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pika", "pika.connection", "pika.channel"):
        logging.getLogger(name).critical("loud")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
