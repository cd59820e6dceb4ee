"""HTTP/1.1, for systems that are fed by requests or send them.

messages.py        envelopes and bodies out of a stream of bytes, and messages as requests (pure)
producers.py       lanes that send requests and read answers
transport.py       peers that send requests to us, and the Transport made of all these
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import Capabilities, Transport, TransportContext, TransportKind
from bench_spark.transports.batches import Part


class _Http(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        from bench_spark.transports.http.transport import HttpTransport

        return HttpTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        return Capabilities(
            confirms=True,
            parts=frozenset({Part.BODY, Part.HEADERS}),
            pausable=True,
            answers=scenario.http.answer != "none",
            listens=True,
        )

    def check(self, scenario: Scenario, broker: Broker) -> None:
        from bench_spark.transports.http.transport import refuse_impossible

        refuse_impossible(scenario, broker)


KIND = _Http()
