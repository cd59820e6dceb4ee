"""What `delivery` stands for in each protocol's own keys. Pure.

    delivery        AMQP 0-9-1                       Kafka                              MQTT
    at_most_once    no confirms, automatic acks      acks=0                             QoS 0
    at_least_once   confirms (or transactions),      acks=all                           QoS 1
                    manual acks
    exactly_once    refused                          idempotent transactions, and       QoS 2
                                                     consumers that read committed only

One word for all protocols, and yet nothing hidden: the scenario that runs, and that the result
shows, has the keys themselves. A key that was given and says otherwise is refused, not overruled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bench_spark.config.fields import ClientProperties
from bench_spark.config.models import Scenario, merged
from bench_spark.config.sections import Egress, Ingress
from bench_spark.errors import ConfigurationError

AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = "at_most_once", "at_least_once", "exactly_once"

DEFAULT_CONFIRMS = 1000
"""Messages unconfirmed per producer: enough to hide round trips, few enough to bound a loss."""
DEFAULT_TRANSACTION_MESSAGES = 100

_QOS = {AT_MOST_ONCE: 0, AT_LEAST_ONCE: 1, EXACTLY_ONCE: 2}
_ACKS_KEYS = ("acks", "request.required.acks")
_ALL = ("all", "-1")
_FIXED = {
    "http": ((AT_LEAST_ONCE,), "HTTP gives: every request is answered, and may be repeated"),
    "tcp": ((AT_MOST_ONCE,), "TCP gives: nothing says that a message was taken"),
}
"""Protocols that have no choice."""


_Contradiction = tuple[str, object, str]
"""A key, its value, and what the delivery does instead."""


def with_delivery(scenario: Scenario, kind: str) -> Scenario:
    """The scenario with the keys that its `delivery` stands for on that kind of broker."""
    delivery = scenario.delivery
    if delivery is None or kind == "loopback":  # memory loses and repeats nothing
        return scenario
    if kind in _FIXED:
        allowed, why = _FIXED[kind]
        if delivery not in allowed:
            raise ConfigurationError(
                f"delivery: {delivery} is not what {why}; allowed: {', '.join(allowed)}"
            )
        return scenario
    if kind == "amqp" and delivery == EXACTLY_ONCE:
        raise ConfigurationError(
            "delivery: exactly_once is more than AMQP 0-9-1 can promise: what is not confirmed or "
            "not acknowledged when a connection ends is sent again; use at_least_once"
        )
    contradictions, keys = _PROTOCOLS[kind]
    problems = [
        f"{key}: {value} contradicts delivery: {delivery}, which {why}"
        for key, value, why in contradictions(scenario, delivery)
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))
    document = scenario.model_dump(exclude_unset=True)
    document[kind] = merged(document.get(kind, {}), keys(scenario, delivery))
    return Scenario.model_validate(document)


def _amqp_contradictions(scenario: Scenario, delivery: str) -> Iterator[_Contradiction]:
    amqp = scenario.amqp
    given = amqp.model_fields_set
    if delivery == AT_MOST_ONCE:
        for key in ("confirms", "producer_transaction", "consumer_transaction"):
            if getattr(amqp, key):
                yield f"amqp.{key}", getattr(amqp, key), "asks for no answer"
        if amqp.ack == "manual":
            yield "amqp.ack", "manual", "has automatic acks"
        return
    if "confirms" in given and not amqp.confirms and not amqp.producer_transaction:
        yield "amqp.confirms", 0, "needs confirms or producer_transaction"
    if "ack" in given and amqp.ack == "auto":
        yield "amqp.ack", "auto", "has manual acks"


def _amqp_keys(scenario: Scenario, delivery: str) -> dict[str, Any]:
    if delivery == AT_MOST_ONCE:
        return {"confirms": 0, "ack": "auto"}
    is_committed = scenario.amqp.producer_transaction > 0
    confirms = 0 if is_committed else scenario.amqp.confirms or DEFAULT_CONFIRMS
    return {"confirms": confirms, "ack": "manual"}


def _kafka_contradictions(scenario: Scenario, delivery: str) -> Iterator[_Contradiction]:
    kafka, messages = scenario.kafka, scenario.kafka.transaction_messages
    allowed = ("0",) if delivery == AT_MOST_ONCE else _ALL
    for key in _ACKS_KEYS:
        acks = kafka.producer.get(key, allowed[0])
        if str(acks) not in allowed:
            yield f"kafka.producer.{key}", acks, f"has acks={allowed[0]}"
    if delivery != EXACTLY_ONCE:
        if messages:
            yield "kafka.transaction_messages", messages, "has no transactions; exactly_once has"
        if delivery == AT_MOST_ONCE and _is_true(kafka.producer, "enable.idempotence"):
            yield "kafka.producer.enable.idempotence", "true", "asks for no answer"
        return
    if "transaction_messages" in kafka.model_fields_set and not messages:
        yield "kafka.transaction_messages", 0, "has transactions"
    if not _is_true(kafka.producer, "enable.idempotence", unset=True):
        yield "kafka.producer.enable.idempotence", "false", "has idempotence"
    level = kafka.consumer.get("isolation.level", "read_committed")
    if level != "read_committed":
        yield "kafka.consumer.isolation.level", level, "reads what is committed"


def _kafka_keys(scenario: Scenario, delivery: str) -> dict[str, Any]:
    given = next((key for key in _ACKS_KEYS if key in scenario.kafka.producer), _ACKS_KEYS[0])
    producer: dict[str, Any] = {given: "0" if delivery == AT_MOST_ONCE else "all"}
    if delivery != EXACTLY_ONCE:
        return {"producer": producer}
    return {
        "producer": producer | {"enable.idempotence": True},
        "consumer": {"isolation.level": "read_committed"},
        "transaction_messages": scenario.kafka.transaction_messages or DEFAULT_TRANSACTION_MESSAGES,
    }


def _is_true(properties: ClientProperties, key: str, unset: bool = False) -> bool:
    return str(properties.get(key, unset)).lower() == "true"


def _mqtt_contradictions(scenario: Scenario, delivery: str) -> Iterator[_Contradiction]:
    mqtt = scenario.mqtt
    if "qos" in mqtt.model_fields_set and mqtt.qos != _QOS[delivery]:
        yield "mqtt.qos", mqtt.qos, f"is QoS {_QOS[delivery]}"


def _mqtt_keys(_: Scenario, delivery: str) -> dict[str, Any]:
    return {"qos": _QOS[delivery]}


_PROTOCOLS = {
    "amqp": (_amqp_contradictions, _amqp_keys),
    "kafka": (_kafka_contradictions, _kafka_keys),
    "mqtt": (_mqtt_contradictions, _mqtt_keys),
}


# -- limits that drop messages ---------------------------------------------------------------------


class DroppingLimit(NamedTuple):
    """A limit of a scenario's queues or topics by which a healthy broker may drop messages."""

    kind: str
    name: str
    declared: Any
    unit: str

    @property
    def value(self) -> float:
        return float(self.declared)


_LIMITS = {
    "amqp": {
        "x-max-length": "messages",
        "x-max-length-bytes": "bytes",
        "x-message-ttl": "milliseconds",
        "x-expires": "milliseconds",
    },
    "kafka": {"retention.bytes": "bytes", "retention.ms": "milliseconds"},
}
_REFUSING = ("reject-publish", "reject-publish-dlx")
"""What `x-overflow` makes of a queue that is full: nothing that was confirmed is dropped."""


def dropping_limits(scenario: Scenario) -> Iterator[DroppingLimit]:
    """Of all sections; those of another protocol than the broker's are ignored by the run."""
    places: list[Scenario | Ingress | Egress] = [scenario, *scenario.ingress, *scenario.egress]
    for place in places:
        declared = {
            "amqp": place.amqp.queue.arguments if place.amqp else {},
            "kafka": place.kafka.topic.properties if place.kafka else {},
        }
        for kind, limits in _LIMITS.items():
            refuses = declared[kind].get("x-overflow") in _REFUSING
            for name, unit in limits.items():
                is_refusing = refuses and name.startswith("x-max-length")
                if name in declared[kind] and not is_refusing:
                    yield DroppingLimit(kind, name, declared[kind][name], unit)
