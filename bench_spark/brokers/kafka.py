"""Kafka in KRaft mode: a node is broker and controller in one process, from jars, without root."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench_spark.brokers.base import (
    ANSWER_TIMEOUT_SECONDS,
    HOST,
    Command,
    Say,
    directory_of_node,
    exchange,
    java_command,
    last_lines,
    nodes_at,
    ports_of_nodes,
    run_to_end,
)
from bench_spark.errors import EnvironmentNotReady
from bench_spark.jars import jar_set

MEBIBYTE = 1 << 20

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%throwable
"""

# An ApiVersions request, version 0, correlation 1, without a client id. The reply's length differs
# between versions of Kafka, so only its first two bytes are known: less than 64 KiB.
HELLO = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
HELLO_REPLY = b"\0\0"


_NODE_PORTS = {"client": 20092, "controller": 0}


class KafkaRecipe:
    """One node, or several that form a cluster: each is broker and controller, so they start
    together; a majority of controllers is needed before any broker serves."""

    name = "kafka"

    def __init__(self, nodes: int = 1) -> None:
        self._nodes = nodes

    @property
    def ports(self) -> Mapping[str, int]:
        return ports_of_nodes(_NODE_PORTS, self._nodes)

    def with_nodes(self, nodes: int) -> KafkaRecipe:
        return KafkaRecipe(nodes)

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        log4j = directory / "log4j2.properties"
        log4j.write_text(LOGGING)
        quiet = f"-Dlog4j2.configurationFile={log4j}"
        jars = jar_set("kafka", say=say)
        nodes = nodes_at(_Node, self._nodes, _NODE_PORTS, ports)
        for node in nodes[1:]:
            say(f"starting node {node.number} of it at {HOST}:{node.ports['client']}")
        settings = [node.prepared(directory, nodes) for node in nodes]
        self._format_storage(jars, directory, settings, quiet)
        java = java_command(jars, directory, ["-Xmx256m", quiet])
        return [Command([*java, "kafka.Kafka", one]) for one in settings]

    def _format_storage(
        self, jars: list[Path], directory: Path, settings: Sequence[Path], quiet: str
    ) -> None:
        """Of all nodes, side by side: each takes the start of a JVM."""
        java = java_command(jars, directory, ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", quiet])
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=": a random id may begin with a dash, which would be taken for an option.
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c"]

        def format_one(of_node: Path) -> None:
            log = of_node.parent / "format.log"
            if run_to_end(Command([*java, *tool, of_node]), directory, log) != 0:
                raise EnvironmentNotReady(f"kafka could not format its storage: {last_lines(log)}")

        with ThreadPoolExecutor(len(settings)) as pool:
            list(pool.map(format_one, settings))

    def answers(self, ports: Mapping[str, int]) -> bool:
        # librdkafka complains aloud about a port that refuses: ask it only when somebody is there.
        if not exchange(ports["client"], HELLO, HELLO_REPLY):
            return False
        silent = logging.getLogger(__name__ + ".silent")
        silent.addHandler(logging.NullHandler())
        silent.propagate = False
        client = AdminClient({"bootstrap.servers": f"{HOST}:{ports['client']}"}, logger=silent)
        try:
            found = client.list_topics(timeout=ANSWER_TIMEOUT_SECONDS).brokers
        except KafkaException:
            return False
        return len(found) == self._nodes

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        servers = (f"{HOST}:{ports[name]}" for name in ports if name.startswith("client"))
        return {"kind": "kafka", "bootstrap_servers": ",".join(servers)}


@dataclass(frozen=True)
class _Node:
    number: int
    ports: Mapping[str, int]

    @property
    def controller(self) -> str:
        return f"{HOST}:{self.ports['controller']}"

    def prepared(self, directory: Path, nodes: Sequence[_Node]) -> Path:
        """Write its settings; where they are."""
        own = directory_of_node(self.number, directory)
        settings = own / "server.properties"
        settings.write_text(server_properties(own / "data", self, nodes))
        return settings


def server_properties(data: Path, node: _Node, nodes: Sequence[_Node]) -> str:
    client = f"PLAINTEXT://{HOST}:{node.ports['client']}"
    # Of the internal topics: what a cluster of that size can lose a node with, if it has three.
    copies = min(3, len(nodes))
    in_sync = max(1, copies - 1)
    settings = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": ",".join(f"{one.number}@{one.controller}" for one in nodes),
        "listeners": f"{client},CONTROLLER://{node.controller}",
        "advertised.listeners": client,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        # A benchmark says what it needs: a misspelt topic is an error, not a new topic.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 1,
        # The first consumer need not wait three seconds for others to join its group.
        "group.initial.rebalance.delay.ms": 0,
        # The disk is bounded: what is older than the last 512 MB of a topic partition goes within
        # seconds, far behind a consumer that the backlog limit keeps near.
        "log.retention.bytes": 512 * MEBIBYTE,
        "log.segment.bytes": 64 * MEBIBYTE,
        "log.retention.check.interval.ms": 5000,
        "log.segment.delete.delay.ms": 1000,
        # By default half of this broker's heap, for compacting two tiny internal topics.
        "log.cleaner.dedupe.buffer.size": 4 * MEBIBYTE,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
