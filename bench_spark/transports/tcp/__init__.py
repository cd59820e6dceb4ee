"""Messages over bare TCP, for systems that have no broker in front or behind.

framing.py         where a message begins and ends, on the way out and in (pure)
transport.py       producers, consumers, and the Transport made of them
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import (
    Capabilities,
    SizeLimit,
    Transport,
    TransportContext,
    TransportKind,
)


class _Tcp(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        from bench_spark.transports.tcp.transport import TcpTransport

        return TcpTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        return Capabilities(pausable=True, listens=scenario.tcp.consumer == "listen")

    def check(self, scenario: Scenario, broker: Broker) -> None:
        from bench_spark.transports.tcp.transport import refuse_impossible

        refuse_impossible(scenario, broker)

    def size_limit(self, scenario: Scenario) -> SizeLimit:
        from bench_spark.transports.tcp import framing

        tcp = scenario.tcp
        most_bytes = framing.size_limit(tcp)
        if most_bytes is not None and most_bytes < SizeLimit().most_bytes:
            return SizeLimit(most_bytes, f"tcp.length_bytes: {tcp.length_bytes}")
        return SizeLimit(forbidden=framing.LINE_END if tcp.framing == "line" else b"")


KIND = _Tcp()
