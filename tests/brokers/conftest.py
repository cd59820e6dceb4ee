"""The AMQP brokers, for tests that hold on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from patience import patient_agents, punctual_agents  # noqa: F401
from tls_files import self_signed

from bench_spark.config.broker import Broker


@pytest.fixture(params=["rabbitmq", "qpid"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))
