"""IDs that a system gives in its answers."""

from __future__ import annotations

import numpy as np

from bench_spark.agent.records import LONGEST_WAIT_NS, GivenIds
from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import OUTCOME_DTYPE, Outcomes, Received, nothing_received

START_NS = 10 * LONGEST_WAIT_NS


class Clock:
    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns


def answers(*named: tuple[bytes, int]) -> Outcomes:
    outcomes = Outcomes(np.zeros(len(named), OUTCOME_DTYPE))
    outcomes.envelope["run_tag"] = 1
    outcomes.envelope["sequence"] = [sequence for _, sequence in named]
    outcomes.answers = [name for name, _ in named]
    return outcomes


def arrived(count: int, at_ns: int = START_NS) -> Received:
    received = nothing_received()
    return Received.of_columns(
        received_ns=np.full(count, at_ns),
        lane=np.zeros(count, np.uint32),
        route=np.zeros(count, np.uint16),
        envelope=empty_envelopes(count),
        size=np.zeros(count, np.uint32),
        redelivered=np.zeros(count, np.bool_),
        tag=np.arange(count) + len(received),
    )


def test_a_message_is_the_one_that_its_answer_named() -> None:
    given = GivenIds(Clock())
    given.learn(answers((b"x", 7), (b"", 8), (b"y", 9)))
    received, envelopes = given.recognise(arrived(3), [b"y", b"x", b""])
    assert envelopes["sequence"].tolist() == [9, 7, 0]
    assert envelopes["run_tag"].tolist() == [1, 1, 0]
    assert len(received) == 3


def test_a_message_that_overtakes_its_answer_waits_for_it() -> None:
    clock = Clock()
    given = GivenIds(clock)
    received, envelopes = given.recognise(arrived(2), [b"late", b""])
    assert envelopes["run_tag"].tolist() == [0]
    assert received.tag.tolist() == [1]
    clock.ns += LONGEST_WAIT_NS // 2
    given.learn(answers((b"late", 5)))
    received, envelopes = given.recognise(nothing_received(), [])
    assert envelopes["sequence"].tolist() == [5]
    assert received.received_ns.tolist() == [START_NS]
    assert received.tag.tolist() == [0]


def test_one_that_nobody_names_is_given_up_in_the_end() -> None:
    clock = Clock()
    given = GivenIds(clock)
    assert len(given.recognise(arrived(1), [b"never"])[0]) == 0
    clock.ns += LONGEST_WAIT_NS
    received, envelopes = given.recognise(nothing_received(), [])
    assert len(received) == 1
    assert envelopes["run_tag"].tolist() == [0]
    assert len(given.recognise(nothing_received(), [])[0]) == 0


def test_only_the_newest_ids_are_remembered() -> None:
    clock = Clock()
    given = GivenIds(clock, most_ids=2)
    given.learn(answers((b"a", 1), (b"b", 2), (b"c", 3)))
    _, envelopes = given.recognise(arrived(2), [b"b", b"c"])
    assert envelopes["sequence"].tolist() == [2, 3]
    clock.ns += 2 * LONGEST_WAIT_NS
    _, envelopes = given.recognise(arrived(1), [b"a"])
    assert envelopes["run_tag"].tolist() == [0]
