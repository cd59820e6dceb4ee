"""Which data plane moves the messages."""

from __future__ import annotations

from dataclasses import dataclass

import confluent_kafka

from bench_spark.scenario.kafka_section import Kafka
from bench_spark.transports.kafka import obstacles


@dataclass(frozen=True)
class Plane:
    is_fast: bool
    reason: str = ""
    """Why it is not the one that was asked for."""

    @property
    def client_library(self) -> str:
        """For the result: what moved the messages."""
        name = "fast plane" if self.is_fast else "confluent plane"
        because = f": {self.reason}" if self.reason else ""
        return (
            f"confluent-kafka {confluent_kafka.version()} / "
            f"librdkafka {confluent_kafka.libversion()[0]} ({name}{because})"
        )


def chosen_plane(kafka: Kafka) -> Plane:
    """The one asked for, or confluent-kafka's own where the fast one cannot do it."""
    if kafka.plane == "confluent":
        return Plane(is_fast=False)
    if kafka.transaction_messages:
        return Plane(is_fast=False, reason="kafka.transaction_messages")
    obstacle = obstacles.obstacle()
    return Plane(is_fast=obstacle is None, reason=obstacle or "")
