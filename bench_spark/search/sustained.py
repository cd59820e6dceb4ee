"""The highest rate that is kept (C2).

The search begins with r0, the throughput of an unthrottled run, and a bracket around it: a broker
that is asked for a fixed rate may keep more than it moved under pressure, or much less. Each trial
halves the bracket on the logarithmic scale. Near the edge a broker keeps a rate now and then, so
both ends of the last bracket are decided by two of three votes; an end that is voted down opens
the bracket again, to the next rate that was tried.

An open search takes nothing for granted outside the bracket: it begins in its middle and goes up or
down until it has both a rate that is kept and one that is not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench_spark.search.rate_verdict import Kept, LimitedBy

MOST_TRIALS = 10
LOWEST_SHARE, HIGHEST_SHARE = 0.5, 1.2
"""The bracket, as shares of the unthrottled throughput."""
CLOSE_ENOUGH = 1.02
"""Ratio of the ends of the bracket at which the search is done."""
VOTES = 2
"""Equal votes, of three at most, that decide about an end of the last bracket."""
LONGEST_STEP_DOWN = 4
"""An open search goes down by 1, 2, 4, 4 ... steps: where a latency is asked for, the rate that has
it may be a small part of what can be moved."""
LOWEST_RATE = 1.0
"""Messages per second; an open search goes no lower."""


@dataclass(frozen=True)
class RateTrial:
    rate_per_second: float
    verdict: Kept


RunAtRate = Callable[[float], Kept]


@dataclass(frozen=True)
class Sustained:
    """What a search has found."""

    rate_per_second: float | None
    """The highest rate that was kept; None if none was."""
    above_per_second: float | None
    """The lowest rate that was not kept; None if the highest one allowed was."""
    limited_by: LimitedBy | None
    """Whose limit it is."""
    objective: str | None
    """The objective that was missed above, where the rate itself was kept there."""
    is_settled: bool
    """Both ends are certain and as close as asked for; else the trials were used up before."""
    trials: tuple[RateTrial, ...]

    @property
    def is_lower_bound(self) -> bool:
        """The broker may keep more: the generator gave out, or nothing higher was tried."""
        return self.limited_by != "broker"

    @property
    def text(self) -> str:
        limit = f", limited by {self.objective}" if self.objective else ""
        if self.rate_per_second is None:
            assert self.above_per_second is not None, "a rate that was not tried is not refused"
            return f"< {self.above_per_second:,.0f} msg/s{limit}"
        shown = f"{self.rate_per_second:,.0f} msg/s"
        if self.limited_by == "generator":
            return f">= {shown}, generator-limited"
        return f">= {shown}" if self.is_lower_bound else f"{shown}{limit}"


@dataclass(frozen=True)
class Bounds:
    """Where to look, and how closely."""

    lowest_share: float = LOWEST_SHARE
    highest_share: float = HIGHEST_SHARE
    close_enough: float = CLOSE_ENOUGH
    most_trials: int = MOST_TRIALS
    is_open: bool = False
    """Whether the shares are only where to begin, and no limits."""


def find_sustained(
    unthrottled_per_second: float, run_at_rate: RunAtRate, bounds: Bounds | None = None
) -> Sustained:
    """The highest rate that is kept; `run_at_rate` runs one trial."""
    if not unthrottled_per_second > 0:
        raise ValueError(f"no throughput to begin with: {unthrottled_per_second}")
    bounds = bounds or Bounds()
    votes = (_OpenVotes if bounds.is_open else _Votes)(
        unthrottled_per_second * bounds.lowest_share,
        unthrottled_per_second * bounds.highest_share,
        bounds.close_enough,
    )
    while len(votes.trials) < bounds.most_trials:
        rate = votes.next_rate()
        if rate is None:
            break
        votes.add(RateTrial(rate, run_at_rate(rate)))
    return votes.result()


def _plain(rate: float) -> float:
    """Four digits: a rate that can be read and typed, and much finer than any answer."""
    return float(f"{rate:.4g}")


class _Votes:
    """What the trials say about each rate. The ends of the first bracket are believed untried
    until the search comes to rest at one of them."""

    def __init__(self, lowest: float, highest: float, close_enough: float) -> None:
        self._rates = [_plain(lowest), _plain(highest)]
        self._close_enough = close_enough
        self.trials: list[RateTrial] = []

    def add(self, trial: RateTrial) -> None:
        self.trials.append(trial)
        if trial.rate_per_second not in self._rates:
            self._rates = sorted([*self._rates, trial.rate_per_second])

    def next_rate(self) -> float | None:
        """Where another vote is needed; None when both ends are certain."""
        low, high = self._bracket()
        if low is not None and high is not None and high / low > self._close_enough:
            middle = _plain(math.sqrt(low * high))
            if low < middle < high:
                return middle
        # The upper end first: that a rate was not kept may have been an accident.
        ends = [end for end in (high, low) if end is not None]
        return next((end for end in ends if not self._is_certain(end)), None)

    def result(self) -> Sustained:
        low, high = self._bracket()
        kept = low if low is not None and self._count(low, True) else None
        refused = high if high is not None and self._count(high, False) else None
        blamed, objective = self._blamed(refused)
        is_settled = self.next_rate() is None
        return Sustained(kept, refused, blamed, objective, is_settled, tuple(self.trials))

    def _bracket(self) -> tuple[float | None, float | None]:
        """The highest rate that counts as kept, below the lowest that does not."""
        refused = [rate for rate in self._rates if not self._is_kept(rate)]
        high = refused[0] if refused else None
        kept = [rate for rate in self._rates if high is None or rate < high]
        return (kept[-1] if kept else None), high

    def _is_kept(self, rate: float) -> bool:
        """By majority. An even vote counts as kept nowhere: a claim needs more than that."""
        kept, refused = self._count(rate, True), self._count(rate, False)
        if not kept and not refused:
            return rate == self._rates[0]
        return kept > refused

    def _is_certain(self, rate: float) -> bool:
        return max(self._count(rate, True), self._count(rate, False)) >= VOTES

    def _count(self, rate: float, kept: bool) -> int:
        return sum(
            trial.rate_per_second == rate and trial.verdict.kept is kept for trial in self.trials
        )

    def _blamed(self, refused: float | None) -> tuple[LimitedBy | None, str | None]:
        """Who failed at that rate, and the objective if it was one. In doubt the generator: that
        claims less of the broker."""
        verdicts = [
            trial.verdict
            for trial in self.trials
            if trial.rate_per_second == refused and not trial.verdict.kept
        ]
        if not verdicts:
            return None, None
        objective, _ = Counter(verdict.objective for verdict in verdicts).most_common(1)[0]
        by_broker = sum(verdict.limited_by == "broker" for verdict in verdicts)
        return ("broker" if by_broker > len(verdicts) / 2 else "generator"), objective


class _OpenVotes(_Votes):
    """Nothing is believed of a rate that was not tried."""

    def __init__(self, lowest: float, highest: float, close_enough: float) -> None:
        super().__init__(lowest, highest, close_enough)
        self._rates = []
        self._first = max(LOWEST_RATE, _plain(math.sqrt(lowest * highest)))
        self._step = math.sqrt(highest / lowest)

    def next_rate(self) -> float | None:
        low, high = self._bracket()
        if low is None and high is None:
            return self._first
        if high is None:
            return _plain(self._rates[-1] * self._step)
        if low is None and high > LOWEST_RATE:
            steps = min(2 ** (len(self._rates) - 1), LONGEST_STEP_DOWN)
            return max(LOWEST_RATE, _plain(self._rates[0] / self._step**steps))
        return super().next_rate()
