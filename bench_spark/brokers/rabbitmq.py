"""RabbitMQ as a private node, if the package is installed; with management API, Prometheus, MQTT.

The wrapper on PATH insists on the user `rabbitmq` and on files in /var, so the plain script behind
it is run, with every path and port of its own. epmd, Erlang's port mapper, would be started by the
node as a daemon that outlives it: it is started first, as a process we know and can end.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_spark.brokers.base import (
    ANSWER_TIMEOUT_SECONDS,
    HOST,
    PASSWORD,
    USER,
    Command,
    Say,
    accepts_login,
    directory_of_node,
    nodes_at,
    ports_of_nodes,
)
from bench_spark.errors import EnvironmentNotReady
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable

PACKAGE_SCRIPTS = "rabbitmq_server-*/sbin/rabbitmq-server"
PACKAGE_DIRECTORY = Path("/usr/lib/rabbitmq/lib")
TOOLS = ("rabbitmqctl", "rabbitmq-plugins")


_NODE_PORTS = {
    "amqp": 21672,
    "management": 21673,
    "prometheus": 21692,
    "mqtt": 21883,
    "distribution": 0,
}


class RabbitMQRecipe:
    """One node, or several that form a cluster. Each further node joins the first, which is named
    in its configuration, when that one answers."""

    name = "rabbitmq"

    def __init__(self, nodes: int = 1) -> None:
        self._nodes = nodes

    @property
    def ports(self) -> Mapping[str, int]:
        return {**ports_of_nodes(_NODE_PORTS, self._nodes), "epmd": 0}

    def with_nodes(self, nodes: int) -> RabbitMQRecipe:
        return RabbitMQRecipe(nodes)

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        server, epmd = installed_programs()
        plugins = directory / "enabled_plugins"
        plugins.write_text("[rabbitmq_management,rabbitmq_prometheus,rabbitmq_mqtt].\n")
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        mapper = {"ERL_EPMD_PORT": str(ports["epmd"]), "ERL_EPMD_ADDRESS": HOST}
        nodes = nodes_at(_Node, self._nodes, _NODE_PORTS, ports)
        for node in nodes[1:]:
            say(f"starting node {node.number} of it at {HOST}:{node.ports['amqp']}")
        environments = [
            mapper | node.prepared(directory, plugins, first=nodes[0]) for node in nodes
        ]
        for tool in TOOLS:
            _write_tool(directory, server.with_name(tool), environments[0])
        return [
            Command([epmd], mapper),
            *(
                Command([server], environment, is_ready=node.answers)
                for node, environment in zip(nodes, environments, strict=True)
            ),
        ]

    def answers(self, ports: Mapping[str, int]) -> bool:
        nodes = nodes_at(_Node, self._nodes, _NODE_PORTS, ports)
        return all(node.answers() for node in nodes) and nodes[0].cluster_size() == self._nodes

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        login = f"{USER}:{PASSWORD}@{HOST}"
        return {
            "kind": "amqp",
            "uri": f"amqp://{login}:{ports['amqp']}/",
            "management_uri": f"http://{login}:{ports['management']}",
            "rabbitmqctl": [str(tool)] if (tool := directory / TOOLS[0]).exists() else [],
        }


@dataclass(frozen=True)
class _Node:
    number: int
    ports: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"bench-spark-{self.ports['amqp']}@localhost"

    def prepared(self, directory: Path, plugins: Path, first: _Node) -> dict[str, str]:
        """Write its files; the environment it is started with."""
        own = directory_of_node(self.number, directory)
        settings = own / "rabbitmq.conf"
        settings.write_text(configuration(self.ports, [first.name, self.name]))
        return {
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(own / "data"),
            "RABBITMQ_LOG_BASE": str(own / "logs"),
            "RABBITMQ_PID_FILE": str(own / "node.pid"),
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The script then becomes the node instead of guarding it: one process, its own id.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def answers(self) -> bool:
        return (
            accepts_login(self.ports["amqp"])
            and _ask_management(self.ports["management"], "overview") is not None
        )

    def cluster_size(self) -> int:
        """Running nodes that this one knows of, itself included."""
        nodes = _ask_management(self.ports["management"], "nodes") or []
        return sum(bool(node["running"]) for node in nodes)


_TOOLS_VARIABLES = (
    "RABBITMQ_NODENAME",
    "RABBITMQ_CONF_ENV_FILE",
    "RABBITMQ_ENABLED_PLUGINS_FILE",
    "ERL_EPMD_PORT",
    "ERL_EPMD_ADDRESS",
)


def _write_tool(directory: Path, program: Path, environment: Mapping[str, str]) -> None:
    """A script that calls one of RabbitMQ's tools for the first node.

    The node has a cookie and a port mapper of its own, which another rabbitmqctl would not find;
    and without the address a tool might start a mapper that listens to the whole network.
    """
    variables = {"HOME": str(directory)} | {name: environment[name] for name in _TOOLS_VARIABLES}
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    tool = directory / program.name
    tool.write_text(f'#!/bin/sh\nexport {assigned}\nexec {shlex.quote(str(program))} "$@"\n')
    tool.chmod(0o700)


def installed_programs() -> tuple[Path, Path]:
    """The server's plain script and epmd."""
    scripts = sorted(PACKAGE_DIRECTORY.glob(PACKAGE_SCRIPTS))
    epmd = shutil.which("epmd")
    if not scripts or not epmd:
        raise EnvironmentNotReady(
            "RabbitMQ is not installed; install it with `apt-get install rabbitmq-server`"
        )
    return scripts[-1], Path(epmd)


def configuration(ports: Mapping[str, int], members: Sequence[str] = ()) -> str:
    """`members`: nodes to form a cluster with, itself among them; the first that is there already
    is joined."""
    settings: dict[str, object] = {
        "listeners.tcp.1": f"{HOST}:{ports['amqp']}",
        "management.tcp.ip": HOST,
        "management.tcp.port": ports["management"],
        "prometheus.tcp.ip": HOST,
        "prometheus.tcp.port": ports["prometheus"],
        "mqtt.listeners.tcp.1": f"{HOST}:{ports['mqtt']}",
        # The state of connections every second instead of every fifth: short trials see it too.
        "collect_statistics_interval": 1000,
        "log.console": "true",
        "log.console.level": "warning",
        "log.file": "false",
        # Absolute limits: relative ones would depend on the machine, and stop publishers on a small
        # one from the beginning. Two thousand connections alone take more than half a gigabyte.
        "vm_memory_high_watermark.absolute": "2GB",
        "disk_free_limit.absolute": "200MB",
    }
    others = dict.fromkeys(members)
    if len(others) > 1:
        settings["cluster_formation.peer_discovery_backend"] = "classic_config"
        for number, member in enumerate(others, start=1):
            settings[f"cluster_formation.classic_config.nodes.{number}"] = member
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def _ask_management(port: int, what: str) -> Any | None:
    """What the management API says, or None if it does not answer."""
    http = DirectHttp(f"http://{HOST}:{port}", ANSWER_TIMEOUT_SECONDS, login=(USER, PASSWORD))
    try:
        return json.loads(http.ask(f"/api/{what}"))
    except (HttpRefusal, HttpUnreachable, ValueError):
        return None
