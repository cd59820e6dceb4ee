"""The AMQP brokers and both data planes, for tests that hold on all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract import PLANES, amqp_plane

from bench_spark.scenario.broker import Broker


@pytest.fixture(params=["rabbitmq", "qpid"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture(params=PLANES)
def plane(request: pytest.FixtureRequest) -> Iterator[str]:
    with amqp_plane(request.param):
        yield request.param
