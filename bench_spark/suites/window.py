"""The search for the best window: what to try next, and its document.

First the powers of a base, until throughput falls; that brackets the maximum. Then a golden-section
search on the logarithmic scale narrows the bracket down. Trials are noisy, so one throughput counts
as higher than another only when the confidence intervals of their medians do not overlap; where
the difference would matter but is in doubt, the less certain of the two is measured once more. Two
steps in a row that change nothing beyond noise end the search, and so does a number of trials.

A throughput that no longer changes with the window is a plateau: the answer is its smallest window,
and a few trials go into finding where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from bench_spark.suites.throughput import AS_GOOD, Throughput, united

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


RunTrial = Callable[[int], Throughput]


@dataclass(frozen=True)
class Limits:
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

    chosen: Throughput
    smallest: Throughput
    """The smallest window tried that is as good as the best."""
    curve: tuple[Throughput, ...]
    """One point per window, by size; of what was measured twice, the figures of all samples."""
    trials: tuple[Throughput, ...]
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


def find_window(run_trial: RunTrial, limits: Limits) -> WindowSearch:
    """The best window; `run_trial` measures one."""
    search = _Search(run_trial, limits)
    try:
        end = search.go()
    except _OutOfTrials:
        end = "trials"
    return search.result(end)


class _Search:
    def __init__(self, run_trial: RunTrial, limits: Limits) -> None:
        self._run_trial = run_trial
        self._limits = limits
        self._trials: list[Throughput] = []
        self._points: dict[int, Throughput] = {}
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
    def _best(self) -> Throughput:
        """The highest; of equal ones the smallest window."""
        return max(self._points.values(), key=lambda p: (p.median_per_second, -p.in_flight))

    @property
    def _smallest_as_good(self) -> Throughput:
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

    def _trial(self, in_flight: int) -> Throughput:
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
class TrialRun:
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
    runs: Sequence[TrialRun],
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
OVERHEAD_SECONDS = 1.0
"""Of a trial beside its load: tasks start, connections open and close, results are summed up."""
STARTUP_SECONDS = 15.0
"""Until Spark and its workers are there, once for all trials."""
SAMPLE_STRETCH = 1.5
"""A sample lasts until the first arrival after its threshold, and before the first sample come the
messages that are skipped: so much longer is the phase than all thresholds together."""


@dataclass(frozen=True)
class TrialTime:
    """What one trial takes. A drain ends when the last message has arrived, which in a closed loop
    is at once, so its limit only counts for the longest case."""

    warmup_seconds: float
    measure_seconds: float
    drain_seconds: float
    sampled_seconds: float | None = None
    """All samples' thresholds together, where complete samples end the measured phase early."""
    overhead_seconds: float = OVERHEAD_SECONDS

    @property
    def usual_seconds(self) -> float:
        measured = self.measure_seconds
        if self.sampled_seconds is not None:
            measured = min(measured, SAMPLE_STRETCH * self.sampled_seconds)
        return self.warmup_seconds + measured + self.overhead_seconds

    @property
    def longest_seconds(self) -> float:
        phases = self.warmup_seconds + self.measure_seconds + self.drain_seconds
        return phases + self.overhead_seconds


@dataclass(frozen=True)
class Estimate:
    trials: int
    most_trials: int
    seconds: float
    most_seconds: float


def estimate(trial: TrialTime, most_trials: int = MOST_TRIALS) -> Estimate:
    trials = min(USUAL_TRIALS, most_trials)
    return Estimate(
        trials,
        most_trials,
        STARTUP_SECONDS + trials * trial.usual_seconds,
        STARTUP_SECONDS + most_trials * trial.longest_seconds,
    )
