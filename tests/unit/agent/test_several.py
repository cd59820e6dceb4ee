"""Lanes of several transports as if they were one's."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.endpoints import EndLanes, SeveralConsumers, SeveralProducers
from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.base import Producers, Signal, SignalKind
from bench_spark.transports.batches import Batch, Outcomes, Received, no_outcomes, nothing_received


class Outbox(Producers):
    """Takes as many messages as it is told to."""

    def __init__(self, room: int = 10**6) -> None:
        self.room = room
        self.taken: list[tuple[int, int]] = []
        self.settled = no_outcomes()
        self.is_closed = False
        self._readable, self._other = os.pipe()

    @property
    def descriptor(self) -> int:
        return self._readable

    def send(self, batch: Batch) -> int:
        accepted = min(self.room, len(batch))
        self.room -= accepted
        sequences = batch.envelope["sequence"].tolist()
        self.taken += list(zip(batch.lane.tolist(), sequences, strict=True))[:accepted]
        return accepted

    def commit(self) -> None: ...

    def outcomes(self) -> Outcomes:
        return self.settled

    def in_flight(self) -> int:
        return 0

    def flush(self, timeout_seconds: float) -> None: ...

    def signals(self) -> list[Signal]:
        return [Signal(SignalKind.LOST, 1, 0, reason="gone")]

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        return set(lanes) if not self.room else set()

    def close(self) -> None:
        self.is_closed = True
        os.close(self._readable)
        os.close(self._other)


def together(*outboxes: Outbox, lanes: int = 2) -> SeveralProducers:
    return SeveralProducers(
        [EndLanes(one, place * lanes, lanes, f"h:{place}") for place, one in enumerate(outboxes)]
    )


def batch_for(lanes: list[int]) -> Batch:
    envelope = empty_envelopes(len(lanes))
    envelope["sequence"] = np.arange(len(lanes))
    route = np.zeros(len(lanes), np.uint16)
    return Batch(np.array(lanes, np.uint32), envelope, b"", route)


def test_messages_go_to_the_part_of_their_lane_by_its_own_number() -> None:
    first, second = Outbox(), Outbox()
    producers = together(first, second)
    assert producers.send(batch_for([0, 3, 1, 2])) == 4
    assert first.taken == [(0, 0), (1, 2)]
    assert second.taken == [(1, 1), (0, 3)]
    producers.close()
    assert first.is_closed
    assert second.is_closed


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=8),
)
def test_whatever_is_accepted_is_sent_once_and_in_order(
    lanes: list[int], rooms: list[tuple[int, int, int]]
) -> None:
    """The loop deals a refused message again, so `accepted` must mean exactly the front."""
    outboxes = [Outbox(0), Outbox(0), Outbox(0)]
    producers = together(*outboxes)
    whole, accepted = batch_for(lanes), 0
    for room in rooms:
        for outbox, messages in zip(outboxes, room, strict=True):
            outbox.room = messages
        accepted += producers.send(whole.starting_at(accepted)) if accepted < len(whole) else 0
    for outbox in outboxes:
        outbox.room = 10**6
    producers.flush(1.0)
    sent = [
        (lane + 2 * place, sequence)
        for place, outbox in enumerate(outboxes)
        for lane, sequence in outbox.taken
    ]
    assert sorted(sequence for _, sequence in sent) == list(range(accepted))
    assert all(lanes[sequence] == lane for lane, sequence in sent)
    for outbox in outboxes:
        sequences = [sequence for _, sequence in outbox.taken]
        assert sequences == sorted(sequences)
    producers.close()


def test_a_part_that_refuses_does_not_make_the_others_take_what_comes_after() -> None:
    first, second = Outbox(), Outbox(1)
    producers = together(first, second)
    assert producers.send(batch_for([0, 2, 0, 2, 0, 2])) == 5  # the first was asked first
    assert producers.in_flight() == 1
    assert producers.full_among([0, 1, 2, 3]) == {2, 3}
    assert producers.send(batch_for([2, 0])) == 0
    second.room = 1
    assert producers.send(batch_for([0, 2, 0])) == 1  # now the second is
    assert [sequence for _, sequence in first.taken] == [0, 2, 4, 0]
    assert [sequence for _, sequence in second.taken] == [1, 3]
    producers.close()


def test_outcomes_and_signals_are_numbered_through_and_name_their_broker() -> None:
    first, second = Outbox(), Outbox()
    second.settled = Outcomes.of_columns(
        np.array([5]), np.array([1], np.uint32), np.zeros(1, np.uint8), empty_envelopes(1)
    )
    producers = together(first, second)
    assert producers.outcomes().lane.tolist() == [3]
    assert [(one.lane, one.reason) for one in producers.signals()] == [
        (0, "h:0: gone"),
        (2, "h:1: gone"),
    ]
    producers.close()


class Inbox:
    def __init__(self, token: np.ndarray[tuple[int], np.dtype[np.generic]] | None) -> None:
        self._token = token
        self.acknowledged: list[object] = []
        self.descriptor, self._other = os.pipe()

    def receive(self, timeout_seconds: float) -> Received:
        count = 2 if self._token is None else len(self._token)
        if not count:
            return nothing_received()
        return Received.of_columns(
            received_ns=np.arange(count),
            lane=np.zeros(count, np.uint32),
            route=np.zeros(count, np.uint16),
            envelope=empty_envelopes(count),
            size=np.ones(count, np.uint32),
            redelivered=np.zeros(count, np.bool_),
            tag=self._token,
            bodies=[b"body"] * count,
        )

    def acknowledge(self, received: Received) -> int:
        assert set(received.lane.tolist()) <= {0}
        self.acknowledged.append(received.tag.tolist())
        return len(received)

    def attach(self) -> None: ...

    def detach(self) -> bool:
        return self._token is not None

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._other)


def test_every_consumer_gets_back_its_own_tags() -> None:
    inboxes = [
        Inbox(np.array([7, 8], np.uint64)),
        Inbox(None),
        Inbox(np.array([2, 4, 6], np.uint64)),
    ]
    consumers = SeveralConsumers(
        [EndLanes(one, place, 1, f"h:{place}") for place, one in enumerate(inboxes)]
    )
    received = consumers.receive(0.0)
    assert received.lane.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert received.bodies == [b"body"] * 7
    assert consumers.acknowledge(received.at(np.array([6, 1, 4]))) == 3
    assert inboxes[0].acknowledged == [[8]]
    assert inboxes[1].acknowledged == [[]]
    assert inboxes[2].acknowledged == [[6, 2]]
    assert not consumers.detach(), "one of them could not await its messages"
    consumers.close()
