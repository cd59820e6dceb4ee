"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind, on `transports/sockets`.

connection.py      login, channel, heartbeats and closing on a socket; why it ended
control.py         one short-lived connection for requests that wait for their answer; the probe
topology.py        queues and exchanges: their names, what there is, how it is made and deleted;
                   what AMQP can never do
management.py      the management API: policies, and what killed runs have left
frames.py          frames as bytes, and a stream of them: what decoders leave to Python (pure)
confirms.py        acks, nacks and returns to a producer, settled into outcomes (pure)
producers.py       messages to publish, written from templates; what became of them
consumers.py       messages decoded into rows, and acknowledged
transport.py       the Transport made of all these
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import Capabilities, Transport, TransportContext, TransportKind
from bench_spark.transports.batches import Part
from bench_spark.transports.leftovers import Sweeper

_LENGTH_LIMITS = ("x-max-length", "x-max-length-bytes")


class _Amqp(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        from bench_spark.transports.amqp.transport import AmqpTransport

        return AmqpTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        amqp = scenario.amqp
        return Capabilities(
            confirms=amqp.confirms > 0 or amqp.producer_transaction > 0,
            parts=frozenset({Part.BODY, Part.HEADERS}),
            topologies=True,
            pausable=True,
            returns_unconsumed=amqp.immediate,
            drops_overflow=any(name in amqp.queue.arguments for name in _LENGTH_LIMITS),
        )

    def check(self, scenario: Scenario, broker: Broker) -> None:
        from bench_spark.transports.amqp import management, topology

        topology.refuse_impossible(scenario)
        management.refuse_impossible(scenario, broker)

    def sweeper(self, context: TransportContext) -> Sweeper:
        from bench_spark.transports.amqp.management import AmqpSweeper

        return AmqpSweeper(context)


KIND = _Amqp()
