"""What a running broker calls itself, asked in the product's own way."""

from __future__ import annotations

from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.transports.base import BrokerFacts, TransportContext
from bench_spark.transports.registry import make_transport


def facts_of(broker: Broker) -> BrokerFacts:
    context = TransportContext("benchmarks", Scenario(), broker, resolve_credentials(broker))
    transport = make_transport(context)
    try:
        return transport.probe()
    finally:
        transport.close()
