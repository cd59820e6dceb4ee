"""Names on the wire, and scenarios that no AMQP broker could run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp
from bench_spark.errors import ConfigurationError
from bench_spark.transports.amqp import topology as naming


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


@pytest.mark.parametrize(
    ("amqp", "expected"),
    [
        ({"queue": {"name": "perf-test-%d", "first_number": 1}}, "perf-test-5"),
        ({"queue": {"name": "fixed", "first_number": 1}}, "fixed"),
        ({"queue": {"first_number": 1}}, "bench-run7-4"),
    ],
)
def test_destinations_are_numbered_from_the_first_number(
    amqp: dict[str, Any], expected: str
) -> None:
    assert naming.queue_name(Amqp.model_validate(amqp), "run7", 4) == expected


def test_keys_headers_and_arguments_have_the_same_numbers_as_the_names() -> None:
    amqp = Amqp.model_validate(
        {
            "queue": {"first_number": 1},
            "exchange": {
                "name": "e",
                "type": "headers",
                "binding_arguments": {"x-match": "all", "to": "q-%d", "size": 3},
            },
            "routing_key": "k.%d",
            "headers": {"to": "q-%d", "urgent": True},
        }
    )
    assert naming.routing_key(amqp, 0, "") == "k.1"
    assert naming.message_headers(amqp, 0) == {"to": "q-1", "urgent": True}
    assert naming.binding_arguments(amqp, 0) == {"x-match": "all", "to": "q-1", "size": 3}


@pytest.mark.parametrize(
    ("kind", "keys", "binding_key", "expected"),
    [
        ("direct", 1, None, ("k",)),
        ("direct", 3, None, ("k.0", "k.1", "k.2")),
        ("topic", 1, None, ("k",)),
        ("topic", 11, None, ("k.*",)),
        ("topic", 11, "#", ("#",)),
        ("topic", 1, "*.%d", ("*.4",)),
        ("fanout", 11, None, ("k",)),
    ],
)
def test_a_queue_is_bound_to_all_the_keys_its_messages_have(
    kind: str, keys: int, binding_key: str | None, expected: tuple[str, ...]
) -> None:
    amqp = Amqp.model_validate(
        {
            "exchange": {"name": "e", "type": kind},
            "routing_key": "k",
            "routing_keys": keys,
            "binding_key": binding_key,
        }
    )
    assert naming.binding_keys(amqp, 4, "the-queue") == expected


def test_several_routing_keys_are_of_one_length() -> None:
    amqp = Amqp.model_validate({"exchange": {"name": "e"}, "routing_keys": 101})
    keys = naming.routing_keys(amqp, 0, "q")
    assert (keys[0], keys[-1], len(set(keys))) == ("q.000", "q.100", 101)


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
            "amqp.exchange.binding_arguments",
        ),
        (
            {
                **SEVERAL,
                "amqp": {
                    "exchange": {
                        **EXCHANGE,
                        "type": "headers",
                        "binding_arguments": {"to": "q-%d"},
                    },
                    "headers": {"to": "q-1"},
                },
            },
            "amqp.headers",
        ),
        ({"amqp": {"headers": {"share": 0.5}}}, "amqp.headers.share"),
        (
            {
                **SEVERAL,
                "amqp": {"exchange": {**EXCHANGE, "type": "topic"}, "binding_key": "orders.#"},
            },
            "amqp.binding_key",
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


STREAM = {"queue": {"arguments": {"x-queue-type": "stream"}, "durable": True}, "ack": "manual"}


@pytest.mark.parametrize(
    "keys", [{"consumers": 2}, {"topology": "round-robin", "consumers": 2, "destinations": 1}]
)
def test_consumers_cannot_share_what_a_stream_gives_to_each(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="stream gives each of its consumers all messages"):
        naming.refuse_impossible(Scenario.model_validate({**keys, "amqp": STREAM}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"queue": {"arguments": {"x-queue-type": "stream"}}}, "needs durable: true"),
        ({"queue": {"arguments": {"x-queue-type": "quorum"}}}, "needs durable: true"),
        ({"queue": {**STREAM["queue"], "auto_delete": True}}, "no auto_delete"),
        ({"ack": "auto"}, "stream needs ack: manual and a prefetch"),
        ({"prefetch": 0}, "stream needs ack: manual and a prefetch"),
        ({"consumer_transaction": 10}, "forgets no message"),
    ],
)
def test_what_a_type_of_queue_insists_on_is_said_before_connecting(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        Scenario.model_validate({"amqp": {**STREAM, **change}})


@pytest.mark.parametrize(
    "scenario",
    [
        {},
        {**SEVERAL, "amqp": {"queue": {"name": "q-%d"}}},
        {**SEVERAL, "amqp": {"routing_key": "nowhere", "mandatory": True}},
        {**SEVERAL, "amqp": {"exchange": EXCHANGE, "routing_key": "k.%d"}},
        {"amqp": {"exchange": {**EXCHANGE, "type": "fanout"}}},
        {
            **SEVERAL,
            "amqp": {"exchange": {**EXCHANGE, "type": "topic"}, "binding_key": "orders.%d.#"},
        },
        {
            **SEVERAL,
            "amqp": {
                "exchange": {**EXCHANGE, "type": "headers", "binding_arguments": {"to": "%d"}},
                "headers": {"to": "%d"},
            },
        },
        {
            "amqp": {
                "queue": {
                    "arguments": {"x-max-length": 10, "x-queue-type": "quorum"},
                    "durable": True,
                }
            }
        },
        {"amqp": STREAM},
        {"amqp": STREAM, "topology": "fan-out", "consumers": 3},
    ],
)
def test_ordinary_scenarios_are_not_refused(scenario: dict[str, Any]) -> None:
    naming.refuse_impossible(Scenario.model_validate(scenario))
