"""Names of queues and routing keys, and what AMQP 0-9-1 can never do. Pure."""

from __future__ import annotations

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.models import Amqp, Scenario

NUMBER_MARK = "%d"


def queue_name(amqp: Amqp, run_id: str, index: int) -> str:
    """The name to declare; empty asks the broker to choose one."""
    if amqp.queue.server_named:
        return ""
    if amqp.queue.name is None:
        return f"bench-{run_id}-{index}"
    return amqp.queue.name.replace(NUMBER_MARK, str(index))


def routing_key(amqp: Amqp, index: int, resolved_queue: str) -> str:
    if amqp.routing_key is None:
        return resolved_queue
    return amqp.routing_key.replace(NUMBER_MARK, str(index))


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for what no AMQP 0-9-1 broker could do with this scenario."""
    amqp = scenario.amqp
    for key, value in amqp.queue.arguments.items():
        if isinstance(value, float):
            raise ConfigurationError(
                f"amqp.queue.arguments.{key}: {value} is a fraction; AMQP clients send whole "
                "numbers, text and booleans only"
            )
    if scenario.only_consumes and amqp.queue.name is None:
        raise ConfigurationError(
            "amqp.queue.name: missing; a run without producers consumes from queues that are there "
            "already, and needs their name"
        )
    if has_several_destinations(scenario):
        _refuse_shared_names(amqp)


def has_several_destinations(scenario: Scenario) -> bool:
    is_multiplied = scenario.load.scope == "per_agent" and scenario.agents != 1
    return scenario.destinations > 1 or is_multiplied


def _refuse_shared_names(amqp: Amqp) -> None:
    if amqp.queue.name is not None and NUMBER_MARK not in amqp.queue.name:
        raise ConfigurationError(
            "amqp.queue.name: with several destinations the name needs a %d for their number"
        )
    if not amqp.exchange.name:
        return
    if amqp.exchange.type in ("fanout", "headers"):
        raise ConfigurationError(
            f"amqp.exchange.type: {amqp.exchange.type} copies every message to all destinations; "
            "it needs destinations: 1"
        )
    if amqp.routing_key is not None and NUMBER_MARK not in amqp.routing_key:
        raise ConfigurationError(
            "amqp.routing_key: with several destinations the key needs a %d for their number, else "
            "every message is copied to all of them"
        )
