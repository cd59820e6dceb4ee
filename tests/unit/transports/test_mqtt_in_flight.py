"""Packet identifiers: never two messages with one, and none lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bench_spark.core.envelope import empty_envelopes, word_rows_of
from bench_spark.transports.batches import I64
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.producers import InFlight, OutcomeRows
from bench_spark.transports.sockets.buffers import ReadBuffer


def envelopes(first: int, count: int) -> I64:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first, first + count)
    return word_rows_of(made)


class Ledger(InFlight):
    """Spoken to in packets, as by a broker."""

    def __init__(self, limit: int) -> None:
        self.outcomes = OutcomeRows()
        self.answers = bytearray()
        super().__init__(0, limit, self.outcomes)
        self.on_answers = self.answers.extend

    def settle(self, *identifiers: int) -> list[int]:
        """The sequence numbers of those that were open."""
        self._hear(packets.PUBACK, identifiers)
        return self.settled()

    def settled(self) -> list[int]:
        return list(self.outcomes.take().envelope["sequence"].tolist())

    def received(self, *identifiers: int) -> list[int]:
        """Those that are to be released."""
        self.answers.clear()
        self._hear(packets.PUBREC, identifiers)
        assert bytes(self.answers[::4]) == bytes([packets.PUBREL]) * (len(self.answers) // 4)
        return [
            int.from_bytes(self.answers[at + 2 : at + 4]) for at in range(0, len(self.answers), 4)
        ]

    def _hear(self, kind: int, identifiers: tuple[int, ...]) -> None:
        data = b"".join(packets.packet(kind, one.to_bytes(2)) for one in identifiers)
        buffer = ReadBuffer(len(data))
        buffer.raw[:] = data
        assert self.parse(buffer, len(data), 1) == len(data)


class Conversation(RuleBasedStateMachine):
    """A broker that acknowledges anything, in any order, also what it was never sent."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 13
        self.ledger = Ledger(self.limit)
        self.open: dict[int, int] = {}
        """Sequence by identifier, as a naive book has it."""
        self.next = 0

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.limit - len(self.open)))
        found = self.ledger.sent(envelopes(self.next, count)).tolist()
        assert len(set(found)) == count
        assert not set(found) & self.open.keys()
        assert all(1 <= one <= self.limit for one in found)
        self.open |= dict(zip(found, range(self.next, self.next + count), strict=True))
        self.next += count

    @rule(said=st.lists(st.integers(0, 20), max_size=20))
    def settle(self, said: list[int]) -> None:
        expected = {self.open.pop(one) for one in set(said) if one in self.open}
        settled = self.ledger.settle(*said)
        assert len(settled) == len(expected)
        assert set(settled) == expected

    @rule(said=st.lists(st.integers(0, 20), max_size=20))
    def receive(self, said: list[int]) -> None:
        # Each time that it is said: a broker that says it again has not heard the answer.
        assert self.ledger.received(*said) == [one for one in said if one in self.open]

    @precondition(lambda self: self.open)
    @rule()
    def abandon(self) -> None:
        self.ledger.abandon(2)
        left = self.ledger.settled()
        assert sorted(left) == sorted(self.open.values())
        self.open.clear()

    @invariant()
    def counts(self) -> None:
        assert len(self.ledger) == len(self.open)
        assert self.ledger.room <= self.limit - len(self.open)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(deadline=None)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300) | st.sampled_from([1 << 14, 65535]))
def test_all_identifiers_can_be_open_at_once_and_no_more(limit: int) -> None:
    ledger = Ledger(limit)
    found = ledger.sent(envelopes(0, limit))
    assert np.array_equal(np.sort(found), np.arange(1, limit + 1))
    assert ledger.room == 0
    with pytest.raises(ValueError, match="0 identifiers"):
        ledger.sent(envelopes(limit, 1))


def test_an_identifier_that_is_free_again_is_used_last() -> None:
    ledger = Ledger(4)
    assert ledger.sent(envelopes(0, 2)).tolist() == [1, 2]
    ledger.settle(1)
    assert ledger.sent(envelopes(2, 3)).tolist() == [3, 4, 1]


def test_once_full_there_is_no_room_until_a_quarter_is_free() -> None:
    ledger = Ledger(8)
    ledger.sent(envelopes(0, 8))
    ledger.settle(5)
    assert ledger.room == 0
    ledger.settle(6)
    assert ledger.room == 2
