"""Where the driver listens, and what agents are told to call it."""

from __future__ import annotations

import socket

import pytest

from bench_spark.core.clock import Clock
from bench_spark.driver.server import CollectorServer
from bench_spark.errors import ConfigurationError, EnvironmentNotReady
from bench_spark.spark.job import CollectorAddress, collector_address

DRIVER = {"spark.driver.host": "driver-svc.bench.svc"}


@pytest.mark.parametrize(
    ("master", "settings", "address"),
    [
        ("local[3]", DRIVER, CollectorAddress("127.0.0.1", 0, "127.0.0.1")),
        (
            "k8s://https://kubernetes.example.org:6443",
            DRIVER,
            CollectorAddress("0.0.0.0", 0, "driver-svc.bench.svc"),
        ),
        (
            "spark://master.example.org:7077",
            DRIVER
            | {
                "spark.benchspark.collector.host": "10.1.0.7",
                "spark.benchspark.collector.port": "7600",
            },
            CollectorAddress("0.0.0.0", 7600, "10.1.0.7"),
        ),
    ],
)
def test_agents_call_the_driver_by_its_name_unless_another_is_set(
    master: str, settings: dict[str, str], address: CollectorAddress
) -> None:
    assert collector_address(master, settings.get) == address


@pytest.mark.parametrize("text", ["-1", "65536", "http"])
def test_what_is_no_port_is_refused(text: str) -> None:
    settings = {"spark.benchspark.collector.port": text}
    with pytest.raises(ConfigurationError, match=r"spark\.benchspark\.collector\.port: .*65535"):
        collector_address("yarn", settings.get)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address: tuple[str, int] = taken.getsockname()
        with pytest.raises(EnvironmentNotReady, match=f"port {address[1]}: Address already in use"):
            CollectorServer(address, "token", 1, Clock.local())
