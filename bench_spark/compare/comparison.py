"""Runs against a baseline, metric by metric: how much, how surely, better or worse.

The document that comes out is what `--format json` prints and what table and page are made of.

Conditions for pipelines: `p99 > 1.10x`, `receive_rate < 0.95x`, `latency.p99 > 5ms`, `lost > 0`. A
gate is missed when its condition holds. Unless it is to be strict, it must hold for the whole
confidence interval: a pipeline that fails by chance is soon ignored. Where the interval is missing,
or too wide to tell, the number itself decides: a gate is not passed because a measurement is poor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.compare.estimates import (
    FEWEST_BLOCKS,
    Estimate,
    Resampled,
    exact,
    of_repetitions,
    of_resamples,
    ratio_of_repetitions,
    ratio_of_resamples,
)
from bench_spark.compare.series import BY_NAME, COUNTED, Metric, RunSeries, named, shown_metrics
from bench_spark.config.models import comparable_scenario
from bench_spark.config.objectives import FACTORS, OPERATORS, parse_condition, wrong_unit
from bench_spark.config.problems import shown_value
from bench_spark.errors import ConfigurationError
from bench_spark.report.descriptions import brokers_of, environment_of
from bench_spark.report.formatting import dotted
from bench_spark.results.document import Document

RULE = (
    "METRIC OPERATOR NUMBER with an operator of >, >=, <, <= and a number followed by x "
    "(times the baseline), us, ms or s (a duration), % (a share), /s (a rate), k (thousands), or "
    "nothing"
)

_OPERATORS = (">", ">=", "<", "<=")
_RATIO = "x"


@dataclass(frozen=True)
class Gate:
    text: str
    metrics: tuple[Metric, ...]
    """What it is about: the first of these that the runs have."""
    operator: str
    threshold: float
    """A ratio, or in the unit of the metric."""
    is_ratio: bool

    def cannot_tell(self, estimate: Estimate, practical: float) -> bool:
        """Whether the interval is missing, or holds the limit and a change of practical size beyond
        it."""
        is_vague = estimate.is_vague_above if self._is_above else estimate.is_vague_below
        return is_vague(self.threshold, practical)

    def holds(self, estimate: Estimate, by_value: bool) -> bool:
        """`by_value`: for the number itself, and not for its whole interval."""
        # The end of the interval that is nearest to the threshold's other side.
        end = estimate.low if self._is_above else estimate.high
        judged = estimate.value if by_value or end is None else end
        return OPERATORS[self.operator](judged, self.threshold)

    @property
    def _is_above(self) -> bool:
        return self.operator.startswith(">")


def parse_gate(text: str, option: str = "--fail-if") -> Gate:
    condition = parse_condition(text, _OPERATORS)
    if condition is None:
        raise ConfigurationError(f"{option}: {shown_value(text)} cannot be read; allowed: {RULE}")
    metrics = named(condition.name, option)
    if condition.unit == _RATIO:
        return Gate(condition.text, metrics, condition.operator, condition.number, is_ratio=True)
    factors = FACTORS[metrics[0].unit]
    if condition.unit not in factors:
        problem = wrong_unit(condition, factors, (_RATIO,))
        raise ConfigurationError(f"{option}: {shown_value(text)}: {problem}")
    threshold = condition.number * factors[condition.unit]
    return Gate(condition.text, metrics, condition.operator, threshold, is_ratio=False)


BETTER, WORSE, SAME, CANNOT_TELL = "better", "worse", "no difference", "cannot tell"
NOT_COMPARABLE = "not comparable"
NOTHING = "nothing"
ENOUGH_REPETITIONS = 5
"""With fewer on a side, it is their number that makes an interval wide."""
BOOTSTRAP, WELCH = "block bootstrap over intervals", "Welch's t over repetitions"

_COUNTED = frozenset(metric.name for metric in COUNTED)
_NOT_OF_THE_LOAD = ("name", "description", "tags", "audit")
_OF_MEASURING = (
    *("agents", "placement", "metrics_by", "trace", "slo", "sampling", "histogram"),
    *("interval_seconds", "keep_destinations", "dataset.found"),
    *("phases.measure_seconds", "phases.drain_seconds"),
)
"""Keys that say how, and for how long, a load is measured: runs that differ in them only were asked
for the same."""
_SECTIONS_OF_PROTOCOLS = ("amqp", "kafka", "mqtt", "http", "tcp")


@dataclass(frozen=True, eq=False)
class Group:
    """Repetitions of the same thing, or one run."""

    label: str
    runs: Sequence[RunSeries]
    found_keys: Sequence[str] = ()
    """Keys whose values were not asked for, but found by a search."""

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
    weakness: str
    """What makes the interval wide, or leaves none: the reason where nothing can be decided."""


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
    weakness = _weakness_of_repetitions(baseline, candidate)
    if metric.name in _COUNTED:
        found = [exact(_counted(metric, side)) for side in sides]
        ratio = exact(found[1].value / found[0].value) if found[0].value else None
    elif method_of(baseline, candidate) == WELCH:
        values = [_values(metric.name, side) for side in sides]
        found = [of_repetitions(side) for side in values]
        ratio = ratio_of_repetitions(values[0], values[1])
        if min(map(min, values)) <= 0:
            weakness = "a repetition has the value 0, so there is no interval"
    else:
        drawn = [side.runs[0].resampled(metric.name) for side in sides]
        found = [of_resamples(side) for side in drawn]
        ratio = ratio_of_resamples(drawn[0], drawn[1])
        if not all(side.is_enough for side in drawn):
            weakness = _weakness_of_resamples(drawn)
    verdict = _verdict(metric, found[0], found[1], ratio)
    if ratio is None and verdict == CANNOT_TELL:
        weakness = "the baseline is 0"
    bounds = [any(run.is_lower_bound(metric.name) for run in side.runs) for side in sides]
    if any(bounds) and _with_bounds(verdict, *bounds) != verdict:
        verdict, weakness = CANNOT_TELL, "a lower bound: slower messages are missing from it"
    return Compared(metric, found[0], found[1], ratio, verdict, weakness)


def _weakness_of_repetitions(baseline: Group, candidate: Group) -> str:
    if method_of(baseline, candidate) == BOOTSTRAP:
        return "too few repetitions (one run each): its interval is wide"
    numbers = len(baseline.runs), len(candidate.runs)
    varied = f"({numbers[0]} and {numbers[1]}): its interval is wide"
    is_few = min(numbers) < ENOUGH_REPETITIONS
    return f"{'too few repetitions' if is_few else 'the repetitions vary too much'} {varied}"


def _weakness_of_resamples(drawn: Sequence[Resampled]) -> str:
    if any(not len(side.samples) for side in drawn):
        return "the store has no seconds of a run, so there is no interval"
    if any(side.blocks < FEWEST_BLOCKS for side in drawn):
        return "a run under 10 s has no interval"
    return "some seconds of a run have no value, so there is no interval"


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
    if baseline.value == candidate.value == 0:
        return SAME
    if ratio is None or ratio.low is None or ratio.high is None:
        return CANNOT_TELL
    if ratio.low <= 1 <= ratio.high:
        is_vague = ratio.is_vague_above(1, metric.practical) or ratio.is_vague_below(
            1, metric.practical
        )
        return CANNOT_TELL if is_vague else SAME
    return BETTER if (ratio.low > 1) == metric.higher_is_better else WORSE


def _with_bounds(verdict: str, is_baseline_bound: bool, is_candidate_bound: bool) -> str:
    """A duration that is at least so long may be longer: only what it cannot undo is said."""
    if verdict == WORSE and not is_baseline_bound:
        return WORSE
    if verdict == BETTER and not is_candidate_bound:
        return BETTER
    return CANNOT_TELL


# -- the document ----------------------------------------------------------------------------------


def comparison_document(
    title: str,
    pairs: Iterable[tuple[Group, Group]],
    gates: Sequence[Gate],
    is_strict: bool,
    is_across: bool = False,
    takes_degraded: bool = False,
) -> Document:
    """`pairs` of a baseline and what is compared with it; `is_across`: although they differ in what
    was asked for; `takes_degraded`: gates judge runs that are not valid too."""
    comparisons = []
    judged: list[dict[str, Any]] = []
    for baseline, candidate in pairs:
        compared = compare(baseline, candidate)
        differs_in = asked_differences(baseline, candidate)
        is_comparable = is_across or not differs_in
        objection = None
        if not is_comparable:
            names = ", ".join(differs_in)
            objection = f"not comparable: what was asked differs in {names}; see --across"
        elif not takes_degraded:
            objection = next(_not_valid(baseline, candidate), None)
        judged += [
            _judged(gate, candidate.label, compared, is_strict)
            if objection is None
            else _refused(gate, candidate.label, objection)
            for gate in gates
        ]
        comparisons.append(
            {
                "baseline": _group_entry(baseline),
                "candidate": _group_entry(candidate),
                "is_comparable": is_comparable,
                "differs_in": differs_in,
                "method": method_of(baseline, candidate),
                "remarks": list(_remarks(baseline, candidate)),
                "scenario_differences": differences(
                    baseline.runs[0].document["scenario"], candidate.runs[0].document["scenario"]
                ),
                "metrics": [_entry(one, is_comparable) for one in compared],
            }
        )
    _refuse_unjudged(gates, judged)
    return {
        "title": title,
        "comparisons": comparisons,
        "gates": judged,
        "is_strict": is_strict,
        "is_across": is_across,
        "takes_degraded": takes_degraded,
        "passed": not any(gate["missed"] for gate in judged),
    }


def _refuse_unjudged(gates: Sequence[Gate], judged: Sequence[Mapping[str, Any]]) -> None:
    """A condition that nothing could be asked about would pass for ever."""
    for gate in gates:
        entries = [entry for entry in judged if entry["gate"] == gate.text]
        if all(entry["judged_by"] == NOTHING and not entry["missed"] for entry in entries):
            reasons = dict.fromkeys(entry["reason"] for entry in entries)
            raise ConfigurationError(f"--fail-if: {gate.text}: {'; '.join(reasons)}")


def _group_entry(group: Group) -> dict[str, Any]:
    documents = [run.document for run in group.runs]
    machines = [environment_of(document.get("environment") or {}) for document in documents]
    return {
        "label": group.label,
        "runs": group.run_ids,
        "statuses": [run.document["status"] for run in group.runs],
        "broker": group.runs[0].document["broker"]["name"],
        "brokers": list(dict.fromkeys(map(brokers_of, documents))),
        "machines": list(dict.fromkeys(machines)),
    }


def _entry(compared: Compared, is_comparable: bool) -> dict[str, Any]:
    is_undecided = is_comparable and compared.verdict == CANNOT_TELL
    return {
        "metric": compared.metric.name,
        "unit": compared.metric.unit,
        "higher_is_better": compared.metric.higher_is_better,
        "baseline": _estimate_entry(compared.baseline),
        "candidate": _estimate_entry(compared.candidate),
        "ratio": _estimate_entry(compared.ratio),
        "verdict": compared.verdict if is_comparable else NOT_COMPARABLE,
        "reason": compared.weakness if is_undecided else None,
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
    cannot_tell = not is_strict and gate.cannot_tell(estimate, one.metric.practical)
    by_value = is_strict or cannot_tell
    return entry | {
        "metric": one.metric.name,
        "unit": one.metric.unit,
        **(_estimate_entry(estimate) or {}),
        "judged_by": "value" if by_value else "interval",
        "doubt": one.weakness if cannot_tell else None,
        "reason": None,
        "missed": gate.holds(estimate, by_value),
    }


def _not_valid(baseline: Group, candidate: Group) -> Iterator[str]:
    """What is wrong with each run that is not valid."""
    for document in (run.document for run in (*baseline.runs, *candidate.runs)):
        if document["status"] != "valid":
            why = "; ".join(document.get("reasons") or ["see its audit"])
            yield f"{document['run_id']} is {document['status']}: {why}; see --degraded"


def _refused(gate: Gate, label: str, reason: str) -> dict[str, Any]:
    """Of runs that cannot be compared, or prove nothing: nothing about them passes."""
    entry = {"gate": gate.text, "candidate": label, "is_ratio": gate.is_ratio}
    metric = " or ".join(metric.name for metric in gate.metrics)
    return _unjudged(entry, metric, reason) | {"missed": True}


def _unjudged(entry: dict[str, Any], metric: str, reason: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("unit", "value", "low", "high", "doubt"))
    unjudged = {"metric": metric, "judged_by": NOTHING, "reason": reason, "missed": False}
    return entry | unknown | unjudged


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


def asked_differences(baseline: Group, candidate: Group) -> dict[str, list[Any]]:
    """In what the runs of both sides were not asked for the same load: keys of the scenario that
    change it, and the kind of the broker; with the values of the first run that differs."""
    first, *others = (run.document for run in (*baseline.runs, *candidate.runs))
    found: dict[str, list[Any]] = {}
    for other in others:
        kinds = [_kinds(document) for document in (first, other)]
        unused = set(_SECTIONS_OF_PROTOCOLS) - {*kinds[0], *kinds[1]}
        left_out = (*_OF_MEASURING, *unused, *baseline.found_keys, *candidate.found_keys)
        if kinds[0] != kinds[1]:
            found.setdefault("broker.kind", [" and ".join(kind) for kind in kinds])
        for key, values in differences(first["scenario"], other["scenario"]).items():
            if not any(key == name or key.startswith(f"{name}.") for name in left_out):
                found.setdefault(key, values)
    return found


def _kinds(document: Mapping[str, Any]) -> list[str]:
    """Of its brokers, in the order of the parts they play."""
    # Runs stored before there could be several have one.
    brokers = document.get("brokers") or [document["broker"]]
    return list(dict.fromkeys(str(broker.get("kind")) for broker in brokers))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys in which two scenarios differ, dotted, with both values."""
    flat = [dict(dotted(comparable_scenario(side))) for side in (one, other)]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return {
        key: [side.get(key) for side in flat]
        for key in keys
        if key.partition(".")[0] not in _NOT_OF_THE_LOAD and flat[0].get(key) != flat[1].get(key)
    }
