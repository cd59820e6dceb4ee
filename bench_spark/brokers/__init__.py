"""Real brokers for the quick start and the tests: on loopback, private, and gone after a stop."""

from bench_spark.brokers.base import BrokerStatus
from bench_spark.brokers.lifecycle import NAMES, embedded, start, status, stop

__all__ = ["NAMES", "BrokerStatus", "embedded", "start", "status", "stop"]
