"""What it means that a run kept its rate, and whose limit it was where it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_spark.errors import RunError
from bench_spark.report.formatting import count, per_cent, seconds
from bench_spark.report.terminal import objective_text
from bench_spark.search.ticks import Second
from bench_spark.summary.checks import LimitedBy

MOST_UNSENT = 0.001
"""Share of the messages due that a run which kept its rate may not have sent."""
LEAST_IN_TIME = 0.99
"""Share of the rate that must have been sent while it was measured, and not in the moment of grace
that follows."""
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


def judge_rate(
    document: Mapping[str, Any],
    ticks: Sequence[Second],
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
            return Kept(True)
        objective, why = missed["objective"], objective_text(missed)
    limited_by, limit = _limit(document)
    return Kept(False, limited_by, why, objective, limit)


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
    ticks: Sequence[Second],
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
    send_rate = (document.get("rates") or {}).get("send_rate")
    if send_rate is not None and send_rate < LEAST_IN_TIME * rate_per_second:
        return f"{per_cent(send_rate / rate_per_second)} sent in time"
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
