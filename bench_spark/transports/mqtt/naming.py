"""Names of topics, filters and clients, and what MQTT can never do. Pure."""

from __future__ import annotations

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.fields import value_text
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.mqtt_section import Mqtt
from bench_spark.transports.base import Headers

NUMBER_MARK = "%d"
MOST_TEXT_BYTES = 65535


def topic(mqtt: Mqtt, run_id: str, index: int) -> str:
    """Where messages for a destination are published."""
    return _numbered(mqtt.topic or f"bench/{run_id}/{NUMBER_MARK}", index)


def topic_filter(mqtt: Mqtt, run_id: str, index: int) -> str:
    """What consumers of a destination ask for, without the group."""
    if mqtt.topic_filter is not None:
        return _numbered(mqtt.topic_filter, index)
    return topic(mqtt, run_id, index)


def group(scenario: Scenario, run_id: str) -> str | None:
    """The group whose members divide the messages of a destination; None: everyone gets all."""
    if scenario.mqtt.shared_group is not None:
        return scenario.mqtt.shared_group
    return f"bench-{run_id}" if scenario.consumers > scenario.destinations else None


def subscription(mqtt: Mqtt, run_id: str, index: int, group: str | None) -> str:
    """What is said in a SUBSCRIBE."""
    wanted = topic_filter(mqtt, run_id, index)
    return wanted if group is None else f"$share/{group}/{wanted}"


def client_id(mqtt: Mqtt, run_id: str, role: str, member: int, attempt: int = 0) -> str:
    """The same for all connections of a lane, so that a new one takes over from a lost one."""
    again = f"-{attempt}" if attempt else ""
    return f"{mqtt.client_id_prefix}-{run_id}{again}-{role}-{member}"


def message_headers(mqtt: Mqtt) -> Headers:
    """Of every message: numbers and the like as people write them."""
    return {name: value_text(value).encode() for name, value in mqtt.user_properties.items()}


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a subscription to this filter brings messages of this topic."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def _numbered(text: str, index: int) -> str:
    return text.replace(NUMBER_MARK, str(index))


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for what no MQTT broker could do with this scenario."""
    mqtt = scenario.mqtt
    if scenario.only_consumes and mqtt.topic is None and mqtt.topic_filter is None:
        raise ConfigurationError(
            "mqtt.topic: missing; a run without producers consumes what others publish, and needs "
            "their topic, or mqtt.topic_filter"
        )
    has_several = scenario.destinations > 1 or (
        scenario.load.scope == "per_agent" and scenario.agents != 1
    )
    for key, name in (("topic", mqtt.topic), ("topic_filter", mqtt.topic_filter)):
        if has_several and name is not None and NUMBER_MARK not in name:
            raise ConfigurationError(
                f"mqtt.{key}: with several destinations the name needs a %d for their number"
            )
    if scenario.has_both_ends and mqtt.topic_filter is not None:
        wanted = topic_filter(mqtt, "run", 0)
        sent = topic(mqtt, "run", 0)
        if not matches(wanted, sent):
            raise ConfigurationError(
                f"mqtt.topic_filter: {mqtt.topic_filter!r} does not match the topic published to, "
                f"{mqtt.topic or 'bench/RUN/%d'!r}: nothing would arrive"
            )
    _refuse_long_names(scenario)


def _refuse_long_names(scenario: Scenario) -> None:
    """With number and group they may be longer than what was written."""
    mqtt, run_id = scenario.mqtt, "0" * 64
    last = scenario.destinations - 1
    for key, name in (
        ("topic", topic(mqtt, run_id, last)),
        ("topic_filter", subscription(mqtt, run_id, last, group(scenario, run_id))),
    ):
        if len(name.encode("utf-8", "replace")) > MOST_TEXT_BYTES:
            raise ConfigurationError(
                f"mqtt.{key}: has more than {MOST_TEXT_BYTES} bytes with the destination's number "
                "and the group"
            )
