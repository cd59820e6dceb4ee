"""Samples at the consumer, against a plain implementation that looks at one message at a time."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.sampler import Sampler, SamplingRule, seconds_of

Sample = tuple[int, int, int]
"""Messages, start, end."""


def sampled(
    rule: SamplingRule, skipped: list[int], batches: list[tuple[list[int], list[int]]]
) -> dict[int, list[Sample]]:
    sampler = Sampler(rule, np.array(skipped))
    for pairs, times in batches:
        sampler.add(np.array(pairs, np.int64), np.array(times, np.int64))
    found: dict[int, list[Sample]] = {pair: [] for pair in range(len(skipped))}
    for pair, number, messages, started, ended in sampler.samples(np.arange(len(skipped))).tolist():
        assert number == len(found[pair])
        found[pair].append((messages, started, ended))
    assert sampler.is_complete == all(len(of) == rule.samples for of in found.values())
    return found


def plainly_sampled(rule: SamplingRule, skip: int, times: list[int]) -> list[Sample]:
    """Arrival by arrival; messages of one moment are one arrival."""
    arrivals = [(moment, len(list(of))) for moment, of in groupby(times)]
    samples: list[Sample] = []
    seen = messages = 0
    began: int | None = None
    for place, (moment, count) in enumerate(arrivals):
        if began is None:
            seen += count
            if seen >= skip and moment >= rule.from_ns:
                began = moment
            continue
        messages += count
        is_known_to_be_whole = place + 1 < len(arrivals)
        if moment - began > rule.threshold_ns and is_known_to_be_whole:
            samples.append((messages, began, moment))
            began, messages = moment, 0
    return samples[: rule.samples]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Pairs and times of messages in order of arrival, and where to cut them into batches."""
    gaps = draw(st.lists(st.integers(0, 12), max_size=120))
    times = np.cumsum([100, *gaps]).tolist()
    pairs = draw(st.lists(st.integers(0, 2), min_size=len(times), max_size=len(times)))
    cuts = draw(st.lists(st.integers(0, len(times)), max_size=20))
    return pairs, times, sorted(cuts)


@given(
    streams(),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(90, 160),
    st.lists(st.integers(0, 20), min_size=3, max_size=3),
)
def test_samples_are_the_same_however_the_stream_is_cut(
    stream: tuple[list[int], list[int], list[int]],
    samples: int,
    threshold: int,
    from_ns: int,
    skipped: list[int],
) -> None:
    pairs, times, cuts = stream
    rule = SamplingRule(samples, threshold, from_ns)
    edges = [0, *cuts, len(times)]
    batches = [(pairs[start:end], times[start:end]) for start, end in pairwise(edges)]
    found = sampled(rule, skipped, batches)
    for pair, skip in enumerate(skipped):
        own = [at for at, of in zip(times, pairs, strict=True) if of == pair]
        assert found[pair] == plainly_sampled(rule, skip, own)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 20))
def test_a_sample_counts_exactly_what_arrived_in_its_time(gaps: list[int], threshold: int) -> None:
    times = np.cumsum(gaps).tolist()
    [found] = sampled(SamplingRule(100, threshold, 0), [0], [([0] * len(times), times)]).values()
    for messages, started, ended in found:
        assert ended - started > threshold
        assert messages == sum(started < at <= ended for at in times)
    for (_, _, ended), (_, started, _) in pairwise(found):
        assert ended == started


def test_a_steady_stream_has_its_own_rate() -> None:
    every_ns = 20_000
    times = np.arange(1, 200_001, dtype=np.int64) * every_ns
    sampler = Sampler(SamplingRule(100, 10_000_000, 0), np.array([2000]))
    for start in range(0, len(times), 333):
        sampler.add(np.zeros(333, np.int64)[: len(times) - start], times[start : start + 333])
    samples = sampler.samples(np.array([7]))
    assert sampler.is_complete
    assert samples["pair"].tolist() == [7] * 100
    assert samples["number"].tolist() == list(range(100))
    assert samples["started_ns"][0] == 2000 * every_ns
    assert np.allclose(samples["messages"] / seconds_of(samples), 50_000)


def test_messages_told_out_of_turn_count_when_they_are_known() -> None:
    rule = SamplingRule(5, 5, 0)
    turned = sampled(rule, [0], [([0] * 5, [10, 20, 15, 30, 40])])
    assert turned == sampled(rule, [0], [([0] * 5, [10, 20, 20, 30, 40])])
    over_batches = sampled(rule, [0], [([0, 0], [10, 20]), ([0] * 3, [15, 30, 40])])
    assert over_batches == turned


def test_a_pair_that_has_its_samples_takes_no_more() -> None:
    found = sampled(SamplingRule(2, 1, 0), [0, 0], [([0] * 9, list(range(0, 90, 10)))])
    assert [len(of) for of in found.values()] == [2, 0]
