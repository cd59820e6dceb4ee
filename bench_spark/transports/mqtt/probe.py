"""What a broker is and can do. MQTT brokers say little of themselves, so some of it is tried."""

from __future__ import annotations

from bench_spark.errors import BenchError, BrokerRefused
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import BrokerFacts
from bench_spark.transports.mqtt.control import Control
from bench_spark.transports.mqtt.naming import message_headers
from bench_spark.transports.mqtt.packets import FAILED, Login, reason
from bench_spark.transports.mqtt.protocol import Access
from bench_spark.transports.mqtt.publishing import PublishPackets
from bench_spark.transports.mqtt.wire import Limits

VERSION_TOPIC = "$SYS/broker/version"
VERSION_SECONDS = 0.3
"""How long to wait for a broker to tell its version; many have none to tell."""
ECHO_SECONDS = 2.0
CLIENT_LIBRARY = "bench-spark's own MQTT"


def probe(
    access: Access, login: Login, scenario: Scenario, topic: str, group: str | None
) -> BrokerFacts:
    """What the broker is and can do; raises where it cannot do what the scenario asks.

    `login` and `topic` are nobody else's: other agents try the same at the same time.
    """
    with Control(access, login) as control:
        _refuse_what_is_not_allowed(access, scenario, control.limits, group)
        product, version = _told_version(control)
    if scenario.producers:
        _try_size(access, login, scenario, topic)
    if scenario.consumers and scenario.mqtt.qos:
        _try_qos(access, login, scenario, topic)
    capabilities = {"confirms"} if scenario.mqtt.qos else set()
    if scenario.has_both_ends and group is not None:
        _try_group(access, login, topic)
        capabilities.add("shared_subscriptions")
    return BrokerFacts(
        product=product,
        version=version,
        platform=f"MQTT {login.version}",
        capabilities=frozenset(capabilities),
        client_library=CLIENT_LIBRARY,
    )


def _refuse_what_is_not_allowed(
    access: Access, scenario: Scenario, limits: Limits, group: str | None
) -> None:
    mqtt = scenario.mqtt
    wanted = mqtt.topic_filter or ""
    for key, is_missing, what in (
        ("qos", mqtt.qos > limits.qos, f"{mqtt.qos} is more than the broker has: {limits.qos}"),
        ("retain", mqtt.retain and not limits.has_retain, "the broker retains no messages"),
        (
            "shared_group",
            group is not None and limits.has_shared is False,
            "the broker has no shared subscriptions",
        ),
        (
            "topic_filter",
            not limits.has_wildcards and any(mark in wanted for mark in "+#"),
            "the broker has no wildcards in subscriptions",
        ),
    ):
        if is_missing:
            raise BrokerRefused(f"{access.address}: mqtt.{key}: {what}")


def _told_version(control: Control) -> tuple[str, str]:
    """Product and version, as Mosquitto and others tell it in a topic."""
    if control.subscribe(VERSION_TOPIC) < FAILED and control.wait_for_message(VERSION_SECONDS):
        words = control.messages[0].body.decode("utf-8", "replace").split()
        if words:
            return words[0].capitalize(), words[-1]
    return "MQTT broker", "unknown"


def _try_size(access: Access, login: Login, scenario: Scenario, topic: str) -> None:
    """Publish a message as large as those of the load, which nobody gets: a broker for which it is
    too large hangs up, and version 3.1.1 has no words for the reason."""
    size = scenario.largest_body_bytes
    headers = message_headers(scenario.mqtt)
    packets = PublishPackets(login.version, topic, qos=0, retain=False, headers=headers)
    message = packets.message(bytes(size))
    with Control(access, login) as control:
        limit = control.limits.packet_bytes
        if limit is not None and len(message) > limit:
            raise BrokerRefused(
                f"{access.address}: message.bytes: {size} makes packets of {len(message)} bytes, "
                f"and the broker takes at most {limit}"
            )
        try:
            control.publish(message, f"a message of {size} bytes")
        except BenchError as error:
            raise BrokerRefused(
                f"message.bytes: {error}; is that more than the broker takes, or may nobody "
                f"publish to {topic!r}?"
            ) from error


def _try_qos(access: Access, login: Login, scenario: Scenario, topic: str) -> None:
    qos = scenario.mqtt.qos
    with Control(access, login) as control:
        granted = control.subscribe(topic, qos)
    # Whoever may not subscribe here may still be allowed to where the load goes.
    if granted < qos:
        raise BrokerRefused(
            f"{access.address}: mqtt.qos: the broker grants QoS {granted} where {qos} is asked for"
        )


def _try_group(access: Access, login: Login, topic: str) -> None:
    """A broker that does not know groups may take `$share/...` for a topic like any other, and
    nothing would ever arrive."""
    with Control(access, login) as control:
        granted = control.subscribe(f"$share/bench-probe/{topic}")
        if granted >= FAILED:
            raise BrokerRefused(
                f"{access.address}: mqtt.shared_group: the broker refuses shared subscriptions: "
                f"{reason(granted)}"
            )
        message = PublishPackets(login.version, topic, qos=0, retain=False).message(b"probe")
        control.publish(message, "a message to a shared subscription")
        if not control.wait_for_message(ECHO_SECONDS):
            raise BrokerRefused(
                f"{access.address}: mqtt.shared_group: the broker has no shared subscriptions: it "
                "accepts $share/..., and delivers nothing; several consumers of one destination "
                "need them"
            )
