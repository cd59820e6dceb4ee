"""What is left in the broker once all lanes are closed."""

from __future__ import annotations

from collections.abc import Sequence

from bench_spark.agent.ends import EndsTransport
from bench_spark.plan import Assignment
from bench_spark.transports.base import Destination, Subscription, Transport, Wired


def depths_left(
    assignment: Assignment,
    declared: Sequence[Destination],
    transport: Transport | EndsTransport,
) -> dict[int, int | None]:
    """By subscription to the destinations that this agent has declared; None where unknown."""
    wiring = assignment.scenario.wiring
    if wiring.is_plain:
        assert not isinstance(transport, EndsTransport), "ends that are apart are never plain"
        found = transport.depths(declared)
        return {one.index: depth for one, depth in zip(declared, found, strict=True)}
    assert isinstance(transport, Wired), "the registry has checked"
    by_index = {destination.index: destination for destination in declared}
    subscriptions = [
        Subscription(
            index,
            tuple(
                by_index[one]
                for one in wiring.destinations_of_group(wiring.group_of_subscription(index))
            ),
        )
        for index in assignment.inspects
    ]
    left = transport.left_in(subscriptions)
    return dict(zip(assignment.inspects, left, strict=True))
