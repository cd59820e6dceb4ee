"""Throughput as the consumer sees it: samples of the time between messages. Pure.

A *pair* is a destination with whoever consumes it in this agent. Its first messages are skipped,
and so is everything before the measured phase. From the next arrival on, a sample is as many
messages as it takes to exceed a time threshold: it lasts from one arrival, which it does not count,
to another, which it does. Messages that were read together have arrived together and are never
parted, so a sample counts exactly what arrived in its time, and samples do not depend on how
arrivals are cut into batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Assignment

I64 = npt.NDArray[np.int64]

SAMPLE_DTYPE = np.dtype(
    [
        ("pair", "<i4"),
        ("number", "<i4"),
        ("messages", "<i8"),
        ("started_ns", "<i8"),
        ("ended_ns", "<i8"),
    ]
)
"""A sample on its way to the driver; `pair` is the destination's number in the whole run."""

Samples = npt.NDArray[np.void]


@dataclass(frozen=True)
class SamplingRule:
    samples: int
    """Wanted per pair."""
    threshold_ns: int
    from_ns: int
    """Nothing that arrives before this moment is sampled."""


class Sampler:
    """Of all pairs of one agent."""

    def __init__(self, rule: SamplingRule, skipped: I64) -> None:
        """`skipped`: how many messages to leave out, per pair."""
        self._pairs = [_Pair(rule, int(messages)) for messages in skipped]
        self._incomplete = len(self._pairs)
        self.is_wanted = bool(self._pairs)

    def sample_from(self, from_ns: int) -> None:
        """The measured phase begins at this moment: before it does, or as soon as it is known."""
        for pair in self._pairs:
            pair.rule = replace(pair.rule, from_ns=from_ns)

    @property
    def is_complete(self) -> bool:
        """Whether every pair has its samples; without pairs there is nothing to complete."""
        return self.is_wanted and not self._incomplete

    def add(self, pair: I64, received_ns: I64) -> None:
        """Messages in the order they arrived, with the pair of each."""
        if not self._incomplete or not len(pair):
            return
        if len(self._pairs) == 1:
            self._add_to(self._pairs[0], received_ns)
            return
        order = np.argsort(pair, kind="stable")
        ordered, times = pair[order], received_ns[order]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1))
        ends = [*starts[1:].tolist(), len(ordered)]
        for start, end in zip(starts.tolist(), ends, strict=True):
            self._add_to(self._pairs[ordered[start]], times[start:end])

    def _add_to(self, pair: _Pair, received_ns: I64) -> None:
        if not pair.is_complete:
            pair.add(received_ns)
            self._incomplete -= pair.is_complete

    def samples(self, numbers: I64) -> Samples:
        """All samples so far; `numbers` are the destinations' numbers, per pair."""
        rows = [
            (numbers[place], number, *sample)
            for place, pair in enumerate(self._pairs)
            for number, sample in enumerate(pair.samples)
        ]
        return np.array(rows, dtype=SAMPLE_DTYPE)


@dataclass
class _Pair:
    rule: SamplingRule
    to_skip: int
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    """Messages, start and end of each."""
    _began_ns: int | None = None
    """When the sample under way began; None while messages are skipped."""
    _last_ns: int = 0
    """When the last message arrived."""
    _messages: int = 0
    """Arrived since the sample began."""

    @property
    def is_complete(self) -> bool:
        return len(self.samples) >= self.rule.samples

    def add(self, received_ns: I64) -> None:
        # Lanes are decoded one after the other, so times may step back: a message counts as
        # received no earlier than those recorded before it.
        times = np.maximum.accumulate(received_ns)
        edges = np.flatnonzero(times[1:] != times[:-1]) + 1
        start = 0
        for end in [*edges.tolist(), len(times)]:
            self._arrive(max(int(times[start]), self._last_ns), end - start)
            start = end

    def _arrive(self, at_ns: int, messages: int) -> None:
        """So many messages arrived at this moment; more of the same moment may follow."""
        if self._began_ns is None:
            self.to_skip -= messages
            if self.to_skip <= 0 and at_ns >= self.rule.from_ns:
                self._began_ns = at_ns
        elif at_ns > self._last_ns:
            self._end_sample(self._began_ns)
            self._messages += messages
        elif at_ns > self._began_ns:
            self._messages += messages
        self._last_ns = at_ns

    def _end_sample(self, began_ns: int) -> None:
        """A later message is here: if the time was up with those before it, they were the end."""
        if self._last_ns - began_ns > self.rule.threshold_ns and not self.is_complete:
            self.samples.append((self._messages, began_ns, self._last_ns))
            self._began_ns, self._messages = self._last_ns, 0


def sampler_for(assignment: Assignment, timeline: Timeline) -> Sampler:
    """Without pairs where no samples are wanted."""
    scenario = assignment.scenario
    sampling = scenario.sampling
    wiring = scenario.wiring
    producers = Counter(map(wiring.group_of_producer, assignment.producer_numbers))
    rule = SamplingRule(
        samples=sampling.samples,
        threshold_ns=round(sampling.threshold_seconds * NANOSECONDS),
        from_ns=timeline.measure_start_ns,
    )
    per_producer = scenario.skipped_per_producer
    skipped = [
        producers[wiring.group_of_subscription(index)] * per_producer
        for index in (assignment.subscriptions if sampling.samples else ())
    ]
    return Sampler(rule, np.array(skipped, dtype=np.int64))


def seconds_of(samples: Samples) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = (samples["ended_ns"] - samples["started_ns"]) / NANOSECONDS
    return seconds
