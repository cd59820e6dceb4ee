"""Runs against a baseline, metric by metric: how much, how surely, better or worse.

The document that comes out is what `--format json` prints and what table and page are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.compare.estimates import (
    Estimate,
    exact,
    of_repetitions,
    of_resamples,
    ratio_of_repetitions,
    ratio_of_resamples,
)
from bench_spark.compare.gates import Gate
from bench_spark.compare.metrics import BY_NAME, COUNTED, Metric, shown_metrics
from bench_spark.compare.series import RunSeries
from bench_spark.errors import ConfigurationError
from bench_spark.summary.document import Document

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no difference", "unknown"
NOTHING = "nothing"
BOOTSTRAP, WELCH = "block bootstrap over intervals", "Welch's t over repetitions"

_COUNTED = frozenset(metric.name for metric in COUNTED)
_NOT_OF_THE_LOAD = ("name", "description", "tags")


@dataclass(frozen=True, eq=False)
class Group:
    """Repetitions of the same thing, or one run."""

    label: str
    runs: Sequence[RunSeries]

    @property
    def run_ids(self) -> list[str]:
        return [run.document["run_id"] for run in self.runs]

    def has(self, metric: str) -> bool:
        return all(run.value(metric) is not None for run in self.runs)


@dataclass(frozen=True)
class Compared:
    metric: Metric
    baseline: Estimate
    candidate: Estimate
    ratio: Estimate | None
    verdict: str


def compare(baseline: Group, candidate: Group) -> list[Compared]:
    """Every metric that both have. The same runs give the same answer."""
    return [
        _compared(BY_NAME[name], baseline, candidate)
        for name in shown_metrics(_common(baseline, candidate))
    ]


def _common(baseline: Group, candidate: Group) -> list[str]:
    return [name for name in BY_NAME if baseline.has(name) and candidate.has(name)]


def _compared(metric: Metric, baseline: Group, candidate: Group) -> Compared:
    sides = baseline, candidate
    if metric.name in _COUNTED:
        found = [exact(_counted(metric, side)) for side in sides]
        ratio = exact(found[1].value / found[0].value) if found[0].value else None
    elif method_of(baseline, candidate) == WELCH:
        values = [_values(metric.name, side) for side in sides]
        found = [of_repetitions(side) for side in values]
        ratio = ratio_of_repetitions(values[0], values[1])
    else:
        drawn = [side.runs[0].resampled(metric.name) for side in sides]
        found = [of_resamples(side) for side in drawn]
        ratio = ratio_of_resamples(drawn[0], drawn[1])
    bounds = [any(run.is_lower_bound(metric.name) for run in side.runs) for side in sides]
    verdict = _verdict(metric, found[0], found[1], ratio)
    if any(bounds):
        verdict = _with_bounds(verdict, *bounds)
    return Compared(metric, found[0], found[1], ratio, verdict)


def method_of(baseline: Group, candidate: Group) -> str:
    return WELCH if min(len(baseline.runs), len(candidate.runs)) > 1 else BOOTSTRAP


def _values(metric: str, group: Group) -> list[float]:
    return [value for run in group.runs if (value := run.value(metric)) is not None]


def _counted(metric: Metric, group: Group) -> float:
    values = _values(metric.name, group)
    return sum(values) if metric.unit == "count" else sum(values) / len(values)


def _verdict(
    metric: Metric, baseline: Estimate, candidate: Estimate, ratio: Estimate | None
) -> str:
    if metric.name in _COUNTED:
        difference = candidate.value - baseline.value
        if difference == 0:
            return SAME
        return BETTER if (difference > 0) == metric.higher_is_better else WORSE
    if ratio is None or ratio.low is None or ratio.high is None:
        return UNKNOWN
    if ratio.low <= 1 <= ratio.high:
        return SAME
    return BETTER if (ratio.low > 1) == metric.higher_is_better else WORSE


def _with_bounds(verdict: str, is_baseline_bound: bool, is_candidate_bound: bool) -> str:
    """A duration that is at least so long may be longer: only what it cannot undo is said."""
    if verdict == WORSE and not is_baseline_bound:
        return WORSE
    if verdict == BETTER and not is_candidate_bound:
        return BETTER
    return UNKNOWN


# -- the document ----------------------------------------------------------------------------------


def comparison_document(
    title: str, pairs: Iterable[tuple[Group, Group]], gates: Sequence[Gate], is_strict: bool
) -> Document:
    """`pairs` of a baseline and what is compared with it."""
    comparisons = []
    judged: list[dict[str, Any]] = []
    for baseline, candidate in pairs:
        compared = compare(baseline, candidate)
        judged += [_judged(gate, candidate.label, compared, is_strict) for gate in gates]
        comparisons.append(
            {
                "baseline": _group_entry(baseline),
                "candidate": _group_entry(candidate),
                "method": method_of(baseline, candidate),
                "remarks": list(_remarks(baseline, candidate)),
                "scenario_differences": differences(
                    baseline.runs[0].document["scenario"], candidate.runs[0].document["scenario"]
                ),
                "metrics": [_entry(one) for one in compared],
            }
        )
    _refuse_unjudged(gates, judged)
    return {
        "title": title,
        "comparisons": comparisons,
        "gates": judged,
        "is_strict": is_strict,
        "passed": not any(gate["missed"] for gate in judged),
    }


def _refuse_unjudged(gates: Sequence[Gate], judged: Sequence[Mapping[str, Any]]) -> None:
    """A condition that nothing could be asked about would pass for ever."""
    for gate in gates:
        entries = [entry for entry in judged if entry["gate"] == gate.text]
        if all(entry["judged_by"] == NOTHING for entry in entries):
            reasons = dict.fromkeys(entry["reason"] for entry in entries)
            raise ConfigurationError(f"--fail-if: {gate.text}: {'; '.join(reasons)}")


def _group_entry(group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "runs": group.run_ids,
        "statuses": [run.document["status"] for run in group.runs],
        "broker": group.runs[0].document["broker"]["name"],
    }


def _entry(compared: Compared) -> dict[str, Any]:
    return {
        "metric": compared.metric.name,
        "unit": compared.metric.unit,
        "higher_is_better": compared.metric.higher_is_better,
        "baseline": _estimate_entry(compared.baseline),
        "candidate": _estimate_entry(compared.candidate),
        "ratio": _estimate_entry(compared.ratio),
        "verdict": compared.verdict,
    }


def _estimate_entry(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _judged(
    gate: Gate, label: str, compared: Sequence[Compared], is_strict: bool
) -> dict[str, Any]:
    by_name = {one.metric.name: one for one in compared}
    one = next((by_name[metric.name] for metric in gate.metrics if metric.name in by_name), None)
    entry = {"gate": gate.text, "candidate": label, "is_ratio": gate.is_ratio}
    if one is None:
        names = " or ".join(metric.name for metric in gate.metrics)
        return _unjudged(entry, names, f"{names} is not known of both sides")
    estimate = one.ratio if gate.is_ratio else one.candidate
    if estimate is None:
        reason = (
            f"the baseline's {one.metric.name} is 0, and nothing is so many times that; give a "
            "limit of its own instead of a ratio"
        )
        return _unjudged(entry, one.metric.name, reason)
    return entry | {
        "metric": one.metric.name,
        "unit": one.metric.unit,
        **(_estimate_entry(estimate) or {}),
        "judged_by": "value" if is_strict or not estimate.has_interval else "interval",
        "reason": None,
        "missed": gate.holds(estimate, is_strict),
    }


def _unjudged(entry: dict[str, Any], metric: str, reason: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("value", "low", "high"))
    told = {"metric": metric, "unit": None, "judged_by": NOTHING, "reason": reason, "missed": False}
    return entry | unknown | told


def _remarks(baseline: Group, candidate: Group) -> Iterator[str]:
    for side in (baseline, candidate):
        for run in side.runs:
            status = run.document["status"]
            if status != "valid":
                yield f"{run.document['run_id']} is {status}: see its audit"
    if method_of(baseline, candidate) == BOOTSTRAP:
        if max(len(baseline.runs), len(candidate.runs)) > 1:
            yield "one side has no repetitions, so only the first run of the other was compared"
        yield (
            "one run each: the intervals tell how much a run varies within itself, not from one "
            "run to the next; repeat runs and give them as RUN,RUN,RUN"
        )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys in which two scenarios differ, dotted, with both values."""
    flat = [dict(_flat(side)) for side in (one, other)]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return {
        key: [side.get(key) for side in flat]
        for key in keys
        if key.partition(".")[0] not in _NOT_OF_THE_LOAD and flat[0].get(key) != flat[1].get(key)
    }


def _flat(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
