"""Packet identifiers: never two messages with one, and none lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.mqtt.identifiers import PacketIdentifiers


def heads(first: int, count: int) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first, first + count)
    return made


def ids(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return np.array(numbers, np.uint16)


class Conversation(RuleBasedStateMachine):
    """A broker that acknowledges anything, in any order, also what it was never sent."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 13
        self.ledger = PacketIdentifiers(self.limit)
        self.open: dict[int, int] = {}
        """Sequence by identifier, as a naive book has it."""
        self.next = 0

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.limit - len(self.open)))
        found = self.ledger.sent(heads(self.next, count)).tolist()
        assert len(set(found)) == count
        assert not set(found) & self.open.keys()
        assert all(1 <= one <= self.limit for one in found)
        self.open |= dict(zip(found, range(self.next, self.next + count), strict=True))
        self.next += count

    @rule(said=st.lists(st.integers(0, 20), max_size=20))
    def settle(self, said: list[int]) -> None:
        expected = {self.open.pop(one) for one in set(said) if one in self.open}
        settled = self.ledger.settle(ids(*said))["sequence"].tolist()
        assert len(settled) == len(expected)
        assert set(settled) == expected

    @rule(said=st.lists(st.integers(0, 20), max_size=20))
    def receive(self, said: list[int]) -> None:
        released = self.ledger.received(ids(*said)).tolist()
        assert sorted(released) == sorted({one for one in said if one in self.open})

    @precondition(lambda self: self.open)
    @rule()
    def abandon(self) -> None:
        left = self.ledger.abandon()["sequence"].tolist()
        assert sorted(left) == sorted(self.open.values())
        self.open.clear()

    @invariant()
    def counts(self) -> None:
        assert self.ledger.open_count == len(self.open)
        assert self.ledger.room <= self.limit - len(self.open)


TestConversation = Conversation.TestCase


@given(st.integers(1, 65535))
def test_all_identifiers_can_be_open_at_once_and_no_more(limit: int) -> None:
    ledger = PacketIdentifiers(limit)
    found = ledger.sent(heads(0, limit))
    assert np.array_equal(np.sort(found), np.arange(1, limit + 1))
    assert ledger.room == 0
    with pytest.raises(ValueError, match="0 identifiers"):
        ledger.sent(heads(limit, 1))


def test_an_identifier_that_is_free_again_is_used_last() -> None:
    ledger = PacketIdentifiers(4)
    assert ledger.sent(heads(0, 2)).tolist() == [1, 2]
    ledger.settle(ids(1))
    assert ledger.sent(heads(2, 3)).tolist() == [3, 4, 1]


def test_once_full_there_is_no_room_until_a_quarter_is_free() -> None:
    ledger = PacketIdentifiers(8)
    ledger.sent(heads(0, 8))
    ledger.settle(ids(5))
    assert ledger.room == 0
    ledger.settle(ids(6))
    assert ledger.room == 2
