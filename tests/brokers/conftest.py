"""The AMQP brokers and the data planes, for tests that hold on all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract import KAFKA_PLANES, PLANES, data_plane

from bench_spark.scenario.broker import Broker


@pytest.fixture(params=["rabbitmq", "qpid"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture(params=PLANES)
def plane(request: pytest.FixtureRequest) -> Iterator[str]:
    with data_plane(request.param):
        yield request.param


@pytest.fixture(params=KAFKA_PLANES)
def kafka_plane(request: pytest.FixtureRequest) -> Iterator[str]:
    with data_plane(request.param):
        yield request.param
