"""Which transport serves which kind of broker.

A protocol's package is imported only when its kind is asked for, so that a run on one broker never
loads the client library of another. Others add theirs by an entry point of the group
`bench_spark.transports` that gives a `TransportKind`, or a function from TransportContext to
Transport whose attribute `capabilities` says what the transport can do; broker files of kind
`other` name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.delivery import with_delivery
from bench_spark.config.ends import Ends, scenario_at
from bench_spark.config.models import Scenario
from bench_spark.config.sections import PROTOCOLS
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import Capabilities, Transport, TransportContext, TransportKind
from bench_spark.transports.leftovers import Sweeper

ENTRY_POINTS = "bench_spark.transports"


class _Packages(Mapping[str, TransportKind]):
    """The `KIND` of each package, which is imported when it is asked for."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getitem__(self, name: str) -> TransportKind:
        if name not in self._names:
            raise KeyError(name)
        kind: TransportKind = import_module(f"bench_spark.transports.{name}").KIND
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


KINDS: Mapping[str, TransportKind] = _Packages("amqp", "kafka", "mqtt", "http", "tcp", "loopback")


class _Factory(TransportKind):
    """Somebody else's transport that says nothing of itself but its capabilities."""

    def __init__(self, factory: Callable[[TransportContext], Transport]) -> None:
        self._factory = factory

    def make(self, context: TransportContext) -> Transport:
        made: Any = self._factory(context)
        if not hasattr(made, "capabilities"):
            made.capabilities = self.capabilities(context.scenario)
        transport: Transport = made
        return transport

    def capabilities(self, scenario: Scenario) -> Capabilities:
        said: Capabilities = getattr(self._factory, "capabilities", Capabilities())
        return said


def kind_of(broker: Broker) -> TransportKind:
    if broker.kind in KINDS:
        return KINDS[broker.kind]
    for entry_point in entry_points(group=ENTRY_POINTS, name=broker.transport or ""):
        offered = entry_point.load()
        return offered if isinstance(offered, TransportKind) else _Factory(offered)
    installed = sorted(one.name for one in entry_points(group=ENTRY_POINTS))
    raise ConfigurationError(
        f"broker {broker.name}: transport: {broker.transport} is not installed; installed: "
        f"{', '.join(installed) or 'none'}"
    )


def make_transport(context: TransportContext) -> Transport:
    """The transport for this broker. Connects to nothing yet."""
    return kind_of(context.broker).make(context)


def sweeper_of(broker: Broker, credentials: Credentials) -> Sweeper:
    """Connects to nothing yet."""
    context = TransportContext("cleanup", Scenario(), broker, credentials)
    return kind_of(broker).sweeper(context)


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    """Raise ConfigurationError for what this protocol can never do, from the files alone."""
    kind = kind_of(broker)
    kind.check(scenario, broker)
    capabilities = kind.capabilities(scenario)
    if not scenario.wiring.is_plain and not capabilities.topologies:
        raise ConfigurationError(f"topology: kind {broker.kind} cannot do {scenario.topology}")
    if scenario.consumer.is_slow and not capabilities.pausable:
        raise ConfigurationError(f"consumer: consumers of kind {broker.kind} cannot be slowed down")


def fitted(scenario: Scenario, broker: Broker) -> Scenario:
    """The scenario as it runs on this broker: with the protocol's keys that `delivery` stands for.
    Raises ConfigurationError for what the protocol can never do, from the files alone."""
    scenario = with_delivery(scenario, broker.kind)
    refuse_impossible(scenario, broker)
    return scenario


def fitted_to(scenario: Scenario, ends: Ends) -> Scenario:
    """The scenario as it runs on these brokers, each end checked as `fitted` does."""
    if not ends.are_apart:
        return fitted(scenario, ends.ingress[0].broker)
    confirms: dict[str, bool] = {}
    own: dict[str, list[Any]] = {"ingress": [*scenario.ingress], "egress": [*scenario.egress]}
    for end in ends.every:
        kind = end.broker.kind
        try:
            part = fitted(scenario_at(scenario, end), end.broker)
        except ConfigurationError as error:
            raise ConfigurationError(f"{end.label}: {error}") from None
        if scenario.delivery is not None and kind in PROTOCOLS:
            section = own[end.role][end.place]
            own[end.role][end.place] = section.model_copy(update={kind: getattr(part, kind)})
        if end.role == "ingress":
            confirms[end.label] = kind_of(end.broker).capabilities(part).confirms
    if len(set(confirms.values())) > 1:
        silent = next(label for label, has_answer in confirms.items() if not has_answer)
        raise ConfigurationError(
            f"ingress: {silent} confirms no message, but others do; let all of them confirm "
            "(amqp.confirms, kafka.producer.acks, mqtt.qos; or delivery: at_least_once), or none"
        )
    return scenario.model_copy(update=own)
