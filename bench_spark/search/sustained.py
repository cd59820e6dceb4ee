"""The highest rate that is kept, and what it means that a run kept its rate (C2).

The search begins with r0, the throughput of an unthrottled run, and a bracket around it: a broker
that is asked for a fixed rate may keep more than it moved under pressure, or much less. Each trial
halves the bracket on the logarithmic scale. Near the edge a broker keeps a rate now and then, so
both ends of the last bracket are decided by two of three votes; an end that is voted down opens
the bracket again, to the next rate that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bench_spark.search.ticks import Second
from bench_spark.summary.audit import BUSY_CORE

MOST_TRIALS = 10
LOWEST_SHARE, HIGHEST_SHARE = 0.5, 1.2
"""The bracket, as shares of the unthrottled throughput."""
CLOSE_ENOUGH = 1.02
"""Ratio of the ends of the bracket at which the search is done."""
VOTES = 2
"""Equal votes, of three at most, that decide about an end of the last bracket."""

MOST_UNSENT = 0.001
"""Share of the messages due that a run which kept its rate may not have sent."""
LEAST_IN_TIME = 0.99
"""Share of the rate that must have been sent while it was measured, and not in the moment of grace
that follows."""
MOST_GROWTH = 0.005
"""How fast the backlog may grow, as a share of the rate."""
MOST_BACKLOG_SECONDS = 1.0

LimitedBy = Literal["broker", "generator"]


@dataclass(frozen=True)
class Kept:
    """Whether a run kept its rate and, if not, who is to blame."""

    kept: bool
    limited_by: LimitedBy | None = None


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
    trials: tuple[RateTrial, ...]

    @property
    def is_lower_bound(self) -> bool:
        """The broker may keep more: the generator gave out, or nothing higher was tried."""
        return self.limited_by != "broker"

    @property
    def text(self) -> str:
        if self.rate_per_second is None:
            assert self.above_per_second is not None, "a rate that was not tried is not refused"
            return f"< {self.above_per_second:,.0f} msg/s"
        shown = f"{self.rate_per_second:,.0f} msg/s"
        if self.limited_by == "generator":
            return f">= {shown}, generator-limited"
        return f">= {shown}" if self.is_lower_bound else shown


@dataclass(frozen=True)
class Bounds:
    """Where to look, and how closely."""

    lowest_share: float = LOWEST_SHARE
    highest_share: float = HIGHEST_SHARE
    close_enough: float = CLOSE_ENOUGH
    most_trials: int = MOST_TRIALS


def find_sustained(
    unthrottled_per_second: float, run_at_rate: RunAtRate, bounds: Bounds | None = None
) -> Sustained:
    """The highest rate that is kept; `run_at_rate` runs one trial."""
    if not unthrottled_per_second > 0:
        raise ValueError(f"no throughput to begin with: {unthrottled_per_second}")
    bounds = bounds or Bounds()
    votes = _Votes(
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


class _Votes:
    """What the trials say about each rate. The ends of the first bracket are believed untried
    until the search comes to rest at one of them."""

    def __init__(self, lowest: float, highest: float, close_enough: float) -> None:
        self._rates = [lowest, highest]
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
            return math.sqrt(low * high)
        # The upper end first: that a rate was not kept may have been an accident.
        ends = [end for end in (high, low) if end is not None]
        return next((end for end in ends if not self._is_certain(end)), None)

    def result(self) -> Sustained:
        low, high = self._bracket()
        kept = low if low is not None and self._count(low, True) else None
        refused = high if high is not None and self._count(high, False) else None
        return Sustained(kept, refused, self._blamed(refused), tuple(self.trials))

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

    def _blamed(self, refused: float | None) -> LimitedBy | None:
        """Who failed at that rate. In doubt the generator: that claims less of the broker."""
        blamed = [
            trial.verdict.limited_by
            for trial in self.trials
            if trial.rate_per_second == refused and not trial.verdict.kept
        ]
        if not blamed:
            return None
        return "broker" if blamed.count("broker") > len(blamed) / 2 else "generator"


def judge_rate(
    document: Mapping[str, Any],
    ticks: Sequence[Second],
    rate_per_second: float,
    backlog_at_start: int = 0,
) -> Kept:
    """Whether the run of a result document kept its rate.

    `ticks` are those of the measured phase (`measured_ticks`); `backlog_at_start` is how many
    messages of the warm-up were still on their way before them. A rate that was not kept is the
    generator's failure if an agent had no CPU left, else the broker's.
    """
    if _is_kept(document, ticks, rate_per_second, backlog_at_start):
        return Kept(True)
    share = (document.get("resources") or {}).get("busiest_agent_share_of_core")
    is_generator = share is not None and share >= BUSY_CORE
    return Kept(False, "generator" if is_generator else "broker")


def _is_kept(
    document: Mapping[str, Any],
    ticks: Sequence[Second],
    rate_per_second: float,
    backlog_at_start: int,
) -> bool:
    counts = document.get("counts") or {}
    due, sent, arrived = (counts.get(name) or 0 for name in ("due", "sent", "received_once"))
    if document.get("status") in ("failed", "aborted") or not due or not ticks:
        return False
    send_rate = (document.get("rates") or {}).get("send_rate")
    if send_rate is not None and send_rate < LEAST_IN_TIME * rate_per_second:
        return False
    copies = document.get("copies") or 1
    backlog = backlogs(ticks, backlog_at_start, copies)
    deliveries_per_second = rate_per_second * copies
    return bool(
        due - sent <= MOST_UNSENT * due
        and arrived >= sent * copies
        and growth_per_second(ticks, backlog) <= MOST_GROWTH * deliveries_per_second
        and max(backlog) < MOST_BACKLOG_SECONDS * deliveries_per_second
    )


def backlogs(ticks: Sequence[Second], at_start: int = 0, copies: int = 1) -> list[int]:
    """Deliveries still to come at the end of each tick; a message has as many as `copies`."""
    growth = np.cumsum([tick.sent * copies - tick.received for tick in ticks])
    return [int(at_start + more) for more in growth]


def growth_per_second(ticks: Sequence[Second], backlog: Sequence[int]) -> float:
    """Slope of the line through the backlog that fits best; 0 if there is but one tick."""
    if len(ticks) < 2:
        return 0.0
    ends = np.cumsum([tick.seconds for tick in ticks])
    return float(np.polyfit(ends, np.asarray(backlog, dtype=np.float64), 1)[0])
