"""Whether a run reached what its scenario asks for (`slo`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.scenario.objectives import Judged, Objective, parse_objective


@dataclass(frozen=True)
class MissedWhileRunning:
    """The objective that a rolling window missed, and with that ended the run."""

    objective: str
    value: float
    after_seconds: float
    """Of the measured phase."""


def judged_objectives(
    texts: Sequence[str], document: Mapping[str, Any], stopped_by: MissedWhileRunning | None = None
) -> list[dict[str, Any]]:
    """The section `slo` of a result."""
    return [_entry(parse_objective(text), document, stopped_by) for text in texts]


def _entry(
    objective: Objective, document: Mapping[str, Any], stopped_by: MissedWhileRunning | None
) -> dict[str, Any]:
    judged = objective.judge(document)
    entry = {
        "objective": objective.text,
        "path": judged.path,
        "value": judged.value,
        "met": judged.is_met,
        "note": _note(judged),
    }
    if stopped_by is not None and stopped_by.objective == objective.text:
        entry |= {
            "value": stopped_by.value,
            "met": False,
            "note": f"in the rolling window after {stopped_by.after_seconds:.0f} s; the run was "
            "ended there",
        }
    return entry


def _note(judged: Judged) -> str | None:
    if judged.value is None:
        return "not known of this run"
    return "a lower bound" if judged.is_lower_bound else None


def missed_in_window(
    texts: Sequence[str], window: Mapping[str, Any], after_seconds: float
) -> MissedWhileRunning | None:
    """The first objective that a rolling window misses; `window` has the paths of a result that
    can be known while a run goes on, and what it has not is not judged."""
    for objective in map(parse_objective, texts):
        judged = objective.judge(window)
        if judged.value is not None and not judged.is_met:
            return MissedWhileRunning(objective.text, judged.value, after_seconds)
    return None


def is_judged_live(text: str) -> bool:
    """Whether an objective is about numbers that rolling windows have."""
    paths = parse_objective(text).paths
    return any(path.startswith(("measures.", "rates.")) for path in paths)
