"""What a broker is asked before many trials are begun: whether it is there, and can do it all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.scenario.broker import Broker, Credentials
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import TransportContext
from bench_spark.transports.registry import make_transport


@contextmanager
def start_of_broker_hinted(broker: Broker) -> Iterator[None]:
    """A broker that nobody has started may be one that this program can start."""
    from bench_spark import brokers

    try:
        yield
    except BrokerUnreachable as error:
        if broker.name not in brokers.NAMES:
            raise
        hint = f"bench-spark broker start {broker.name}"
        raise BrokerUnreachable(
            f"{error}; if it is to be the one of this machine: {hint}"
        ) from error


def refuse_what_the_broker_cannot(
    trials: Iterable[tuple[str, Scenario]], broker: Broker, credentials: Credentials
) -> list[str]:
    """Ask the broker from here, once for each kind of trial, what it can do.

    `trials` are names and scenarios. If the broker would refuse all of them, the first is raised by
    its name: nothing needs to be started for that. If it would refuse some, what it says of those
    is returned, a line for each kind: they will fail by themselves, and leave a hole in the table.
    """
    refused: dict[str, str] = {}
    asked: set[str] = set()
    for name, scenario in trials:
        # What is probed depends on how the protocol is used, and on nothing else of a load.
        kind = json.dumps(scenario.dump().get(broker.kind), sort_keys=True)
        if kind in asked:
            continue
        asked.add(kind)
        context = TransportContext("preflight", scenario, broker, credentials)
        try:
            with closing(make_transport(context)) as transport:
                transport.probe()
        except BrokerRefused as error:
            refused[kind] = f"trial {name}: {error}"
    told = list(refused.values())
    if asked and len(refused) == len(asked):
        raise BrokerRefused(told[0])
    return told
