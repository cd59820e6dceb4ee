"""Accounts against plain sets: every message sent is somewhere, and nowhere twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.protocol import EventRow
from bench_spark.config.topologies import wiring_for
from bench_spark.core.sequences import SequenceSets
from bench_spark.driver.accounts import Accounts, AgentHealth, Ledger, Sent, completed

Message = tuple[int, int]
"""Producer and sequence."""


@dataclass
class World:
    """What really happened."""

    producers: int
    destinations: int
    confirms: bool
    sent: list[Sent]
    received: list[list[Message]]
    """Per agent, in order of arrival, repeats and all."""
    confirmed: set[Message]
    failed: set[Message]
    depths: dict[int, int | None]
    is_complete: bool = True
    before: dict[int, int | None] = field(default_factory=dict)

    @property
    def streams(self) -> int:
        return -(-self.producers // self.destinations)

    def received_group(self, producer: int) -> int:
        return producer % self.destinations * self.streams + producer // self.destinations


def pages(messages: Iterable[tuple[int, int]]) -> bytes:
    """As an agent exports them: (group, sequence)."""
    sets = SequenceSets(1)
    pairs = np.array(list(messages), dtype=np.int64).reshape(-1, 2)
    sets.add(pairs[:, 0], pairs[:, 1])
    return sets.export().to_bytes()


def accounts_of(world: World) -> Accounts:
    ledger = Ledger(wiring_for(None, world.producers, 1, world.destinations), world.confirms)
    ledger.add_sent(world.sent)
    for agent, received in enumerate(world.received):
        outcomes = (world.confirmed, world.failed) if agent == 0 else (set(), set())
        ledger.add_pages(
            pages((world.received_group(producer), sequence) for producer, sequence in received),
            *(pages(outcome) for outcome in outcomes),
        )
    return ledger.accounts(world.depths, world.is_complete, world.before)


def naive_accounts(world: World) -> Mapping[str, int]:
    """The same by the definitions, message by message."""
    totals = dict.fromkeys(
        ("received_once", "failed", "left_in_broker", "lost", "indeterminate"), 0
    )
    arrived = {message for agent in world.received for message in agent}
    for destination in range(world.destinations):
        measured = {
            (sent.producer, sequence)
            for sent in world.sent
            if sent.producer % world.destinations == destination
            for sequence in range(sent.warmup, sent.warmup + sent.measured)
        }
        failed = (world.failed & measured) - arrived
        nowhere = measured - arrived - failed
        totals["received_once"] += len(measured & arrived)
        totals["failed"] += len(failed)
        depth = world.depths.get(destination) if world.is_complete else None
        if depth is None:
            totals["indeterminate"] += len(nowhere)
            continue
        sure = nowhere & world.confirmed if world.confirms else nowhere
        left = min(depth, len(nowhere))
        lost = max(0, len(sure) - left)
        totals["left_in_broker"] += left
        totals["lost"] += lost
        totals["indeterminate"] += len(nowhere) - left - lost
    return totals


@st.composite
def worlds(draw: st.DrawFn) -> World:
    destinations = draw(st.integers(1, 3))
    producers = draw(st.integers(destinations, 5))
    sent = [
        Sent(producer, draw(st.sampled_from([0, 3, 1020])), draw(st.sampled_from([0, 1, 8, 1030])))
        for producer in range(producers)
    ]
    everything = [
        (entry.producer, sequence)
        for entry in sent
        for sequence in range(entry.warmup + entry.measured)
    ]
    # A seed and three shares say more with less than a choice per message.
    random = Random(draw(st.integers(0, 2**32)))

    def some_of(share: float) -> list[Message]:
        return [message for message in everything if random.random() < share]

    shares = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
    received = [some_of(draw(shares)) for _ in range(draw(st.integers(1, 3)))]
    for agent in received:
        agent += random.sample(agent, len(agent) // 4)
        random.shuffle(agent)
    return World(
        producers=producers,
        destinations=destinations,
        confirms=draw(st.booleans()),
        sent=sent,
        received=received,
        confirmed=set(some_of(draw(shares))),
        failed=set(some_of(draw(st.sampled_from([0.0, 0.2])))),
        depths=draw(
            st.dictionaries(
                st.integers(0, destinations - 1), st.none() | st.sampled_from([0, 1, 5, 100_000])
            )
        ),
        is_complete=draw(st.booleans()),
    )


@settings(max_examples=60)
@given(worlds())
def test_the_accounts_close_and_equal_those_of_plain_sets(world: World) -> None:
    found = accounts_of(world)
    assert found.closes
    assert found.sent == sum(entry.measured for entry in world.sent)
    assert {name: getattr(found, name) for name in naive_accounts(world)} == naive_accounts(world)


def one_queue(received: list[list[int]], **changes: object) -> World:
    """One producer with five messages of warm-up and ten measured ones, numbered 5 to 14."""
    world = World(
        producers=1,
        destinations=1,
        confirms=False,
        sent=[Sent(0, 5, 10)],
        received=[[(0, sequence) for sequence in agent] for agent in received],
        confirmed=set(),
        failed=set(),
        depths={0: 0},
    )
    for name, value in changes.items():
        setattr(world, name, value)
    return world


def numbered(*sequences: int) -> set[Message]:
    return {(0, sequence) for sequence in sequences}


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (one_queue([list(range(15))]), Accounts(10, 10)),
        (one_queue([list(range(14))]), Accounts(10, 9, lost=1, missing={0: [(14, 15)]})),
        (
            one_queue([[0, 1, 2, 5, 6, 7, 9, 10, 11, 12, 13, 14]]),
            Accounts(10, 9, lost=1, missing={0: [(8, 9)]}),
        ),
        (
            one_queue([list(range(12))], depths={0: 2}),
            Accounts(10, 7, left_in_broker=2, lost=1, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], depths={0: None}),
            Accounts(10, 7, indeterminate=3, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], depths={}),
            Accounts(10, 7, indeterminate=3, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], is_complete=False),
            Accounts(10, 7, indeterminate=3, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], failed=numbered(3, 11, 12)),
            Accounts(10, 7, failed=1, lost=2, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], confirms=True, confirmed=numbered(*range(13))),
            Accounts(10, 7, lost=1, indeterminate=2, missing={0: [(12, 15)]}),
        ),
        (
            one_queue(
                [list(range(12))], confirms=True, confirmed=numbered(*range(14)), depths={0: 1}
            ),
            Accounts(10, 7, left_in_broker=1, lost=1, indeterminate=1, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], depths={0: 2}, before={0: 2}),
            Accounts(10, 7, lost=1, indeterminate=2, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], depths={0: 3}, before={0: 2}),
            Accounts(10, 7, left_in_broker=1, indeterminate=2, missing={0: [(12, 15)]}),
        ),
        (
            one_queue([list(range(12))], depths={0: 9}, before={0: 2}),
            Accounts(10, 7, left_in_broker=3, missing={0: [(12, 15)]}),
        ),
        (one_queue([[]], sent=[Sent(0, 5, 0)]), Accounts()),
    ],
    ids=[
        "all arrived",
        "the last one lost",
        "one lost in between, and losses of the warm-up do not count",
        "left in the broker",
        "depth unknown",
        "depth never reported",
        "a consumer never reported",
        "refused, but one of them arrived all the same",
        "unconfirmed is not lost",
        "what is left excuses what is confirmed",
        "what is left may be of others",
        "some of what is left is ours",
        "enough is left for all",
        "nothing sent",
    ],
)
def test_accounts_by_hand(world: World, expected: Accounts) -> None:
    assert accounts_of(world) == expected
    assert expected.closes


def test_a_duplicate_in_one_agent_does_not_hide_a_loss_in_another() -> None:
    world = one_queue([[5, 6, 7, 8, 9, 9], [9, 10, 11, 12, 13]])
    found = accounts_of(world)
    assert sum(len(agent) for agent in world.received) == 11
    assert (found.sent, found.received_once, found.lost) == (10, 9, 1)
    assert found.missing == {0: [(14, 15)]}


def test_what_is_left_in_one_destination_excuses_nothing_in_another() -> None:
    world = World(
        producers=2,
        destinations=2,
        confirms=False,
        sent=[Sent(0, 0, 4), Sent(1, 0, 4)],
        received=[[(0, 0), (0, 1), (1, 0), (1, 1)]],
        confirmed=set(),
        failed=set(),
        depths={0: 100, 1: 0},
    )
    found = accounts_of(world)
    assert (found.received_once, found.left_in_broker, found.lost) == (4, 2, 2)


def test_producers_of_one_destination_have_streams_of_their_own() -> None:
    world = World(
        producers=4,
        destinations=2,
        confirms=False,
        sent=[Sent(producer, 0, 3) for producer in range(4)],
        received=[[(0, 0), (2, 1), (2, 2)], [(1, 0), (1, 1), (1, 2), (3, 2)]],
        confirmed=set(),
        failed=set(),
        depths={0: 0, 1: 0},
    )
    found = accounts_of(world)
    assert (found.sent, found.received_once, found.lost) == (12, 7, 5)
    assert found.missing == {0: [(1, 3)], 2: [(0, 1)], 3: [(0, 2)]}


def test_reports_may_come_twice() -> None:
    ledger = Ledger(wiring_for(None, 1, 1, 1), confirms=False)
    for _ in range(2):
        ledger.add_sent([Sent(0, 0, 3)])
        ledger.add_pages(pages([(0, 0), (0, 1)]), pages([]), pages([]))
    found = ledger.accounts({0: 0}, is_complete=True)
    assert (found.sent, found.received_once, found.lost) == (3, 2, 1)


def test_pages_that_are_none_are_refused() -> None:
    ledger = Ledger(wiring_for(None, 1, 1, 1), confirms=False)
    with pytest.raises(ValueError, match=r"."):
        ledger.add_pages(b"nonsense", pages([]), pages([]))


def test_every_copy_of_a_fan_out_has_its_own_fate() -> None:
    """Two producers, three subscriptions: one gets all, one misses three, one still has to read."""
    ledger = Ledger(wiring_for("fan-out", 2, 3, 2), confirms=False)
    ledger.add_sent([Sent(0, 0, 4), Sent(1, 0, 4)])
    all_of_both = [(stream, sequence) for stream in range(2) for sequence in range(4)]
    received = [(0 * 2 + stream, sequence) for stream, sequence in all_of_both]
    received += [(1 * 2 + stream, sequence) for stream, sequence in all_of_both[3:]]
    received += [(2 * 2 + stream, sequence) for stream, sequence in all_of_both[:6]]
    ledger.add_pages(pages(received), pages([]), pages([]))
    found = ledger.accounts({0: 0, 1: 0, 2: 2}, is_complete=True)
    assert (found.sent, found.copies, found.received_once) == (8, 3, 8 + 5 + 6)
    assert (found.lost, found.left_in_broker, found.indeterminate) == (3, 2, 0)
    assert found.closes


def test_a_refused_message_of_a_fan_out_counts_for_every_copy_that_did_not_arrive() -> None:
    ledger = Ledger(wiring_for("fan-out", 1, 3, 1), confirms=True)
    ledger.add_sent([Sent(0, 0, 2)])
    ledger.add_pages(pages([(0, 0), (1, 0), (2, 0), (0, 1)]), pages([(0, 0)]), pages([(0, 1)]))
    found = ledger.accounts({0: 0, 1: 0, 2: 0}, is_complete=True)
    assert (found.received_once, found.failed, found.lost) == (4, 2, 0)
    assert found.closes


@pytest.mark.parametrize(
    ("known", "counted", "expected"),
    [
        (Accounts(), (100, 90, 0), (90, 10)),
        (Accounts(), (100, 95, 5), (90, 10)),
        (Accounts(sent=50, received_once=50), (100, 90, 0), (90, 10)),
        (Accounts(sent=50, received_once=40, lost=5, failed=5), (100, 60, 0), (60, 30)),
        # Two agents have received the same messages, and one of them can tell no more.
        (Accounts(), (100, 130, 0), (100, 0)),
        (Accounts(copies=2), (100, 150, 0), (150, 50)),
    ],
)
def test_what_killed_agents_have_not_reported_is_taken_from_their_events(
    known: Accounts, counted: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    found = completed(known, *counted)
    assert (found.received_once, found.indeterminate) == expected
    assert found.closes
    assert found.lost == known.lost


def health_row(cpu_seconds: float | None, **changes: Any) -> EventRow:
    """A second of an agent."""
    second: dict[str, Any] = {
        "row_number": 0,
        "role": "consumer",
        "phase": "measure",
        "tick": 0,
        "tick_start_ns": 0,
        "tick_seconds": 1.0,
        "counters": {},
        "cpu_seconds": cpu_seconds,
    }
    return EventRow(**second | changes)


def test_the_health_of_agents_by_hand() -> None:
    health = AgentHealth()
    assert health.busiest_share is None
    assert health.busiest_host_share is None
    assert health.clock_bound_ns == 0
    health.add(
        0,
        [
            health_row(0.5, clock_offset_ns=300, clock_bound_ns=900, host_busy_share=0.2),
            health_row(0.7, clock_offset_ns=1_500, clock_bound_ns=1_000, host_busy_share=0.6),
            health_row(0.4, tick_seconds=0.4, clock_bound_ns=950),
            health_row(None, clock_offset_ns=9_999, clock_bound_ns=1),
        ],
    )
    health.add(3, [health_row(0.9, phase="warmup", clock_offset_ns=-2_000, clock_bound_ns=700)])
    # The tightest bound, and what no bound explains, in either direction.
    assert (health.clock_error_ns(0), health.clock_error_ns(3)) == (900 + 500, 700 + 1_300)
    assert health.clock_bound_ns == 2_000
    assert health.clock_error_ns(1) == 0
    # Of measured seconds that are not cut short; CPU time counts whenever it was used.
    assert health.busiest_share == 0.7
    assert health.busiest_host_share == pytest.approx(0.4)
    assert health.cpu_seconds == pytest.approx({0: 1.6, 3: 0.9})
