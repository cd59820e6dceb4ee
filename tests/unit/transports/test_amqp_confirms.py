"""The ledger of confirms against a plain set of open tags."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.amqp.confirms import ConfirmLedger


def heads(first_tag: int, count: int) -> Envelopes:
    """Heads whose sequence is the tag they will get."""
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first_tag, first_tag + count)
    return made


def filled(count: int, limit: int = 100) -> ConfirmLedger:
    ledger = ConfirmLedger(limit)
    ledger.sent(heads(1, count))
    return ledger


def settled(ledger: ConfirmLedger, tag: int, multiple: bool) -> list[int]:
    return [int(sequence) for sequence in ledger.settle(tag, multiple)["sequence"]]


def test_a_single_confirm_settles_one_message_wherever_it_is() -> None:
    ledger = filled(5)
    assert settled(ledger, 3, multiple=False) == [3]
    assert ledger.open_count == 4


def test_multiple_settles_what_is_still_open_up_to_its_tag() -> None:
    ledger = filled(5)
    settled(ledger, 2, multiple=False)
    assert settled(ledger, 4, multiple=True) == [1, 3, 4]
    assert settled(ledger, 5, multiple=True) == [5]


def test_multiple_with_tag_zero_settles_everything() -> None:
    assert settled(filled(3), 0, multiple=True) == [1, 2, 3]


def test_a_tag_that_is_not_open_settles_nothing() -> None:
    ledger = filled(3)
    settled(ledger, 2, multiple=False)
    for tag in (0, 2, 4, 1000):
        assert settled(ledger, tag, multiple=False) == []
    assert ledger.open_count == 2


def test_room_is_what_the_limit_leaves() -> None:
    ledger = filled(7, limit=10)
    assert ledger.room == 3
    settled(ledger, 5, multiple=True)
    assert ledger.room == 8


def test_a_full_ledger_takes_no_more_until_a_quarter_is_free() -> None:
    ledger = filled(100, limit=100)
    assert ledger.room == 0
    settled(ledger, 24, multiple=True)
    assert ledger.room == 0, "one message for every confirm costs as much as many at a time"
    settled(ledger, 25, multiple=False)
    assert ledger.room == 25
    ledger.sent(heads(101, 10))
    assert ledger.room == 15, "it is not full again"


def test_a_ledger_for_one_message_has_room_when_that_is_settled() -> None:
    ledger = filled(1, limit=1)
    assert ledger.room == 0
    settled(ledger, 1, multiple=False)
    assert ledger.room == 1


def test_abandoning_gives_all_that_is_open_once() -> None:
    ledger = filled(4)
    settled(ledger, 2, multiple=False)
    assert [int(sequence) for sequence in ledger.abandon()["sequence"]] == [1, 3, 4]
    assert len(ledger.abandon()) == 0


def test_one_slow_message_does_not_limit_those_behind_it() -> None:
    ledger = filled(1, limit=10)
    for tag in range(2, 5000):
        ledger.sent(heads(tag, 1))
        assert settled(ledger, tag, multiple=False) == [tag]
    assert settled(ledger, 1, multiple=False) == [1]
    assert ledger.open_count == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 900)),
        st.tuples(st.just("ack"), st.integers(0, 4000)),
        st.tuples(st.just("ack multiple"), st.integers(0, 4000)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_ledger_agrees_with_a_set_of_open_tags(steps: list[tuple[str, int]]) -> None:
    ledger = ConfirmLedger(10**6)
    open_tags: set[int] = set()
    next_tag = 1
    for what, number in steps:
        if what == "send":
            ledger.sent(heads(next_tag, number))
            open_tags |= set(range(next_tag, next_tag + number))
            next_tag += number
        else:
            multiple = what == "ack multiple"
            if multiple:
                expected = {tag for tag in open_tags if number == 0 or tag <= number}
            else:
                expected = open_tags & {number}
            assert settled(ledger, number, multiple) == sorted(expected)
            open_tags -= expected
        assert ledger.open_count == len(open_tags)
    assert [int(one) for one in ledger.abandon()["sequence"]] == sorted(open_tags)
