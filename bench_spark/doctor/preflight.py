"""What brokers are asked before Spark starts: whether they are there, and can do what is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

from bench_spark.config.ends import End, Ends, scenario_at
from bench_spark.config.models import Scenario
from bench_spark.errors import BrokerRefused, BrokerUnreachable, LoginRefused
from bench_spark.process import in_background
from bench_spark.report.live import Steps
from bench_spark.transports.base import TransportContext
from bench_spark.transports.peer import probed

SILENT_SECONDS = 2.0
"""How long to wait for a broker that says nothing at all, unless its file gives a timeout. With the
start of the program that makes less than three seconds."""


@contextmanager
def with_remedy(ends: Ends) -> Iterator[None]:
    """Errors about a broker that cannot be used say what to do about it."""
    try:
        yield
    except (BrokerUnreachable, LoginRefused) as error:
        from bench_spark.doctor.checks import remedy

        meant = [end for end in ends.once if end.address in str(error)] or ends.once
        raise type(error)(f"{error}; {remedy(error, meant[0].broker.name)}") from error


def ask_brokers(scenario: Scenario, ends: Ends, agents_are_here: bool, display: Steps) -> None:
    """Refuse a run that one of its brokers would refuse, while that takes a moment only.

    All are asked at once. Whether a broker can be reached is for the agents to say where they run
    elsewhere.
    """
    asked = [
        (end, in_background("preflight", partial(_probe, scenario, end))) for end in ends.every
    ]
    for end, answer in asked:
        try:
            with with_remedy(ends):
                answer.result()
        except BrokerUnreachable as error:
            if agents_are_here:
                raise
            display.step(f"warning: {end.label}: not reached from the driver: {error}")


def refuse_what_the_broker_cannot(trials: Iterable[tuple[str, Scenario]], ends: Ends) -> list[str]:
    """Ask each broker from here, once for each kind of trial, what it can do.

    `trials` are names and scenarios. If the broker would refuse all of them, the first is raised by
    its name: nothing needs to be started for that. If it would refuse some, what it says of those
    is returned, a line for each kind: they will fail by themselves, and leave a hole in the table.
    """
    refused: dict[str, str] = {}
    asked: set[tuple[str, str]] = set()
    for (name, scenario), end in product(trials, ends.every):
        # What is probed depends on how the protocol is used, and on nothing else of a load.
        section = scenario_at(scenario, end).dump().get(end.broker.kind)
        kind = json.dumps(section, sort_keys=True)
        if (end.label, kind) in asked:
            continue
        asked.add((end.label, kind))
        try:
            _probe(scenario, end)
        except BrokerRefused as error:
            refused[kind] = f"trial {name}: {error}"
    refusals = list(refused.values())
    if asked and len(refused) == len(asked):
        raise BrokerRefused(refusals[0])
    return refusals


def _probe(scenario: Scenario, end: End) -> None:
    at_end = scenario_at(scenario, end)
    is_chosen = "connect_timeout_seconds" in end.broker.model_fields_set
    probed(
        TransportContext("preflight", at_end, end.broker, end.credentials),
        silent_seconds=None if is_chosen else SILENT_SECONDS,
    )
