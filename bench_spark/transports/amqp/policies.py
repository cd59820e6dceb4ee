"""A policy of RabbitMQ for the queues of a run, set and removed by the management API.

Mirrors of classic queues can be asked for in no other way. The policy is there before the queues,
so that they are made with it, and goes when they have gone; it also holds, for that time, for
queues of those names that were there before.
"""

from __future__ import annotations

import re
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp
from bench_spark.errors import BrokerRefused, ConfigurationError, LoginRefused
from bench_spark.transports.amqp.connection import Access
from bench_spark.transports.amqp.management import Management, quoted
from bench_spark.transports.amqp.naming import NUMBER_MARK
from bench_spark.transports.base import TransportContext


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    """Raise where a policy cannot be set, from the files alone."""
    policy = scenario.amqp.policy
    if policy is None:
        return
    if broker.management_uri is None:
        raise ConfigurationError(
            f"amqp.policy: policies are set by the management API, and broker {broker.name} has no "
            "management_uri"
        )
    if scenario.only_consumes:
        raise ConfigurationError(
            "amqp.policy: a run without producers leaves the queues as they are; give it producers"
        )
    if scenario.amqp.queue.server_named and policy.pattern is None:
        raise ConfigurationError(
            "amqp.policy.pattern: missing; the broker chooses the names (amqp.queue.server_named)"
        )


def pattern_of(amqp: Amqp, run_id: str) -> str:
    """A regular expression for the names of exactly the run's queues, unless one was given."""
    if amqp.policy is not None and amqp.policy.pattern is not None:
        return amqp.policy.pattern
    name = amqp.queue.name or f"bench-{run_id}-{NUMBER_MARK}"
    return "^" + "[0-9]+".join(map(re.escape, name.split(NUMBER_MARK))) + "$"


class RunPolicy:
    """The policy of one run; the same for all its agents, whoever comes first."""

    def __init__(self, context: TransportContext, access: Access) -> None:
        amqp = context.scenario.amqp
        assert amqp.policy is not None
        self._management = Management(context.broker, access, "amqp.policy")
        name = f"bench-{context.run_id}"
        self._path = f"policies/{quoted(access.virtual_host)}/{quoted(name)}"
        self._body: dict[str, Any] = {
            "pattern": pattern_of(amqp, context.run_id),
            "definition": dict(amqp.policy.definition),
            "priority": amqp.policy.priority,
            "apply-to": "queues",
        }
        self._is_set = False

    def __repr__(self) -> str:
        return f"RunPolicy({self._body['pattern']} at {self._management.host})"

    def set(self) -> None:
        self._refuse_too_many_copies()
        self._is_set = True
        self._management.put(self._path, self._body)

    def remove(self) -> None:
        """Only what this agent has set; another agent may have removed it already."""
        if self._is_set:
            self._is_set = False
            self._management.delete(self._path)

    def _refuse_too_many_copies(self) -> None:
        """RabbitMQ would make as many copies as it has nodes, and say nothing."""
        definition = self._body["definition"]
        copies = definition.get("ha-params")
        if definition.get("ha-mode") != "exactly" or not isinstance(copies, int) or copies < 2:
            return
        try:
            nodes = self._management.get("nodes?columns=running")
        except LoginRefused:
            return  # a user may set policies and not be allowed to see the nodes
        running = sum(bool(node.get("running")) for node in nodes)
        if copies > running:
            raise BrokerRefused(
                f"{self._management.host}: amqp.policy.definition.ha-params: {copies} copies of a "
                f"queue need as many nodes, and {running} of this cluster "
                f"{'is' if running == 1 else 'are'} running"
            )
