"""Kafka in KRaft mode: broker and controller in one process, from jars, without root."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench_spark.brokers.base import ANSWER_TIMEOUT_SECONDS, HOST, Say, exchange
from bench_spark.brokers.jvm import java_command
from bench_spark.brokers.process import Command, last_lines, run_to_end
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


class Kafka:
    name = "kafka"
    ports: Mapping[str, int] = {"client": 20092, "controller": 0}

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        settings = directory / "server.properties"
        settings.write_text(server_properties(directory / "data", ports))
        log4j = directory / "log4j2.properties"
        log4j.write_text(LOGGING)
        quiet = f"-Dlog4j2.configurationFile={log4j}"
        jars = jar_set("kafka", say=say)
        self._format_storage(jars, directory, settings, quiet)
        java = java_command(jars, directory, ["-Xmx256m", quiet])
        return [Command([*java, "kafka.Kafka", settings])]

    def _format_storage(
        self, jars: list[Path], directory: Path, settings: Path, quiet: str
    ) -> None:
        java = java_command(jars, directory, ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", quiet])
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=": a random id may begin with a dash, which would be taken for an option.
        tool: list[str | Path] = [
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster}",
            "-c",
            settings,
        ]
        log = directory / "format.log"
        if run_to_end(Command([*java, *tool]), directory, log) != 0:
            raise EnvironmentNotReady(f"kafka could not format its storage: {last_lines(log)}")

    def answers(self, ports: Mapping[str, int]) -> bool:
        # librdkafka complains aloud about a port that refuses: ask it only when somebody is there.
        if not exchange(ports["client"], HELLO, HELLO_REPLY):
            return False
        silent = logging.getLogger(__name__ + ".silent")
        silent.addHandler(logging.NullHandler())
        silent.propagate = False
        client = AdminClient({"bootstrap.servers": f"{HOST}:{ports['client']}"}, logger=silent)
        try:
            return bool(client.list_topics(timeout=ANSWER_TIMEOUT_SECONDS).brokers)
        except KafkaException:
            return False

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        return {"kind": "kafka", "bootstrap_servers": f"{HOST}:{ports['client']}"}


def server_properties(data: Path, ports: Mapping[str, int]) -> str:
    client = f"PLAINTEXT://{HOST}:{ports['client']}"
    controller = f"{HOST}:{ports['controller']}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"{client},CONTROLLER://{controller}",
        "advertised.listeners": client,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        # A benchmark says what it needs: a misspelt topic is an error, not a new topic.
        "auto.create.topics.enable": "false",
        # One node holds the internal topics.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
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
