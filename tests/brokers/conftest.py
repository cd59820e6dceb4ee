"""Real brokers for a test session: started when the first test asks for one, gone at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract import running

from bench_spark.brokers import BrokerStatus
from bench_spark.scenario.broker import Broker


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[BrokerStatus]:
    with running("rabbitmq") as status:
        yield status


@pytest.fixture(scope="session")
def rabbitmq_broker(rabbitmq: BrokerStatus) -> Broker:
    return rabbitmq.broker


@pytest.fixture(scope="session")
def qpid_broker() -> Iterator[Broker]:
    with running("qpid") as status:
        yield status.broker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    with running("kafka") as status:
        yield status.broker


@pytest.fixture(scope="session")
def loopback_broker() -> Broker:
    return Broker(name="loopback", kind="loopback")
