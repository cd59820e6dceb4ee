"""What a broker is asked before many trials are begun: whether it is there, and can do it all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import product

from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.scenario.ends import Ends, scenario_at
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import TransportContext
from bench_spark.transports.registry import make_transport


@contextmanager
def start_of_broker_hinted(ends: Ends) -> Iterator[None]:
    """A broker that nobody has started may be one that this program can start."""
    from bench_spark import brokers

    try:
        yield
    except BrokerUnreachable as error:
        meant = [end for end in ends.once if end.address in str(error)] or ends.once
        name = meant[0].broker.name
        if name not in brokers.NAMES:
            raise
        hint = f"bench-spark broker start {name}"
        raise BrokerUnreachable(
            f"{error}; if it is to be the one of this machine: {hint}"
        ) from error


def refuse_what_the_broker_cannot(trials: Iterable[tuple[str, Scenario]], ends: Ends) -> list[str]:
    """Ask each broker from here, once for each kind of trial, what it can do.

    `trials` are names and scenarios. If the broker would refuse all of them, the first is raised by
    its name: nothing needs to be started for that. If it would refuse some, what it says of those
    is returned, a line for each kind: they will fail by themselves, and leave a hole in the table.
    """
    refused: dict[str, str] = {}
    asked: set[tuple[str, str]] = set()
    for (name, scenario), end in product(trials, ends.every):
        at_end = scenario_at(scenario, end)
        # What is probed depends on how the protocol is used, and on nothing else of a load.
        kind = json.dumps(at_end.dump().get(end.broker.kind), sort_keys=True)
        if (end.label, kind) in asked:
            continue
        asked.add((end.label, kind))
        context = TransportContext("preflight", at_end, end.broker, end.credentials)
        try:
            with closing(make_transport(context)) as transport:
                transport.probe()
        except BrokerRefused as error:
            refused[kind] = f"trial {name}: {error}"
    told = list(refused.values())
    if asked and len(refused) == len(asked):
        raise BrokerRefused(told[0])
    return told
