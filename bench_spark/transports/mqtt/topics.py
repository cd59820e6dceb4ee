"""Topics, filters and clients: their names, and what MQTT can never do. Pure.

In a topology (but for the straight run, where everybody has a topic of their own) topics say to
which group of destinations they belong: destination d of group g is `bench/RUN/group-g/topic-d`,
and one filter, `bench/RUN/group-g/+`, brings all of a group. Consumers that share a subscription
are members of an MQTT group (`$share/...`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_spark.config.fields import value_text
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Mqtt
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.batches import Headers

_MARK = "%d"
_MOST_TEXT_BYTES = 65535


@dataclass(frozen=True)
class TopicNames:
    """What the topics and subscriptions of a run are called."""

    scenario: Scenario
    run_id: str

    @property
    def group(self) -> str | None:
        """Whose members divide what a subscription brings; None: every consumer has its own."""
        scenario = self.scenario
        if scenario.mqtt.shared_group is not None:
            return scenario.mqtt.shared_group
        if scenario.topology is None:
            is_shared = scenario.consumers > scenario.destinations
        else:
            is_shared = scenario.wiring.consumers_per_subscription > 1
        return f"bench-{self.run_id}" if is_shared else None

    def topic(self, destination: int) -> str:
        """Where messages for a destination are published."""
        if _has_groups(self.scenario):
            group = self.scenario.wiring.group_of_destination(destination)
            return f"{self._group_topic(group)}/topic-{destination}"
        return _numbered(self.scenario.mqtt.topic or f"bench/{self.run_id}/{_MARK}", destination)

    def topic_filter(self, number: int) -> str:
        """What consumers of a subscription ask for, without the group."""
        if _has_groups(self.scenario):
            return f"{self._group_topic(self.scenario.wiring.group_of_subscription(number))}/+"
        if self.scenario.mqtt.topic_filter is not None:
            return _numbered(self.scenario.mqtt.topic_filter, number)
        return self.topic(number)

    def subscription(self, number: int) -> str:
        """What is said in a SUBSCRIBE."""
        wanted = self.topic_filter(number)
        return wanted if self.group is None else f"$share/{self.group}/{wanted}"

    def consumer_lanes(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Lanes whose destinations are what they subscribe to, by number."""
        if self.scenario.wiring.is_plain:
            return list(lanes)
        return [replace(lane, destinations=(Destination(lane.subscription),)) for lane in lanes]

    def _group_topic(self, group: int) -> str:
        return f"bench/{self.run_id}/group-{group}"


def _has_groups(scenario: Scenario) -> bool:
    return scenario.topology not in (None, "straight-run")


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
    return text.replace(_MARK, str(index))


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for what no MQTT broker could do with this scenario."""
    _refuse_names_of_topologies(scenario)
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
        if has_several and name is not None and _MARK not in name:
            raise ConfigurationError(
                f"mqtt.{key}: with several destinations the name needs a %d for their number"
            )
    if scenario.has_both_ends and mqtt.topic_filter is not None:
        names = TopicNames(scenario, "run")
        if not matches(names.topic_filter(0), names.topic(0)):
            raise ConfigurationError(
                f"mqtt.topic_filter: {mqtt.topic_filter!r} does not match the topic published to, "
                f"{mqtt.topic or 'bench/RUN/%d'!r}: nothing would arrive"
            )
    _refuse_long_names(scenario)


def _refuse_long_names(scenario: Scenario) -> None:
    """With number and group they may be longer than what was written."""
    if _has_groups(scenario):
        return  # these have short names of their own
    names, last = TopicNames(scenario, "0" * 64), scenario.destinations - 1
    for key, name in (
        ("topic", names.topic(last)),
        ("topic_filter", names.subscription(last)),
    ):
        if len(name.encode("utf-8", "replace")) > _MOST_TEXT_BYTES:
            raise ConfigurationError(
                f"mqtt.{key}: has more than {_MOST_TEXT_BYTES} bytes with the destination's number "
                "and the group"
            )


def _refuse_names_of_topologies(scenario: Scenario) -> None:
    """Raise for keys that a topology leaves no choice about."""
    if not _has_groups(scenario):
        return
    for key in ("topic", "topic_filter"):
        if getattr(scenario.mqtt, key) is not None:
            raise ConfigurationError(
                f"mqtt.{key}: does not go with topology {scenario.topology}, whose topics and "
                "filters have names of their own"
            )
    if scenario.subscriptions_per_consumer > 1:
        raise ConfigurationError(
            "subscriptions_per_consumer: kind mqtt has one per consumer: a broker may send a "
            "client one copy of a message however often it has subscribed to it"
        )
    if scenario.topology == "fan-out" and scenario.mqtt.shared_group is not None:
        raise ConfigurationError(
            "mqtt.shared_group: does not go with topology fan-out: a group divides the messages, "
            "and here every consumer gets all"
        )
