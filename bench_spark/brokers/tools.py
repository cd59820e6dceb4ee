"""How a broker's own command-line tools are called, for hooks and for commands that watch it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bench_spark.brokers.lifecycle import status
from bench_spark.scenario.broker import Broker

RABBITMQCTL, RABBITMQ_PLUGINS = "rabbitmqctl", "rabbitmq-plugins"


def rabbitmqctl_of(broker: Broker) -> list[str] | None:
    """The command that the broker file names, else that of the broker which runs embedded; None
    where neither knows one."""
    if broker.rabbitmqctl:
        return list(broker.rabbitmqctl)
    for source in broker.resources:
        if source.embedded is not None and (found := status(source.embedded).broker.rabbitmqctl):
            return list(found)
    return None


def tools_environment(broker: Broker) -> dict[str, str]:
    """Variables that name the tools, quoted for a shell; none where the broker has none."""
    command = rabbitmqctl_of(broker)
    if command is None:
        return {}
    named = {"RABBITMQCTL": shlex.join(command)}
    if plugins := _beside(command):
        named["RABBITMQ_PLUGINS"] = shlex.join(plugins)
    return named


def _beside(command: Sequence[str]) -> list[str] | None:
    """The same command for rabbitmq-plugins, which is installed beside rabbitmqctl."""
    if not command[-1].endswith(RABBITMQCTL):
        return None
    return [*command[:-1], command[-1].removesuffix(RABBITMQCTL) + RABBITMQ_PLUGINS]
