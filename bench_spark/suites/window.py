"""The search for the best window: what to try next, and its document.

First the powers of a base, until throughput falls; that brackets the maximum. Then a golden-section
search on the logarithmic scale narrows the bracket down. Trials are noisy, so one throughput counts
as higher than another only when the confidence intervals of their medians do not overlap; where
the difference would matter but is in doubt, the less certain of the two is measured once more. Two
steps in a row that change nothing beyond noise end the search, and so does a number of trials.

A throughput that no longer changes with the window is a plateau: the answer is its smallest window,
and a few trials go into finding where it begins.

The throughput of a trial comes from its samples, or from its ticks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER
from bench_spark.config.sections import Phases, Sampling
from bench_spark.config.suite import TRIAL_OVERHEAD_SECONDS
from bench_spark.core.throughput import F64, throughput, throughput_of_all
from bench_spark.results.totals import Tick


@dataclass(frozen=True)
class MeasuredTick:
    """What happened in one tick, all agents together."""

    seconds: float
    sent: int
    received: int


def measured_ticks(ticks: Iterable[Tick]) -> list[MeasuredTick]:
    """The ticks of the measured phase in order of time, whatever phase their messages belong to.

    They are known by what was sent: messages of the measured phase are received, and confirmed, in
    the drain as well.
    """
    lengths: dict[float, float] = {}
    sent: Counter[float] = Counter()
    received: Counter[float] = Counter()
    for tick in ticks:
        start = tick.start_seconds
        if tick.role == CONSUMER:
            received[start] += tick.counter("received")
        elif tick.role == PRODUCER:
            sent[start] += tick.counter("sent")
            if tick.phase == MEASURE and tick.counter("sent"):
                lengths[start] = tick.tick_seconds
    return [
        MeasuredTick(seconds, sent[start], received[start])
        for start, seconds in sorted(lengths.items())
    ]


AS_GOOD = 0.99
"""A window with this share of the best throughput is as good; a smaller difference is not worth
measuring again for."""
STILL_AS_GOOD = 0.985
"""The same where noise hides the difference: below this share it counts, however noisy."""
SHORTEST_TICK_SECONDS = 0.5
"""A tick that the end of the phase has cut shorter says little about a rate."""

_NO_SAMPLES: F64 = np.zeros(0)


@dataclass(frozen=True)
class WindowThroughput:
    """What was measured with so many messages in flight."""

    in_flight: int
    median_per_second: float
    mean_per_second: float
    stddev_per_second: float
    samples: int
    low_per_second: float
    """The confidence interval of the median, down to here ..."""
    high_per_second: float
    """... and up to here."""
    pairs: tuple[F64, ...] = field(repr=False, compare=False)
    """The samples of each pair, in messages per second."""

    @property
    def uncertainty(self) -> float:
        """Width of the confidence interval, in messages per second."""
        return self.high_per_second - self.low_per_second

    def is_clearly_above(self, other: WindowThroughput) -> bool:
        return self.low_per_second > other.high_per_second

    def is_as_good_as(self, best: WindowThroughput) -> bool:
        share = self.median_per_second / best.median_per_second if best.median_per_second else 1.0
        return share >= AS_GOOD or (share >= STILL_AS_GOOD and not best.is_clearly_above(self))

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the samples."""
        return {name: value for name, value in vars(self).items() if name != "pairs"}


def throughput_of(in_flight: int, pairs: Sequence[F64]) -> WindowThroughput:
    """From the samples of each pair, in messages per second."""
    found = throughput_of_all([throughput(samples) for samples in pairs])
    # A trial that ended before its first sample has no numbers, and moved next to nothing.
    median = found.median_per_second or 0.0
    stddev = found.stddev_per_second or 0.0
    low, high = found.low_per_second, found.high_per_second
    return WindowThroughput(
        in_flight=in_flight,
        median_per_second=median,
        mean_per_second=found.mean_per_second or 0.0,
        stddev_per_second=stddev,
        samples=found.samples,
        # Too few samples for an interval of the median: how they scatter has to do instead.
        low_per_second=max(0.0, median - stddev) if low is None else low,
        high_per_second=median + stddev if high is None else high,
        pairs=tuple(pairs),
    )


def united(one: WindowThroughput, other: WindowThroughput) -> WindowThroughput:
    """Two trials of the same window as one: the figures of all samples of both.

    What differs from trial to trial as a whole is not in the scatter of the samples, so the
    interval reaches at least from the one median to the other.
    """
    pairs = [
        np.concatenate(both) for both in zip_longest(one.pairs, other.pairs, fillvalue=_NO_SAMPLES)
    ]
    found = throughput_of(one.in_flight, pairs)
    medians = one.median_per_second, other.median_per_second
    return replace(
        found,
        low_per_second=min(found.low_per_second, *medians),
        high_per_second=max(found.high_per_second, *medians),
    )


def rates_of_ticks(ticks: Sequence[MeasuredTick]) -> F64:
    """Each second of the measured phase as a sample: coarser, but there for every run."""
    whole = [tick for tick in ticks if tick.seconds >= SHORTEST_TICK_SECONDS] or ticks
    return np.array([tick.received / tick.seconds for tick in whole], dtype=np.float64)


# -- the search ------------------------------------------------------------------------------------

MOST_TRIALS = 20
NARROW_ENOUGH = 0.01
"""Width of the interval, as a share of its mean, at which the search is done."""
EDGE_RATIO = 1.1
"""How closely the beginning of a plateau is found: the ratio of two windows beside it."""
UNCHANGED_STEPS = 2

_GOLDEN = (3 - math.sqrt(5)) / 2

End = Literal["narrowed", "adjacent", "noise", "plateau", "highest", "trials"]
"""Why a search ended: the interval is narrow enough; no whole number is left in it; two steps in a
row changed nothing beyond noise; throughput does not change with the window; it still rose at the
highest window allowed; the trials were used up."""


RunTrial = Callable[[int], WindowThroughput]


@dataclass(frozen=True)
class WindowLimits:
    """Where the search may look."""

    lowest: int = 1
    """The first window tried is the first power of `base` that is not below this."""
    highest: int = 1_000_000
    base: float = 10.0
    most_trials: int = MOST_TRIALS

    def __post_init__(self) -> None:
        if not (self.lowest >= 1 and self.base > 1 and self.most_trials >= 1):
            raise ValueError("a window is at least 1, the base above 1, and a trial is needed")
        if self.first > self.highest:
            raise ValueError(f"the first window, {self.first}, is above {self.highest}")

    @property
    def first(self) -> int:
        return first_step(self.lowest, self.base)

    def steps(self) -> Iterator[int]:
        """The powers that are allowed, and at last the highest window itself."""
        for power in _powers(self.base):
            if power >= self.highest:
                yield self.highest
                return
            if power >= self.lowest:
                yield power


def first_step(lowest: int, base: float) -> int:
    """The first power of the base that is not below `lowest`."""
    return next(power for power in _powers(base) if power >= lowest)


def _powers(base: float) -> Iterator[int]:
    """The powers of the base as whole numbers, each once."""
    exponent, last = 0, 0
    while True:
        # A hair below, so that rounding up leaves a power that is whole as it is.
        power = math.ceil(base**exponent * (1 - 1e-12))
        if power > last:
            yield power
            last = power
        exponent += 1


@dataclass(frozen=True)
class WindowSearch:
    """What a search has found."""

    chosen: WindowThroughput
    smallest: WindowThroughput
    """The smallest window tried that is as good as the best."""
    curve: tuple[WindowThroughput, ...]
    """One point per window, by size; of what was measured twice, the figures of all samples."""
    trials: tuple[WindowThroughput, ...]
    """As they ran."""
    end: End


class _Bracket(NamedTuple):
    """The maximum lies between the ends; `middle` is the best known and may be one of them."""

    low: int
    middle: int
    high: int

    @property
    def is_narrow(self) -> bool:
        return self.high - self.low < NARROW_ENOUGH * (self.high + self.low) / 2

    def probe(self) -> int | None:
        """Where to measure next: a golden section into the wider part; None if nothing is left."""
        below, above = self.middle / self.low, self.high / self.middle
        upwards = self._inside(self.middle, self.high, self.middle * math.pow(above, _GOLDEN))
        downwards = self._inside(self.low, self.middle, self.middle / math.pow(below, _GOLDEN))
        wider, narrower = (upwards, downwards) if above > below else (downwards, upwards)
        return narrower if wider is None else wider

    @staticmethod
    def _inside(low: int, high: int, wanted: float) -> int | None:
        """The whole number nearest to `wanted` strictly between the two, if there is one."""
        return min(max(round(wanted), low + 1), high - 1) if high - low > 1 else None

    def without_worse(self, probe: int, is_better: bool) -> _Bracket:
        if is_better and probe > self.middle:
            return _Bracket(self.middle, probe, self.high)
        if is_better:
            return _Bracket(self.low, probe, self.middle)
        if probe > self.middle:
            return _Bracket(self.low, self.middle, probe)
        return _Bracket(probe, self.middle, self.high)


class _OutOfTrials(Exception):
    pass


def find_window(run_trial: RunTrial, limits: WindowLimits) -> WindowSearch:
    """The best window; `run_trial` measures one."""
    search = _Search(run_trial, limits)
    try:
        end = search.go()
    except _OutOfTrials:
        end = "trials"
    return search.result(end)


class _Search:
    def __init__(self, run_trial: RunTrial, limits: WindowLimits) -> None:
        self._run_trial = run_trial
        self._limits = limits
        self._trials: list[WindowThroughput] = []
        self._points: dict[int, WindowThroughput] = {}
        self._is_flat = False

    def go(self) -> End:
        end = self._climb()
        if isinstance(end, _Bracket):
            return self._narrow(end)
        if end == "plateau":
            self._find_edge()
        return end

    def result(self, end: End) -> WindowSearch:
        best = self._best
        smallest = self._smallest_as_good
        return WindowSearch(
            chosen=smallest if self._is_flat else best,
            smallest=smallest,
            curve=tuple(self._points[size] for size in sorted(self._points)),
            trials=tuple(self._trials),
            end=end,
        )

    # -- the three parts of a search -------------------------------------------------------------

    def _climb(self) -> _Bracket | End:
        """Powers of the base until throughput falls, no longer changes, or may not go on."""
        steps: list[int] = []
        unchanged = 0
        for in_flight in self._limits.steps():
            steps.append(in_flight)
            if len(steps) == 1:
                self._measure(in_flight)
                continue
            best = self._best.in_flight
            self._measure(in_flight)
            order = self._order(in_flight, best)
            if order < 0:
                # Two steps back; further where the last ones cannot be distinguished from the best.
                below = max(0, min(steps.index(self._best.in_flight) - 1, len(steps) - 3))
                return _Bracket(steps[below], self._best.in_flight, in_flight)
            unchanged = 0 if order > 0 else unchanged + 1
            self._is_flat = unchanged > 0
            if unchanged == UNCHANGED_STEPS:
                return "plateau"
        self._is_flat = unchanged > 0 or len(steps) == 1
        return "plateau" if unchanged else "highest"

    def _narrow(self, bracket: _Bracket) -> End:
        """Golden sections of the bracket."""
        self._is_flat = False
        unchanged = 0
        while not bracket.is_narrow:
            probe = bracket.probe()
            if probe is None:
                return "adjacent"
            self._measure(probe)
            order = self._order(probe, bracket.middle)
            is_better = self._median(probe) > self._median(bracket.middle)
            bracket = bracket.without_worse(probe, is_better)
            unchanged = unchanged + 1 if order == 0 else 0
            if unchanged == UNCHANGED_STEPS:
                return "noise"
        return "narrowed"

    def _find_edge(self) -> None:
        """Where the plateau begins, between the last window that is worse and the first on it.

        The smallest of several that seem good is likely to be one that was lucky, so it has to
        prove itself twice.
        """
        while True:
            first = self._smallest_as_good.in_flight
            worse = max((size for size in self._points if size < first), default=None)
            if worse is None:
                return
            if first / worse > EDGE_RATIO and first - worse > 1:
                self._measure(round(math.sqrt(worse * first)))
            elif self._is_certain(first) or self._times(first) > 1:
                return
            else:
                self._measure_again(first)

    # -- measuring -------------------------------------------------------------------------------

    @property
    def _best(self) -> WindowThroughput:
        """The highest; of equal ones the smallest window."""
        return max(self._points.values(), key=lambda p: (p.median_per_second, -p.in_flight))

    @property
    def _smallest_as_good(self) -> WindowThroughput:
        best = self._best
        good = (point for point in self._points.values() if point.is_as_good_as(best))
        return min(good, key=lambda point: point.in_flight)

    def _median(self, in_flight: int) -> float:
        return self._points[in_flight].median_per_second

    def _measure(self, in_flight: int) -> None:
        if in_flight not in self._points:
            self._points[in_flight] = self._trial(in_flight)

    def _measure_again(self, in_flight: int) -> None:
        self._points[in_flight] = united(self._points[in_flight], self._trial(in_flight))

    def _trial(self, in_flight: int) -> WindowThroughput:
        if len(self._trials) == self._limits.most_trials:
            raise _OutOfTrials
        found = self._run_trial(in_flight)
        self._trials.append(found)
        return found

    def _order(self, one: int, other: int) -> int:
        """1: the first has clearly the higher throughput, -1: the lower, 0: noise hides it."""
        order = self._order_now(one, other)
        if order or not self._matters(one, other):
            return order
        doubtful = self._less_certain(one, other)
        if doubtful is None:
            return 0
        self._measure_again(doubtful)
        return self._order_now(one, other)

    def _order_now(self, one: int, other: int) -> int:
        first, second = self._points[one], self._points[other]
        return int(first.is_clearly_above(second)) - int(second.is_clearly_above(first))

    def _matters(self, one: int, other: int) -> bool:
        lower, higher = sorted((self._median(one), self._median(other)))
        return lower < AS_GOOD * higher

    def _less_certain(self, one: int, other: int) -> int | None:
        """The one with the wider interval, of those measured only once."""
        once = [size for size in (one, other) if self._times(size) == 1]
        return max(once, key=lambda size: self._points[size].uncertainty, default=None)

    def _is_certain(self, in_flight: int) -> bool:
        return self._points[in_flight].uncertainty == 0

    def _times(self, in_flight: int) -> int:
        return sum(trial.in_flight == in_flight for trial in self._trials)


@dataclass(frozen=True)
class WindowRun:
    """The run behind one trial."""

    run_id: str
    status: str


ENDS = {
    "narrowed": "the best window is known to 1 %",
    "adjacent": "the best window's neighbours are worse",
    "noise": "two steps in a row changed nothing beyond noise",
    "plateau": "throughput no longer changes with the window",
    "highest": "it still rose at the highest window",
    "trials": "all trials allowed were used",
}


def window_document(
    found: WindowSearch,
    runs: Sequence[WindowRun],
    scenario: Mapping[str, Any],
    broker: Mapping[str, Any],
    took_seconds: float,
) -> dict[str, Any]:
    """`runs` go with the trials one by one; scenario and broker as they are stored."""
    return {
        "in_flight": found.chosen.in_flight,
        "smallest_in_flight": found.smallest.in_flight,
        "median_per_second": found.chosen.median_per_second,
        "smallest_median_per_second": found.smallest.median_per_second,
        "end": found.end,
        "end_text": ENDS[found.end],
        "took_seconds": took_seconds,
        "trials": [
            {"trial": number, **asdict(run), **throughput.as_dict()}
            for number, (throughput, run) in enumerate(
                zip(found.trials, runs, strict=True), start=1
            )
        ],
        "curve": [throughput.as_dict() for throughput in found.curve],
        "scenario": scenario,
        "broker": broker,
    }


USUAL_TRIALS = 10
"""A search takes from 5 trials (a curve that is soon settled) to 20: this is within a factor of
two of both."""
STARTUP_SECONDS = 15.0
"""Until Spark and its workers are there, once for all trials."""
SAMPLE_STRETCH = 1.5
"""A sample lasts until the first arrival after its threshold, and before the first sample come the
messages that are skipped: so much longer is the phase than all thresholds together."""


class SearchTime(NamedTuple):
    """How many trials a search takes, and for how long, as a rule and at most."""

    trials: int
    most_trials: int
    seconds: float
    most_seconds: float


def search_time(phases: Phases, sampling: Sampling, most_trials: int = MOST_TRIALS) -> SearchTime:
    """A drain ends when the last message has arrived, which in a closed loop is at once, so its
    limit only counts for the longest case; complete samples end the measured phase early."""
    measured = phases.measure_seconds
    if sampling.samples:
        thresholds = sampling.samples * sampling.threshold_seconds
        measured = min(measured, SAMPLE_STRETCH * thresholds)
    always = phases.warmup_seconds + TRIAL_OVERHEAD_SECONDS
    trials = min(USUAL_TRIALS, most_trials)
    longest = always + phases.measure_seconds + phases.drain_seconds
    return SearchTime(
        trials,
        most_trials,
        STARTUP_SECONDS + trials * (always + measured),
        STARTUP_SECONDS + most_trials * longest,
    )
