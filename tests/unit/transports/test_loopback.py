"""The transport without a broker: dealing, bounds, and what it refuses."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.core.envelope import empty_envelopes
from bench_spark.errors import BrokerRefused, ConfigurationError
from bench_spark.transports import loopback
from bench_spark.transports.base import Destination, Lane, TransportContext, alone
from bench_spark.transports.batches import Batch

_runs = itertools.count()


def transport(run_id: str | None = None, **options: Any) -> loopback.LoopbackTransport:
    # Other tests of this process have brokers in memory too, by the name of their run.
    run_id = run_id or f"test-loopback-{next(_runs)}"
    context = TransportContext(run_id, Scenario(), Broker(kind="loopback"), Credentials())
    return loopback.LoopbackTransport(context, **options)


def numbered(count: int, lanes: Sequence[int] | int = 0) -> Batch:
    envelope = empty_envelopes(count)
    envelope["sequence"] = np.arange(count)
    lane = np.broadcast_to(np.asarray(lanes, np.uint32), count)
    return Batch(lane=lane, envelope=envelope, payload=b"", route=np.zeros(count, np.uint16))


def test_messages_are_dealt_in_turn_to_the_lanes_of_one_destination() -> None:
    made = transport()
    destinations = made.declare([Destination(0)])
    producers = made.open_producers([Lane(0, destinations)], time.time_ns)
    consumers = made.open_consumers([Lane(one, destinations) for one in range(3)], time.time_ns)
    consumers.attach()
    dealt = []
    for count in (4, 3):
        assert producers.send(numbered(count)) == count
        dealt += consumers.receive(0).lane.tolist()
    assert dealt == [0, 1, 2, 0, 1, 2, 0]


def test_a_full_destination_refuses_from_the_first_message_that_does_not_fit() -> None:
    made = transport(capacity_messages=3)
    one, two = made.declare([Destination(0), Destination(1)])
    producers = made.open_producers([Lane(0, (one,)), Lane(1, (two,))], time.time_ns)
    assert producers.send(numbered(8, lanes=[0, 0, 1, 0, 0, 1, 1, 1])) == 4
    assert made.backlog(alone([one, two])) == (3, 1)
    consumers = made.open_consumers([Lane(0, (one,))], time.time_ns)
    consumers.attach()
    assert select.select([producers.descriptor], [], [], 0)[0] == []
    assert consumers.receive(0).envelope["sequence"].tolist() == [0, 1, 3]
    assert select.select([producers.descriptor], [], [], 0)[0], "there is room again"
    assert producers.send(numbered(1)) == 1
    assert select.select([producers.descriptor], [], [], 0)[0] == []


def test_both_descriptors_are_readable_only_while_there_is_something_to_fetch() -> None:
    made = transport(confirms=True)
    destinations = made.declare([Destination(0)])
    producers = made.open_producers([Lane(0, destinations)], time.time_ns)
    consumers = made.open_consumers([Lane(0, destinations)], time.time_ns)
    consumers.attach()
    both = [producers.descriptor, consumers.descriptor]
    assert select.select(both, [], [], 0)[0] == []
    producers.send(numbered(2))
    assert select.select(both, [], [], 0)[0] == both
    assert producers.in_flight() == 2
    assert len(producers.outcomes()) == 2
    assert len(consumers.receive(0)) == 2
    assert select.select(both, [], [], 0)[0] == []


def test_transports_of_one_run_meet_and_those_of_another_do_not() -> None:
    run_id = f"run-{next(_runs)}"
    first, second = transport(run_id), transport(run_id)
    [declared] = first.declare([Destination(0)])
    [again] = second.declare([Destination(0)])
    assert (declared.declared, again.declared) == (True, False)
    second.delete([again])
    assert first.backlog(alone([declared])) == (0,)
    with pytest.raises(BrokerRefused, match="loopback-0"):
        transport().open_producers([Lane(0, (declared,))], time.time_ns)


def test_the_memory_goes_with_the_last_transport_of_the_run() -> None:
    run_id = f"run-{next(_runs)}"
    first, second = transport(run_id), transport(run_id)
    [declared] = first.declare([Destination(0)])
    first.close()
    assert second.backlog(alone([declared])) == (0,)
    second.close()
    assert transport(run_id).backlog(alone([declared])) == (None,)


def test_split_placement_is_refused() -> None:
    scenario = Scenario(placement="split", agents=2)
    with pytest.raises(ConfigurationError, match="placement"):
        loopback.KIND.check(scenario, Broker(kind="loopback"))
