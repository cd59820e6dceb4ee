"""Where the driver listens for its agents, and by what name they call it.

Two Spark settings, because a cluster's administrator knows them and spark-submit carries them:
`spark.benchspark.collector.host` (unset: `spark.driver.host`) and `spark.benchspark.collector.port`
(unset or 0: any free one). It listens where `spark.driver.bindAddress` says, else everywhere. On
Kubernetes `spark.driver.host` is the driver's headless service: its name stands for the pod's own
address, so every port of it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.shown import shown_value

HOST_SETTING = "spark.benchspark.collector.host"
PORT_SETTING = "spark.benchspark.collector.port"

_HERE = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 (executors are elsewhere)
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class CollectorAddress:
    listens_on: str
    port: int
    """0: any free one."""
    called: str
    """The name or address that agents connect to."""


def collector_address(master: str, setting: Callable[[str, str], str | None]) -> CollectorAddress:
    """`setting`: a Spark setting by its name, or else the value given."""
    port = _port(setting(PORT_SETTING, "0") or "0")
    if master.startswith("local"):
        return CollectorAddress(_HERE, port, _HERE)
    called = setting(HOST_SETTING, "") or setting("spark.driver.host", "") or ""
    # Only the user knows by which of the driver's addresses executors come.
    listens_on = setting("spark.driver.bindAddress", "") or _EVERYWHERE
    return CollectorAddress(listens_on, port, called)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise ConfigurationError(
            f"{PORT_SETTING}: {shown_value(text)} is no port; allowed: 0 (any free one) to "
            f"{_HIGHEST_PORT}"
        )
    return int(text)
