"""Which queues stand behind a destination, and how they are bound. Pure.

Without a topology, and in a straight run, a destination *is* a queue, addressed by its name or by
the keys of `amqp.routing_key`. Where several destinations share a queue, or several queues a
destination, a destination is a routing key of an exchange, and every subscription is a queue
bound to the keys of its group. That exchange is the run's own unless the scenario names one: a
fanout exchange where every message goes to all queues, else a direct one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_spark.config.fields import ClientProperties
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp, AmqpExchange
from bench_spark.config.topologies import Wiring
from bench_spark.transports.amqp import naming
from bench_spark.transports.base import Destination, Lane


@dataclass(frozen=True)
class Layout:
    amqp: Amqp
    """As it is used: with the exchange that the topology needs."""
    run_id: str
    wiring: Wiring

    def queues_behind(self, destinations: Iterable[Destination]) -> list[Destination]:
        """The queues that get what is published to these, whose numbers and names are the queues'
        own. They were declared by this run if the destinations were."""
        if self.wiring.is_plain:
            return list(destinations)
        declared = {
            self.wiring.group_of_destination(one.index): one.declared for one in destinations
        }
        return [
            self.queue(index, is_declared)
            for group, is_declared in declared.items()
            for index in self.wiring.subscriptions_of_group(group)
        ]

    def queue(self, subscription: int, is_declared: bool) -> Destination:
        name = naming.queue_name(self.amqp, self.run_id, subscription)
        return Destination(subscription, name, is_declared)

    def consumer_lanes(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Lanes that receive from queues."""
        if self.wiring.is_plain:
            return list(lanes)
        return [
            replace(
                lane,
                destinations=tuple(
                    self.queue(index, _are_ours(lane)) for index in lane.subscriptions
                ),
            )
            for lane in lanes
        ]

    def named(self, destination: Destination, is_declared: bool) -> Destination:
        """A destination that is a routing key."""
        name = f"{self.run_id}.topic-{destination.index}"
        return replace(destination, name=name, declared=is_declared)

    def bindings(self, queue: Destination) -> Iterator[dict[str, Any]]:
        """What binds a queue to the exchange, if there is one."""
        if not self.amqp.exchange.name:
            return
        for key, arguments in self._keys(queue):
            yield {
                "queue": queue.name,
                "exchange": self.amqp.exchange.name,
                "routing_key": key,
                "arguments": arguments,
            }

    def _keys(self, queue: Destination) -> Iterator[tuple[str, ClientProperties]]:
        if self.wiring.is_plain:
            for key in naming.binding_keys(self.amqp, queue.index, queue.name or ""):
                yield key, naming.binding_arguments(self.amqp, queue.index)
            return
        if self.amqp.exchange.type == "fanout":
            yield "", {}  # it looks at no key: one binding is enough
            return
        group = self.wiring.group_of_subscription(queue.index)
        for index in self.wiring.destinations_of_group(group):
            topic = self.named(Destination(index), is_declared=False)
            for key in naming.binding_keys(self.amqp, index, topic.name or ""):
                yield key, {}


def layout_for(scenario: Scenario, run_id: str) -> Layout:
    wiring, amqp = scenario.wiring, scenario.amqp
    if not wiring.is_plain and not amqp.exchange.name:
        kind = "fanout" if scenario.topology == "fan-out" else "direct"
        exchange = AmqpExchange(name=f"bench-{run_id}", type=kind)
        amqp = amqp.model_copy(update={"exchange": exchange})
    return Layout(amqp, run_id, wiring)


def _are_ours(lane: Lane) -> bool:
    return all(destination.declared for destination in lane.destinations)
