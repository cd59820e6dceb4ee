"""What an agent remembers of the messages it sent."""

from __future__ import annotations

import numpy as np

from bench_spark.agent.records import FEWEST_MESSAGES_EACH, SentRing
from bench_spark.core.envelope import Envelopes, empty_envelopes


def envelopes(producer: int, sequences: range, sent_ns: int = 0) -> Envelopes:
    made = empty_envelopes(len(sequences))
    made["producer"], made["sequence"] = producer, sequences
    made["sent_ns"] = sent_ns + np.array(sequences)
    made["intended_ns"] = made["sent_ns"] + 1
    return made


def test_times_and_contents_are_found_by_producer_and_number() -> None:
    ring = SentRing((7, 3))
    ring.add(np.zeros(5, np.uint32), envelopes(7, range(5), 100), np.arange(5) * 11)
    ring.add(np.ones(5, np.uint32), envelopes(3, range(5), 200), None)
    known = ring.find(envelopes(7, range(3, 7)))
    assert known.is_known.tolist() == [True, True, False, False]
    assert known.sent_ns.tolist() == [103, 104, 0, 0]
    assert known.intended_ns.tolist() == [104, 105, 0, 0]
    assert known.content[:2].tolist() == [33, 44]
    assert ring.find(envelopes(3, range(5))).sent_ns.tolist() == [200, 201, 202, 203, 204]
    assert not ring.find(envelopes(5, range(5))).is_known.any()


def test_a_message_whose_place_was_taken_is_not_taken_for_the_one_that_took_it() -> None:
    each = FEWEST_MESSAGES_EACH
    ring = SentRing((0,), most_messages=each)
    for first in (0, each):
        batch = range(first, first + each)
        ring.add(np.zeros(each, np.uint32), envelopes(0, batch, 1000), None)
    known = ring.find(envelopes(0, range(each - 2, each + 2)))
    assert known.is_known.tolist() == [False, False, True, True]


def test_an_agent_that_sends_nothing_knows_nothing() -> None:
    known = SentRing(()).find(envelopes(0, range(3)))
    assert not known.is_known.any()
    assert known.sent_ns.tolist() == [0, 0, 0]
