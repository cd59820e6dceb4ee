"""Policies: for which queues, and which scenarios cannot have one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp
from bench_spark.errors import ConfigurationError
from bench_spark.transports.amqp.management import pattern_of
from bench_spark.transports.registry import refuse_impossible

POLICY = {"definition": {"ha-mode": "exactly", "ha-params": 2}}
PLAIN = Broker(name="mine", kind="amqp", uri="amqp://broker:5672/")
MANAGED = PLAIN.model_copy(update={"management_uri": "http://broker:15672"})


@pytest.mark.parametrize(
    ("queue", "matching", "other"),
    [
        ({}, "bench-run.7-12", "bench-run97-12"),
        ({"name": "perf-test-%d"}, "perf-test-3", "perf-test-x"),
        ({"name": "a.b"}, "a.b", "a.b.c"),
        ({"name": "a.b"}, "a.b", "axb"),
    ],
)
def test_the_pattern_fits_the_queues_of_the_run_only(
    queue: dict[str, Any], matching: str, other: str
) -> None:
    pattern = pattern_of(Amqp.model_validate({"queue": queue, "policy": POLICY}), "run.7")
    assert re.search(pattern, matching)
    assert not re.search(pattern, other)


def test_a_pattern_of_ones_own_is_taken_as_it_is() -> None:
    amqp = Amqp.model_validate({"policy": {**POLICY, "pattern": "^mine"}})
    assert pattern_of(amqp, "run") == "^mine"


@pytest.mark.parametrize(
    ("broker", "scenario", "message"),
    [
        (PLAIN, {}, "amqp.policy: .* broker mine has no management_uri"),
        (
            MANAGED,
            {"amqp": {"queue": {"server_named": True}}},
            "amqp.policy.pattern: missing",
        ),
        (
            MANAGED,
            {"producers": 0, "amqp": {"queue": {"name": "q"}}},
            "amqp.policy: a run without producers",
        ),
    ],
)
def test_a_policy_that_cannot_be_set_is_refused_by_name(
    broker: Broker, scenario: dict[str, Any], message: str
) -> None:
    amqp = {**scenario.get("amqp", {}), "policy": POLICY}
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        refuse_impossible(Scenario.model_validate({**scenario, "amqp": amqp}), broker)


def test_a_policy_with_a_management_api_is_fine() -> None:
    refuse_impossible(Scenario.model_validate({"amqp": {"policy": POLICY}}), MANAGED)
