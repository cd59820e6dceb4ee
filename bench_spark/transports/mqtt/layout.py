"""Which topics destinations are, and what consumers subscribe to. Pure.

In a topology (but for the straight run, where everybody has a topic of their own) topics say to
which group of destinations they belong: destination d of group g is `bench/RUN/group-g/topic-d`,
and one filter, `bench/RUN/group-g/+`, brings all of a group. Consumers that share a subscription
are members of an MQTT group (`$share/...`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.mqtt import naming


@dataclass(frozen=True)
class Layout:
    scenario: Scenario
    run_id: str

    @property
    def group(self) -> str | None:
        """Whose members divide what a subscription brings; None: every consumer has its own."""
        scenario = self.scenario
        if scenario.topology is None or scenario.mqtt.shared_group is not None:
            return naming.group(scenario, self.run_id)
        is_shared = scenario.wiring.consumers_per_subscription > 1
        return f"bench-{self.run_id}" if is_shared else None

    def topic(self, destination: int) -> str:
        if not _has_groups(self.scenario):
            return naming.topic(self.scenario.mqtt, self.run_id, destination)
        group = self.scenario.wiring.group_of_destination(destination)
        return f"{self._group_topic(group)}/topic-{destination}"

    def subscription(self, subscription: int) -> str:
        """What is said in a SUBSCRIBE."""
        if not _has_groups(self.scenario):
            mqtt = self.scenario.mqtt
            return naming.subscription(mqtt, self.run_id, subscription, self.group)
        group = self.scenario.wiring.group_of_subscription(subscription)
        wanted = f"{self._group_topic(group)}/+"
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


def refuse_impossible(scenario: Scenario) -> None:
    """Raise for keys that a topology leaves no choice about."""
    if not _has_groups(scenario):
        return
    for key in ("topic", "topic_filter"):
        if getattr(scenario.mqtt, key) is not None:
            raise ConfigurationError(
                f"mqtt.{key}: does not go with topology {scenario.topology}, whose topics and "
                "filters have names of their own"
            )
    if scenario.topology == "fan-out" and scenario.mqtt.shared_group is not None:
        raise ConfigurationError(
            "mqtt.shared_group: does not go with topology fan-out: a group divides the messages, "
            "and here every consumer gets all"
        )
