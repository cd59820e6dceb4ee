"""Names of queues, keys and headers, and what AMQP 0-9-1 can never do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench_spark.config.fields import ClientProperties
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp
from bench_spark.errors import ConfigurationError

NUMBER_MARK = "%d"


def queue_name(amqp: Amqp, run_id: str, index: int) -> str:
    """The name to declare; empty asks the broker to choose one."""
    if amqp.queue.server_named:
        return ""
    if amqp.queue.name is None:
        return f"bench-{run_id}-{index}"
    return _numbered(amqp, amqp.queue.name, index)


def routing_key(amqp: Amqp, index: int, resolved_queue: str) -> str:
    """The key of every message; with several keys, what they begin with."""
    if amqp.routing_key is None:
        return resolved_queue
    return _numbered(amqp, amqp.routing_key, index)


def routing_keys(amqp: Amqp, index: int, resolved_queue: str) -> tuple[str, ...]:
    """All keys that messages for this destination have: of equal length, ending in a number."""
    key = routing_key(amqp, index, resolved_queue)
    if amqp.routing_keys == 1:
        return (key,)
    digits = key_digits(amqp)
    return tuple(f"{key}.{number:0{digits}d}" for number in range(amqp.routing_keys))


def key_digits(amqp: Amqp) -> int:
    """How many digits the number at the end of each of several routing keys has."""
    return len(str(amqp.routing_keys - 1))


def binding_keys(amqp: Amqp, index: int, resolved_queue: str) -> tuple[str, ...]:
    """The keys by which the destination's queue is bound to the exchange."""
    if amqp.binding_key is not None:
        return (_numbered(amqp, amqp.binding_key, index),)
    if amqp.exchange.type == "direct":
        return routing_keys(amqp, index, resolved_queue)
    key = routing_key(amqp, index, resolved_queue)
    is_pattern = amqp.exchange.type == "topic" and amqp.routing_keys > 1
    return (f"{key}.*" if is_pattern else key,)


def binding_arguments(amqp: Amqp, index: int) -> ClientProperties:
    return _all_numbered(amqp, amqp.exchange.binding_arguments, index)


def message_headers(amqp: Amqp, index: int) -> ClientProperties:
    return _all_numbered(amqp, amqp.headers, index)


def _numbered(amqp: Amqp, text: str, index: int) -> str:
    return text.replace(NUMBER_MARK, str(amqp.queue.first_number + index))


def _all_numbered(amqp: Amqp, values: ClientProperties, index: int) -> ClientProperties:
    return {
        key: _numbered(amqp, value, index) if isinstance(value, str) else value
        for key, value in values.items()
    }


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for what no AMQP 0-9-1 broker could do with this scenario."""
    amqp = scenario.amqp
    for section, values in (
        ("amqp.queue.arguments", amqp.queue.arguments),
        ("amqp.exchange.binding_arguments", amqp.exchange.binding_arguments),
        ("amqp.headers", amqp.headers),
        ("amqp.consumer_arguments", amqp.consumer_arguments),
    ):
        _refuse_fractions(section, values)
    if amqp.queue.is_stream:
        _refuse_sharing_a_stream(scenario)
    if scenario.only_consumes and amqp.queue.name is None:
        raise ConfigurationError(
            "amqp.queue.name: missing; a run without producers consumes from queues that are there "
            "already, and needs their name"
        )
    if scenario.topology is not None:
        _refuse_topology(scenario)
    elif has_several_destinations(scenario):
        _refuse_shared_names(amqp)


def _refuse_sharing_a_stream(scenario: Scenario) -> None:
    wiring = scenario.wiring
    if wiring.is_plain and scenario.consumers > scenario.destinations:
        raise ConfigurationError(
            "amqp.queue.arguments: x-queue-type: stream gives each of its consumers all messages, "
            f"but consumers: {scenario.consumers} is more than destinations: "
            f"{scenario.destinations}; use as many destinations, or topology: fan-out"
        )
    if scenario.topology == "round-robin":
        raise ConfigurationError(
            "amqp.queue.arguments: x-queue-type: stream gives each of its consumers all messages; "
            "topology round-robin shares them out"
        )


def _refuse_topology(scenario: Scenario) -> None:
    """What a topology leaves no choice about."""
    amqp, topology = scenario.amqp, scenario.topology
    if scenario.wiring.is_plain:
        if has_several_destinations(scenario):
            _refuse_shared_names(amqp)
        return
    if amqp.queue.server_named:
        raise ConfigurationError(
            f"amqp.queue.server_named: does not go with topology {topology}, in which everybody "
            "must know the queues' names"
        )
    if amqp.exchange.type == "headers":
        raise ConfigurationError(
            f"amqp.exchange.type: headers does not go with topology {topology}, in which "
            "destinations are routing keys; allowed: direct, topic, fanout"
        )
    if amqp.exchange.name and amqp.exchange.type == "fanout" and topology == "fan-in":
        raise ConfigurationError(
            "amqp.exchange.type: fanout copies every message to all consumers; topology fan-in "
            "needs direct or topic"
        )
    if scenario.destinations > 1 and topology != "fan-out":
        _refuse_keys_without_number(amqp)


def _refuse_fractions(section: str, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if isinstance(value, float):
            raise ConfigurationError(
                f"{section}.{key}: {value} is a fraction; AMQP clients send whole numbers, text "
                "and booleans only"
            )


def has_several_destinations(scenario: Scenario) -> bool:
    is_multiplied = scenario.load.scope == "per_agent" and scenario.agents != 1
    return scenario.destinations > 1 or is_multiplied


def _refuse_shared_names(amqp: Amqp) -> None:
    if amqp.queue.name is not None and NUMBER_MARK not in amqp.queue.name:
        raise ConfigurationError(
            "amqp.queue.name: with several destinations the name needs a %d for their number"
        )
    if amqp.exchange.name:
        _refuse_copying(amqp)


def _refuse_copying(amqp: Amqp) -> None:
    """A message belongs to one destination: an exchange must be able to tell which."""
    if amqp.exchange.type == "fanout":
        raise ConfigurationError(
            "amqp.exchange.type: fanout copies every message to all destinations; it needs "
            "destinations: 1"
        )
    if amqp.exchange.type == "headers":
        for section, values in (
            ("amqp.exchange.binding_arguments", amqp.exchange.binding_arguments),
            ("amqp.headers", amqp.headers),
        ):
            if not _has_mark(values.values()):
                raise ConfigurationError(
                    f"{section}: with several destinations a value needs a %d for their number, "
                    "else every message is copied to all of them"
                )
        return
    _refuse_keys_without_number(amqp)


def _refuse_keys_without_number(amqp: Amqp) -> None:
    for name, key in (("routing_key", amqp.routing_key), ("binding_key", amqp.binding_key)):
        if key is not None and NUMBER_MARK not in key:
            raise ConfigurationError(
                f"amqp.{name}: with several destinations the key needs a %d for their number, else "
                "every message is copied to all of them"
            )


def _has_mark(values: Iterable[object]) -> bool:
    return any(isinstance(value, str) and NUMBER_MARK in value for value in values)
