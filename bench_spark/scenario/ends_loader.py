"""Which brokers a run is about: those of the scenario's ends, of the options, or the one broker."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.ends import Ends
from bench_spark.scenario.ends_section import Egress, Ingress
from bench_spark.scenario.loader import load_broker
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.problems import problems_of

Given = str | Broker
"""A broker, or the reference of its file."""


def with_ends(
    scenario: Scenario,
    broker: Given | None,
    ingress: Sequence[Given] = (),
    egress: Sequence[Given] = (),
) -> tuple[Scenario, Ends]:
    """The scenario with both ends named, or with none, and the brokers that these names mean.

    `ingress` and `egress` go before what the scenario says; `broker` is whatever nobody has named.
    """
    named = _named(_named(scenario, "ingress", ingress), "egress", egress)
    if not named.has_ends_apart:
        return named, Ends.of(_broker(_needed(broker, "broker")))
    sides = {
        "ingress": list(ingress) or [end.broker for end in named.ingress],
        "egress": list(egress) or [end.broker for end in named.egress],
    }
    for role, brokers in sides.items():
        if not brokers:
            brokers.append(_needed(broker, role))
            named = _named(named, role, brokers)
    return named, Ends.apart(*(list(map(_broker, brokers)) for brokers in sides.values()))


def _needed(broker: Given | None, role: str) -> Given:
    if broker is None:
        raise ConfigurationError(f"{role}: missing; no broker is named")
    return broker


def _broker(given: Given) -> Broker:
    return given if isinstance(given, Broker) else load_broker(given)


def _named(scenario: Scenario, role: str, given: Sequence[Given]) -> Scenario:
    """With these brokers at the ends of that role."""
    if not given:
        return scenario
    known: Sequence[Ingress | Egress] = getattr(scenario, role)
    if known and len(known) != len(given):
        raise ConfigurationError(
            f"--{role}: {len(given)} given, but the scenario has {len(known)} entries of {role}; "
            "name a broker for each of them"
        )
    references = [one.name if isinstance(one, Broker) else one for one in given]
    document = scenario.model_dump(exclude_unset=True)
    entries = document.get(role) or [{} for _ in given]
    document[role] = [
        entry | {"broker": name} for entry, name in zip(entries, references, strict=True)
    ]
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        problems = problems_of(error, Scenario, lambda paths: f"--{role}")
    raise ConfigurationError("\n".join(map(str, problems)))
