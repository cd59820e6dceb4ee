"""Names on the wire, and scenarios that no AMQP broker could run."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.models import Amqp, Scenario
from bench_spark.transports.amqp import naming


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ({}, "bench-run7-4"),
        ({"name": "orders"}, "orders"),
        ({"name": "perf-test-%d"}, "perf-test-4"),
        ({"server_named": True}, ""),
    ],
)
def test_queue_names(queue: dict[str, Any], expected: str) -> None:
    assert naming.queue_name(Amqp.model_validate({"queue": queue}), "run7", 4) == expected


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [(None, "the-queue"), ("fixed", "fixed"), ("k.%d", "k.4"), ("", "")],
)
def test_routing_keys(routing_key: str | None, expected: str) -> None:
    assert naming.routing_key(Amqp(routing_key=routing_key), 4, "the-queue") == expected


SEVERAL = {"destinations": 2, "producers": 2, "consumers": 2}
PER_AGENT = {"agents": 2, "load": {"scope": "per_agent"}}
EXCHANGE = {"name": "e"}


@pytest.mark.parametrize(
    ("scenario", "key"),
    [
        ({"amqp": {"queue": {"arguments": {"x-rate": 0.5}}}}, "amqp.queue.arguments.x-rate"),
        ({**PER_AGENT, "amqp": {"queue": {"name": "one"}}}, "amqp.queue.name"),
        (
            {**SEVERAL, "amqp": {"exchange": {**EXCHANGE, "type": "fanout"}}},
            "amqp.exchange.type",
        ),
        (
            {**SEVERAL, "amqp": {"exchange": {**EXCHANGE, "type": "headers"}}},
            "amqp.exchange.type",
        ),
        (
            {**SEVERAL, "amqp": {"exchange": EXCHANGE, "routing_key": "same"}},
            "amqp.routing_key",
        ),
    ],
)
def test_what_amqp_can_never_do_is_refused_by_its_key(scenario: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        naming.refuse_impossible(Scenario.model_validate(scenario))


@pytest.mark.parametrize(
    "scenario",
    [
        {},
        {**SEVERAL, "amqp": {"queue": {"name": "q-%d"}}},
        {**SEVERAL, "amqp": {"routing_key": "nowhere", "mandatory": True}},
        {**SEVERAL, "amqp": {"exchange": EXCHANGE, "routing_key": "k.%d"}},
        {"amqp": {"exchange": {**EXCHANGE, "type": "fanout"}}},
        {"amqp": {"queue": {"arguments": {"x-max-length": 10, "x-queue-type": "quorum"}}}},
    ],
)
def test_ordinary_scenarios_are_not_refused(scenario: dict[str, Any]) -> None:
    naming.refuse_impossible(Scenario.model_validate(scenario))
