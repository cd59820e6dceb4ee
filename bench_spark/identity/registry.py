"""Carriers by name. Others add theirs by an entry point of the group `bench_spark.carriers` that
gives a function from the scenario's section `identity` to a Carrier."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from bench_spark.errors import ConfigurationError
from bench_spark.identity.base import Carrier
from bench_spark.identity.beside_body import AsKey, ByAcknowledgement, InHeader
from bench_spark.identity.in_body import (
    AtMatch,
    Before,
    Behind,
    ByPattern,
    Finding,
    InBody,
    Placing,
)
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.identity_section import ANY_ID, Identity, compiled
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.pattern import Pattern
from bench_spark.transports.base import Part
from bench_spark.transports.registry import parts_of

ENTRY_POINTS = "bench_spark.carriers"
ACKNOWLEDGEMENT = "acknowledgement"

CarrierFactory = Callable[[Identity], Carrier]


def make_carrier(scenario: Scenario) -> Carrier | None:
    """What the scenario asks for; None for the envelope."""
    if scenario.has_envelopes:
        return None
    return carrier_named(scenario.carrier, scenario.identity)


def carrier_named(name: str, identity: Identity) -> Carrier:
    return _factory(name)(identity)


def refuse_carrier(scenario: Scenario, broker: Broker) -> None:
    """Raise ConfigurationError if messages to this broker lack what the carrier puts the ID into,
    or what the data set has beside bodies."""
    carrier = make_carrier(scenario)
    if carrier is None:
        return
    if scenario.carrier == ACKNOWLEDGEMENT:
        _refuse_without_answers(scenario, broker)
    offered = parts_of(broker, scenario)
    for part in sorted(carrier.puts_into - offered, key=lambda part: part.value):
        _refuse_part(f"identity.carrier: {scenario.carrier}", part, broker, scenario)
    columns = scenario.dataset.columns
    if columns.key is not None and Part.KEY not in offered:
        _refuse_part(f"dataset.columns.key: {columns.key}", Part.KEY, broker, scenario)
    if columns.headers is not None and Part.HEADERS not in offered:
        _refuse_part(f"dataset.columns.headers: {columns.headers}", Part.HEADERS, broker, scenario)


def refuse_carrier_to_find(scenario: Scenario, broker: Broker) -> None:
    """The same where IDs are only looked for: at an egress."""
    carrier = make_carrier(scenario)
    if carrier is None:
        return
    missing = carrier.wants - parts_of(broker, scenario)
    for part in sorted(missing, key=lambda part: part.value):
        _refuse_part(f"identity.carrier: {scenario.carrier}", part, broker, scenario)


def _refuse_without_answers(scenario: Scenario, broker: Broker) -> None:
    if broker.kind not in ("http", "other"):
        raise ConfigurationError(
            f"identity.carrier: acknowledgement: kind {broker.kind} gives no IDs; allowed: kind "
            "http, whose answers can name one"
        )
    if broker.kind == "http" and scenario.http.answer == "none":
        raise ConfigurationError(
            "identity.carrier: acknowledgement: http.answer is none, so that no answer names an "
            "ID; use body or header"
        )


def _refuse_part(key: str, part: Part, broker: Broker, scenario: Scenario) -> None:
    what = {Part.HEADERS: "headers", Part.KEY: "a key", Part.BODY: "a body"}[part]
    kind = f"{broker.kind} {scenario.mqtt.version}" if broker.kind == "mqtt" else broker.kind
    advice = "; use mqtt.version: 5" if kind == "mqtt 3.1.1" and part is Part.HEADERS else ""
    raise ConfigurationError(
        f"{key}: messages of kind {kind} have no {what.removeprefix('a ')}{advice}"
    )


def _factory(name: str) -> CarrierFactory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        factory: CarrierFactory = entry_point.load()
        return factory
    names = sorted(
        {*_BUILT_IN, "envelope", *(one.name for one in entry_points(group=ENTRY_POINTS))}
    )
    guess = nearest(name, names)
    raise ConfigurationError(
        f"identity.carrier: {name} is not installed; allowed: {', '.join(names)}"
        + (f"; did you mean {guess}?" if guess else "")
    )


def _in_body(placing: Placing, finding: Finding | None, identity: Identity) -> InBody:
    """`finding` is how the carrier finds the ID unless a pattern is given."""
    if identity.find is None and finding is not None:
        return InBody(placing, finding, None)
    pattern = _find_pattern(identity)
    return InBody(placing, ByPattern(pattern), pattern, has_given_pattern=identity.find is not None)


def _find_pattern(identity: Identity) -> Pattern[bytes]:
    return Pattern(ANY_ID) if identity.find is None else compiled(identity.find)


def _at_match(identity: Identity) -> InBody:
    assert identity.insert is not None
    return _in_body(AtMatch(compiled(identity.insert)), None, identity)


_BUILT_IN: dict[str, CarrierFactory] = {
    "prefix": lambda identity: _in_body(Before(), Before(), identity),
    "append": lambda identity: _in_body(Behind(), Behind(), identity),
    "regex": _at_match,
    "header": lambda identity: InHeader(identity.name),
    "key": lambda identity: AsKey(),
    ACKNOWLEDGEMENT: lambda identity: ByAcknowledgement(_find_pattern(identity)),
}
