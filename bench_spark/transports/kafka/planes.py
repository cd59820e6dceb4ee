"""Which data plane moves the messages."""

from __future__ import annotations

import confluent_kafka

from bench_spark.scenario.kafka_section import Kafka
from bench_spark.transports.kafka import obstacles
from bench_spark.transports.planes import Plane, plane_of


def chosen_plane(kafka: Kafka) -> Plane:
    """The one asked for, or confluent-kafka's own where the fast one cannot do it."""
    library = (
        f"confluent-kafka {confluent_kafka.version()} / "
        f"librdkafka {confluent_kafka.libversion()[0]}"
    )

    def obstacle() -> str | None:
        return "kafka.transaction_messages" if kafka.transaction_messages else obstacles.obstacle()

    return plane_of(library, kafka.plane, "confluent", obstacle)
