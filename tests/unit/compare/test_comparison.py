"""Runs against a baseline: from seconds to verdicts, gates and remarks."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from bench_spark.compare.comparison import (
    BETTER,
    BOOTSTRAP,
    SAME,
    UNKNOWN,
    WELCH,
    WORSE,
    Compared,
    Group,
    compare,
    comparison_document,
    differences,
)
from bench_spark.compare.gates import parse_gate
from bench_spark.compare.series import MOST_INTERVALS, RunSeries, run_series
from bench_spark.errors import ConfigurationError
from bench_spark.measure.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.report.comparison import write_comparison
from bench_spark.scenario.models import Scenario
from bench_spark.summary.statistics import statistics

STARTED = 1_700_000_000.0
HIGHEST_US = 10_000_000


@dataclass
class Second:
    """A second of a run, as `summary/document.py` reads it."""

    role: str
    start_seconds: float
    counters: dict[str, int]
    found: dict[str, SparseHistogram] = field(default_factory=dict)
    phase: str = "measure"
    tick_seconds: float = 1.0

    @property
    def measures(self) -> Iterable[str]:
        return self.found

    def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    def histogram(self, measure: str) -> SparseHistogram:
        return self.found[measure]


def run(
    name: str,
    latency_us: float = 1000.0,
    rate: int = 500,
    seconds: int = 40,
    seed: int = 0,
    cpu: float | None = None,
    **changes: Any,
) -> RunSeries:
    """A run with lognormal latencies around this one, and so many messages each second."""
    random = np.random.default_rng(seed)
    ticks: list[Second] = []
    for second in range(seconds):
        values = np.exp(random.normal(np.log(latency_us), 0.4, size=rate))
        histogram = Histogram(shape_for(HIGHEST_US))
        histogram.record_ns((values * 1000).astype(np.int64))
        at = STARTED + second
        ticks.append(Second("consumer", at, {"received": rate}, {"latency": histogram.sparse()}))
        ticks.append(Second("producer", at, {"sent": rate}))
    merged = merge_sparse([tick.histogram("latency") for tick in ticks if tick.found])
    resources = [
        {
            **{"source": "node", "host": "h", "interval_seconds": 1.0, "written_bytes": 1000},
            "at": datetime.fromtimestamp(STARTED, UTC) + timedelta(seconds=second),
            "cpu_user_share_of_machine": cpu + random.normal() * 0.01,
            "cpu_system_share_of_machine": 0.05,
            "device_written_bytes": None,
        }
        for second in range(seconds if cpu is not None else 0)
    ]
    document = {
        "run_id": name,
        "status": "valid",
        "scenario": Scenario(name="steady").dump(),
        "broker": {"name": "loopback"},
        "rates": {"send_rate": float(rate), "receive_rate": float(rate)},
        "counts": {"lost": 0, "duplicates": 0},
        "delivery_rate": 1.0,
        "measures": {"latency": statistics(merged, HIGHEST_US)},
        **changes,
    }
    return run_series(document, ticks, (STARTED, STARTED + seconds), resources)


def alone(found: RunSeries) -> Group:
    return Group(found.document["run_id"], [found])


def verdicts(compared: Iterable[Compared]) -> Mapping[str, str]:
    return {one.metric.name: one.verdict for one in compared}


def test_the_same_distribution_is_no_difference() -> None:
    found = verdicts(compare(alone(run("a", seed=1)), alone(run("b", seed=2))))
    assert {found[f"latency.{name}"] for name in ("p50", "p95", "p99", "mean")} == {SAME}
    assert found["receive_rate"] == SAME


def test_a_shift_is_found_with_its_size_and_its_direction() -> None:
    compared = compare(alone(run("a")), alone(run("b", latency_us=1500, rate=600, seed=1)))
    found = verdicts(compared)
    assert (found["latency.p50"], found["latency.p99"], found["receive_rate"]) == (
        *(WORSE, WORSE),
        BETTER,
    )
    by_name = {one.metric.name: one for one in compared}
    ratio = by_name["latency.p50"].ratio
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1.5 < ratio.high
    assert ratio.high / ratio.low < 1.1
    assert (
        verdicts(compare(alone(run("b", latency_us=1500)), alone(run("a"))))["latency.p50"]
        == BETTER
    )


def test_numbers_are_those_of_the_results() -> None:
    baseline = run("a")
    [p99] = [
        one for one in compare(alone(baseline), alone(run("b"))) if one.metric.name == "latency.p99"
    ]
    assert p99.baseline.value == baseline.document["measures"]["latency"]["p99_us"]
    [all_intervals] = baseline.histograms["latency"].percentiles(
        np.ones((1, 40), dtype=np.int64), [99.0]
    )
    assert all_intervals[0] == p99.baseline.value


def test_the_same_runs_give_the_same_answer() -> None:
    answers = [compare(alone(run("a")), alone(run("b", seed=1))) for _ in range(2)]
    assert answers[0] == answers[1]


def test_the_brokers_machine_is_compared_too() -> None:
    found = compare(alone(run("a", cpu=0.3)), alone(run("b", cpu=0.4, seed=1)))
    cpu = next(one for one in found if one.metric.name == "broker_cpu")
    assert cpu.verdict == WORSE
    assert cpu.baseline.value == pytest.approx(0.35, abs=0.01)
    written = next(one for one in found if one.metric.name == "broker_written")
    assert (written.baseline.value, written.verdict) == (1000.0, SAME)
    assert "broker_device_written" not in verdicts(found)


def test_few_seconds_tell_nothing_of_how_sure_they_are() -> None:
    found = verdicts(compare(alone(run("a", seconds=9)), alone(run("b", latency_us=9000))))
    assert found["latency.p99"] == UNKNOWN
    assert found["lost"] == SAME


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        ((1000, []), (5000, ["p99_us"]), WORSE),
        ((1000, ["p99_us"]), (5000, []), UNKNOWN),
        ((5000, ["p99_us"]), (1000, []), BETTER),
        ((5000, []), (1000, ["p99_us"]), UNKNOWN),
        ((1000, ["p99_us"]), (1000, []), UNKNOWN),
    ],
)
def test_a_lower_bound_only_proves_what_a_longer_duration_would(
    baseline: tuple[int, list[str]], candidate: tuple[int, list[str]], expected: str
) -> None:
    sides = []
    for latency_us, bounds in (baseline, candidate):
        found = run("r", latency_us=latency_us, seed=latency_us)
        found.document["measures"]["latency"]["lower_bounds"][:] = bounds
        sides.append(alone(found))
    assert verdicts(compare(*sides))["latency.p99"] == expected


@pytest.mark.parametrize(("before", "after", "expected"), [(0, 3, WORSE), (3, 0, BETTER)])
def test_what_was_counted_needs_no_interval(before: int, after: int, expected: str) -> None:
    sides = [alone(run("r", counts={"lost": lost, "duplicates": 0})) for lost in (before, after)]
    assert verdicts(compare(*sides))["lost"] == expected


def test_repetitions_on_both_sides_are_compared_as_such() -> None:
    """The second side varies from run to run by more than it differs from the first."""
    before = Group("before", [run(f"a{seed}", 1000 + 10 * seed, seed=seed) for seed in range(3)])
    noisy = Group("noisy", [run(f"b{us}", us, seed=us) for us in (700, 1100, 1700)])
    [comparison] = comparison_document("t", [(before, noisy)], [], False)["comparisons"]
    assert comparison["method"] == WELCH
    assert {entry["metric"]: entry["verdict"] for entry in comparison["metrics"]}[
        "latency.p50"
    ] == SAME
    worse = Group("worse", [run(f"c{us}", us, seed=us) for us in (1980, 2000, 2020)])
    assert verdicts(compare(before, worse))["latency.p50"] == WORSE


def test_a_long_run_is_cut_into_as_many_intervals_as_are_needed() -> None:
    found = run("long", rate=3, seconds=1500)
    assert len(found.histograms["latency"].counts) == 500 <= MOST_INTERVALS
    assert found.histograms["latency"].counts.sum() == 4500
    assert found.sums["receive_rate"].above.sum() == 4500
    assert found.sums["receive_rate"].below.sum() == 1500


def test_gates_are_judged_for_every_candidate() -> None:
    base = alone(run("a"))
    gates = [parse_gate("p99 > 1.10x"), parse_gate("receive_rate < 0.9x")]
    pairs = [(base, alone(run("good", seed=1))), (base, alone(run("bad", 3000, seed=2)))]
    document = comparison_document("t", pairs, gates, is_strict=False)
    missed = {(gate["candidate"], gate["gate"]) for gate in document["gates"] if gate["missed"]}
    assert missed == {("bad", "p99 > 1.10x")}
    assert document["passed"] is False
    text = io.StringIO()
    write_comparison(document, text)
    assert "MISSED  bad: p99 > 1.10x: latency.p99 is 3.0" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80


def test_a_gate_that_nothing_can_be_asked_about_is_refused() -> None:
    pair = alone(run("a")), alone(run("b"))
    with pytest.raises(
        ConfigurationError, match=r"confirm_latency\.p99 is not known of both sides"
    ):
        comparison_document("t", [pair], [parse_gate("confirm_latency.p99 > 2x")], False)
    with pytest.raises(ConfigurationError, match="the baseline's lost is 0"):
        comparison_document("t", [pair], [parse_gate("lost > 2x")], False)


def test_the_reader_is_told_what_to_know() -> None:
    other = Scenario.model_validate({"name": "other", "load": {"rate_per_second": 5.0}}).dump()
    candidate = run("b", scenario=other, status="degraded")
    [comparison] = comparison_document("t", [(alone(run("a")), alone(candidate))], [], False)[
        "comparisons"
    ]
    assert comparison["method"] == BOOTSTRAP
    assert comparison["remarks"][0] == "b is degraded: see its audit"
    assert "repeat runs" in comparison["remarks"][1]
    assert list(comparison["scenario_differences"]) == ["load.rate_per_second"]


def test_differences_are_told_by_their_dotted_keys() -> None:
    one = {"name": "x", "load": {"mode": "rate", "steps": []}, "agents": 1}
    other = {"name": "y", "load": {"mode": "window", "steps": []}, "more": {"key": 2}, "agents": 1}
    assert differences(one, other) == {"load.mode": ["rate", "window"], "more.key": [None, 2]}
