"""The search for the highest sustained rate: what to try next, and whether a rate was kept.

The search begins with r0, the throughput of an unthrottled run, and a bracket around it: a broker
that is asked for a fixed rate may keep more than it moved under pressure, or much less. Each trial
halves the bracket on the logarithmic scale. Near the edge a broker keeps a rate now and then, so
both ends of the last bracket are decided by two of three votes; an end that is voted down opens
the bracket again, to the next rate that was tried.

A search is settled when both ends have their votes, are as close as asked for, and no rate above
them was kept as often as not. A rate that contradicts the ends so is tried again, as long as there
are trials; else the answer is a range.

An open search takes nothing for granted outside the bracket: it begins in its middle and goes up or
down until it has both a rate that is kept and one that is not.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np

from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID, RunError
from bench_spark.report.descriptions import objective_text
from bench_spark.report.formatting import count, per_cent, seconds
from bench_spark.results.audit import MOST_UNSENT
from bench_spark.results.checks import LimitedBy
from bench_spark.results.counts import is_late
from bench_spark.results.document import Document
from bench_spark.suites.window import MeasuredTick

MOST_GROWTH = 0.005
"""How fast the backlog may grow, as a share of the rate."""
MOST_BACKLOG_SECONDS = 1.0


@dataclass(frozen=True)
class Kept:
    """Whether a run kept its rate and, if not, who is to blame."""

    kept: bool
    limited_by: LimitedBy | None = None
    why: str = ""
    """What fell short, in words."""
    objective: str | None = None
    """The objective that was missed, where nothing else fell short."""
    limit: str = ""
    """What the run's own audit says of the limit; empty where it says nothing."""
    document: Document = field(default_factory=dict, repr=False, compare=False)
    """The result that was judged."""


def judge_rate(
    document: Document,
    ticks: Sequence[MeasuredTick],
    rate_per_second: float,
    backlog_at_start: int = 0,
) -> Kept:
    """Whether the run of a result document kept its rate, and its objectives with it.

    `rate_per_second` is that of the whole run. `ticks` are those of the measured phase
    (`measured_ticks`); `backlog_at_start` is how many messages of the warm-up were still on their
    way before them. Whose limit a rate was that was not kept is for the run's own audit to say;
    where that names none, it is the broker's. Raises RunError if an objective is about a number
    that the run does not have: no rate could meet it.
    """
    objective = None
    why = _shortfall(document, ticks, rate_per_second, backlog_at_start)
    if why is None:
        missed = _missed_objective(document)
        if missed is None:
            return Kept(True, document=document)
        objective, why = missed["objective"], objective_text(missed)
    limited_by, limit = _limit(document)
    return Kept(False, limited_by, why, objective, limit, document)


def _limit(document: Mapping[str, Any]) -> tuple[LimitedBy, str]:
    """By the first check of the audit that failed, else by the first warning that names a limit."""
    checks = (document.get("audit") or {}).get("checks", ())
    failed = [check for check in checks if check["verdict"] == "fail"]
    warned = [check for check in checks if check["verdict"] == "warn" and check.get("limited_by")]
    for check in (*failed, *warned):
        return check.get("limited_by") or "broker", check["text"]
    return "broker", ""


def _shortfall(
    document: Mapping[str, Any],
    ticks: Sequence[MeasuredTick],
    rate_per_second: float,
    backlog_at_start: int,
) -> str | None:
    """What says that the rate was not kept; None if nothing does."""
    status = document.get("status")
    if status in ("failed", "aborted"):
        return f"the run {'failed' if status == 'failed' else 'was aborted'}"
    counts = document.get("counts") or {}
    due, sent, arrived = (counts.get(name) or 0 for name in ("due", "sent", "received_once"))
    if not due or not ticks:
        return "nothing was sent"
    in_time, agents = sent - (counts.get("late") or 0), len(document.get("agents") or ())
    if is_late(due, in_time, document.get("measured_seconds") or 0.0, agents):
        return f"{per_cent(in_time / due)} sent in time"
    if due - sent > MOST_UNSENT * due:
        return f"{per_cent((due - sent) / due)} unsent"
    copies = document.get("copies") or 1
    if arrived < sent * copies:
        return f"{count(sent * copies - arrived)} not received"
    deliveries_per_second = rate_per_second * copies
    backlog = backlogs(ticks, backlog_at_start, copies)
    growth = growth_per_second(ticks, backlog) / deliveries_per_second
    if growth > MOST_GROWTH:
        return f"backlog grew by {per_cent(growth)}"
    most = max(backlog) / deliveries_per_second
    return None if most < MOST_BACKLOG_SECONDS else f"backlog of {seconds(most)}"


def _missed_objective(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    missed = [one for one in document.get("slo") or () if not one["met"]]
    for one in missed:
        if one["value"] is None:
            raise RunError(
                f"slo: {one['objective']}: not known of run {document.get('run_id')}, so that no "
                "rate can meet it; leave it out"
            )
    return missed[0] if missed else None


def backlogs(ticks: Sequence[MeasuredTick], at_start: int = 0, copies: int = 1) -> list[int]:
    """Deliveries still to come at the end of each tick; a message has as many as `copies`."""
    growth = np.cumsum([tick.sent * copies - tick.received for tick in ticks])
    return [int(at_start + more) for more in growth]


def growth_per_second(ticks: Sequence[MeasuredTick], backlog: Sequence[int]) -> float:
    """Slope of the line through the backlog that fits best; 0 if there is but one tick."""
    if len(ticks) < 2:
        return 0.0
    ends = np.cumsum([tick.seconds for tick in ticks])
    return float(np.polyfit(ends, np.asarray(backlog, dtype=np.float64), 1)[0])


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

    @property
    def document(self) -> Document:
        return self.verdict.document


RunAtRate = Callable[[float], Kept]


End = Literal["settled", "nothing_kept", "disputed", "trials"]
"""How a search has ended: both ends are certain and as close as asked for; the same, with no rate
that was kept; trials at about the same rate disagree; the trials were used up before."""
SETTLED: tuple[End, ...] = ("settled", "nothing_kept")
ENDS: Mapping[End, str] = {
    "settled": "both ends were tried twice, and are as close as asked for",
    "nothing_kept": "no rate was kept, down to the lowest there is",
    "disputed": "trials at about the same rate disagree",
    "trials": "all trials allowed were used",
}


@dataclass(frozen=True)
class Sustained:
    """What a search has found."""

    rate_per_second: float | None
    """The highest rate that was kept; None if none was."""
    above_per_second: float | None
    """The lowest rate that was not kept; None if the highest one allowed was."""
    range_high_per_second: float | None
    """The lowest rate from which on none was kept as often as not: above `above_per_second` where
    trials disagree; None if there is no such rate."""
    limited_by: LimitedBy | None
    """Whose limit it is, as the audits of the trials at `above_per_second` say."""
    limit: str
    """The words of such an audit; empty where they say nothing."""
    objective: str | None
    """The objective that was missed above, where the rate itself was kept there."""
    end: End
    trials: tuple[RateTrial, ...]
    edge: tuple[int, ...]
    """Places in `trials` of the two that the answer hangs on: the highest that was kept, and the
    one that was not kept nearest to it; fewer where there is no such trial."""

    @property
    def is_settled(self) -> bool:
        return self.end in SETTLED

    @property
    def is_lower_bound(self) -> bool:
        """The broker may keep more: something else gave out, or nothing higher was tried."""
        return self.limited_by != "broker"

    @property
    def text(self) -> str:
        return self._answer if self.is_settled else f"{self._answer}, not settled: {self._range}"

    @property
    def _answer(self) -> str:
        limit = f", limited by {self.objective}" if self.objective else ""
        if self.rate_per_second is None:
            assert self.above_per_second is not None, "a rate that was not tried is not refused"
            return f"< {self.above_per_second:,.0f} msg/s{limit}"
        shown = f"{self.rate_per_second:,.0f} msg/s"
        if self.limited_by == "generator":
            return f">= {shown}, generator-limited"
        if self.limited_by == "host":
            return f">= {shown}, limited by the host's CPU"
        return f">= {shown}" if self.is_lower_bound else f"{shown}{limit}"

    @property
    def _range(self) -> str:
        low, high = self.rate_per_second, self.range_high_per_second
        if low is None:
            return "nothing was kept" if high is None else f"below {high:,.0f} msg/s"
        return f"above {low:,.0f} msg/s" if high is None else f"{low:,.0f} to {high:,.0f} msg/s"


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
        doubtful = [end for end in (high, low) if end is not None] + self._contradicting(high)
        return next((rate for rate in doubtful if not self._is_certain(rate)), None)

    def result(self) -> Sustained:
        low, high = self._bracket()
        kept = low if low is not None and self._count(low, True) else None
        refused = high if high is not None and self._count(high, False) else None
        contradicting = self._contradicting(high)
        from_there_on = [
            rate
            for rate in self._rates
            if self._count(rate, False) and (not contradicting or rate > contradicting[-1])
        ]
        blamed = self._blamed(refused)
        return Sustained(
            rate_per_second=kept,
            above_per_second=refused,
            range_high_per_second=refused
            if not contradicting
            else min(from_there_on, default=None),
            limited_by=blamed.limited_by if blamed else None,
            limit=blamed.limit if blamed else "",
            objective=blamed.objective if blamed else None,
            end=self._end(kept, bool(contradicting)),
            trials=tuple(self.trials),
            edge=tuple(self._edge(kept, refused, contradicting)),
        )

    def _end(self, kept: float | None, is_disputed: bool) -> End:
        if is_disputed:
            return "disputed"
        if self.next_rate() is not None:
            return "trials"
        return "nothing_kept" if kept is None else "settled"

    def _contradicting(self, high: float | None) -> list[float]:
        """Rates that were kept as often as not, though the lower one `high` counts as not kept."""
        return [
            rate
            for rate in self._rates
            if high is not None
            and rate >= high
            and 0 < self._count(rate, True) >= self._count(rate, False)
        ]

    def _edge(
        self, kept: float | None, refused: float | None, contradicting: Sequence[float]
    ) -> Iterator[int]:
        """The newest trial that was kept and the newest that was not, where they meet."""
        if contradicting:
            kept = contradicting[-1]
            refused = max(rate for rate in self._rates if rate <= kept and self._count(rate, False))
        for rate, is_kept in ((kept, True), (refused, False)):
            places = [
                place
                for place, trial in enumerate(self.trials)
                if trial.rate_per_second == rate and trial.verdict.kept is is_kept
            ]
            yield from places[-1:]

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

    def _blamed(self, refused: float | None) -> Kept | None:
        """The verdict at that rate that names the limit. In doubt it is not the broker's: that
        claims less of it."""
        verdicts = [
            trial.verdict
            for trial in self.trials
            if trial.rate_per_second == refused and not trial.verdict.kept
        ]
        others = [verdict for verdict in verdicts if verdict.limited_by != "broker"]
        if 2 * len(others) >= len(verdicts):
            verdicts = others
        objectives = Counter(verdict.objective for verdict in verdicts).most_common(1)
        return next((found for found in verdicts if found.objective == objectives[0][0]), None)


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


def standing_for(found: Sustained) -> RateTrial:
    """The trial that stands for the answer: at the rate that was found, one that kept it, and is
    valid if there is such; if no rate was kept, one at the lowest."""
    rate = found.rate_per_second
    if rate is None:
        rate = min(trial.rate_per_second for trial in found.trials)
    at_rate = [trial for trial in found.trials if trial.rate_per_second == rate]
    return max(at_rate, key=lambda trial: (trial.verdict.kept, trial.document["status"] == "valid"))


def received_per_second(document: Mapping[str, Any]) -> float:
    """The throughput that a search starts from, of messages: copies are not counted."""
    return float(document["rates"]["receive_rate"] or 0.0) / (document.get("copies") or 1)


def status_of(found: Sustained) -> str:
    """Valid if a rate was found, the search is settled, and the run that stands for it is valid.

    Loads above the answer are degraded by their nature and do not count."""
    is_found = found.rate_per_second is not None and found.is_settled
    is_valid = is_found and standing_for(found).document["status"] == "valid"
    return "valid" if is_valid else "degraded"


def exit_code_of(found: Sustained, all_codes: Iterable[int]) -> int:
    """Of a search: by its status, but confirmed messages that were lost count in whatever load."""
    if EXIT_DATA_LOST in all_codes:
        return EXIT_DATA_LOST
    return EXIT_VALID if status_of(found) == "valid" else EXIT_DEGRADED


PERCENTILES = ("p50", "p99")
HONEST, FALLBACK = "delivery_latency", "latency"
"""The first counts from the moment at which a message was due, and so contains what a rate that is
too high does to it; bodies that carry one time only have the other."""


def rate_document(
    found: Sustained,
    unthrottled: Document,
    scenario: Mapping[str, Any],
    broker: Mapping[str, Any],
    took_seconds: float,
) -> dict[str, Any]:
    """`unthrottled` is the result that the search began with; scenario and broker as they are
    stored."""
    standing = standing_for(found)
    measure = _measure_of(standing.document)
    trials = [
        _trial(1, unthrottled, measure),
        *(_trial(number, one.document, measure, one) for number, one in enumerate(found.trials, 2)),
    ]
    return {
        "status": status_of(found),
        "rate_per_second": found.rate_per_second,
        "above_per_second": found.above_per_second,
        "range_low_per_second": found.rate_per_second,
        "range_high_per_second": found.range_high_per_second,
        "is_settled": found.is_settled,
        "is_lower_bound": found.is_lower_bound,
        "limited_by": found.limited_by,
        "limit": found.limit,
        "objective": found.objective,
        "text": found.text,
        "run_id": standing.document["run_id"],
        "measure": measure,
        **_percentiles(standing.document, measure),
        "unthrottled_per_second": received_per_second(unthrottled),
        "end": found.end,
        "end_text": ENDS[found.end],
        "edge_trials": [trials[place + 1]["trial"] for place in found.edge],
        "took_seconds": took_seconds,
        "trials": trials,
        "curve": _curve(trials),
        "scenario": scenario,
        "broker": broker,
    }


def _measure_of(document: Document) -> str:
    return HONEST if HONEST in (document.get("measures") or {}) else FALLBACK


def _trial(
    number: int, document: Document, measure: str, trial: RateTrial | None = None
) -> dict[str, Any]:
    """Without a trial: the unthrottled run, which has no schedule to be late for, no verdict."""
    verdict = trial.verdict if trial else Kept(True)
    return {
        "trial": number,
        "run_id": document["run_id"],
        "status": document["status"],
        "rate_per_second": trial.rate_per_second if trial else None,
        "sent_per_second": document["rates"]["send_rate"],
        "received_per_second": received_per_second(document),
        "kept": verdict.kept if trial else None,
        "limited_by": verdict.limited_by,
        "objective": verdict.objective,
        "why": verdict.why,
        "limit": verdict.limit,
        **_percentiles(document, measure if trial else FALLBACK),
    }


def _percentiles(document: Document, measure: str) -> dict[str, Any]:
    found = (document.get("measures") or {}).get(measure) or {}
    bounds = found.get("lower_bounds") or ()
    values = {f"{name}_us": found.get(f"{name}_us") for name in PERCENTILES}
    return values | {f"{name}_is_lower_bound": f"{name}_us" in bounds for name in PERCENTILES}


def _curve(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Latency over the rate, in order of rates: of what was tried several times the middle."""
    paced = [trial for trial in trials if trial["rate_per_second"] is not None]
    paced.sort(key=lambda trial: trial["rate_per_second"])
    return [
        _point(rate, list(group))
        for rate, group in groupby(paced, key=lambda trial: trial["rate_per_second"])
    ]


def _point(rate_per_second: float, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kept = sum(trial["kept"] for trial in trials)
    point: dict[str, Any] = {
        "rate_per_second": rate_per_second,
        "trials": len(trials),
        "trials_kept": kept,
        "kept": kept > len(trials) / 2,
    }
    for name in PERCENTILES:
        known = [trial[f"{name}_us"] for trial in trials if trial[f"{name}_us"] is not None]
        point |= {
            f"{name}_us": statistics.median(known) if known else None,
            f"{name}_low_us": min(known, default=None),
            f"{name}_high_us": max(known, default=None),
        }
    return point
