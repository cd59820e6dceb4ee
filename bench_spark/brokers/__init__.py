"""Real brokers for the quick start and the tests: on loopback, private, and gone after a stop."""

from bench_spark.brokers.base import BrokerStatus
from bench_spark.brokers.lifecycle import (
    NAMES,
    embedded,
    rabbitmqctl_of,
    start,
    status,
    stop,
    tools_environment,
)

__all__ = [
    "NAMES",
    "BrokerStatus",
    "embedded",
    "rabbitmqctl_of",
    "start",
    "status",
    "stop",
    "tools_environment",
]
