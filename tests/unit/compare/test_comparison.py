"""Runs against a baseline: from seconds to verdicts, gates and remarks."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from bench_spark.compare import comparison
from bench_spark.compare.comparison import (
    BETTER,
    BOOTSTRAP,
    CANNOT_TELL,
    NOT_COMPARABLE,
    SAME,
    WELCH,
    WORSE,
    Compared,
    Group,
    asked_differences,
    compare,
    comparison_document,
    differences,
    parse_gate,
)
from bench_spark.compare.estimates import Estimate
from bench_spark.compare.series import MOST_INTERVALS, RunSeries, run_series
from bench_spark.config.models import Scenario
from bench_spark.core.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.errors import ConfigurationError
from bench_spark.report.comparison import write_comparison
from bench_spark.results.totals import statistics

STARTED = 1_700_000_000.0
HIGHEST_US = 10_000_000


@dataclass
class Second:
    """A second of a run, as `results/document.py` reads it."""

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


def entries(baseline: Group, candidate: Group) -> dict[str, dict[str, Any]]:
    """Of a comparison's document, by metric."""
    [found] = comparison_document("t", [(baseline, candidate)], [], False)["comparisons"]
    return {entry["metric"]: entry for entry in found["metrics"]}


def test_few_seconds_tell_nothing_of_how_sure_they_are() -> None:
    found = entries(alone(run("a", seconds=9)), alone(run("b", latency_us=9000)))
    assert found["latency.p99"]["verdict"] == CANNOT_TELL
    assert found["latency.p99"]["reason"] == "a run under 10 s has no interval"
    assert (found["lost"]["verdict"], found["lost"]["reason"]) == (SAME, None)


def two_noisy_sides() -> tuple[Group, Group]:
    """A throughput of an eleventh, by two repetitions that have nothing in common."""
    before = Group("before", [run("a1", rate=1000, seed=1), run("a2", rate=400, seed=2)])
    after = Group("after", [run("b1", rate=300, seed=3), run("b2", rate=10, seed=4)])
    return before, after


def test_a_wide_interval_tells_nothing_and_a_gate_on_it_goes_by_the_number() -> None:
    before, after = two_noisy_sides()
    gates = [parse_gate("receive_rate < 0.95x"), parse_gate("receive_rate > 2x")]
    document = comparison_document("t", [(before, after)], gates, False)
    [rate] = [
        entry
        for entry in document["comparisons"][0]["metrics"]
        if entry["metric"] == "receive_rate"
    ]
    assert rate["ratio"]["value"] == pytest.approx((300 * 10 / 1000 / 400) ** 0.5)
    assert rate["ratio"]["value"] < 0.09
    assert rate["ratio"]["low"] < 1 < rate["ratio"]["high"]
    assert rate["verdict"] == CANNOT_TELL
    assert rate["reason"] == "too few repetitions (2 and 2): its interval is wide"
    slower, faster = document["gates"]
    assert (slower["missed"], slower["judged_by"]) == (True, "value")
    assert slower["doubt"] == rate["reason"]
    assert (faster["missed"], faster["judged_by"]) == (False, "value")
    assert document["passed"] is False
    text = io.StringIO()
    write_comparison(document, text)
    folded = " ".join(text.getvalue().split())
    assert "cannot tell receive rate" in folded
    assert "judged by its value; cannot tell: too few repetitions (2 and 2)" in folded


@pytest.mark.parametrize(
    ("metric", "low", "high", "expected"),
    [
        ("receive_rate", 0.95, 1.05, SAME),
        ("receive_rate", 0.90, 1.02, CANNOT_TELL),
        ("receive_rate", 0.99, 1.11, CANNOT_TELL),
        ("latency.p99", 0.70, 1.45, SAME),
        ("latency.p99", 0.66, 1.2, CANNOT_TELL),
        ("latency.p99", 0.9, 1.51, CANNOT_TELL),
        ("latency.p99", 1.01, 9.0, WORSE),
        ("latency.p99", 0.1, 0.99, BETTER),
    ],
)
def test_an_interval_that_holds_a_change_of_practical_size_is_no_equality(
    metric: str, low: float, high: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Estimate((low * high) ** 0.5, low, high)
    monkeypatch.setattr(comparison, "ratio_of_resamples", lambda *_: found)
    assert verdicts(compare(alone(run("a")), alone(run("b"))))[metric] == expected


# -- what was asked for ----------------------------------------------------------------------------


def scenario(**keys: Any) -> dict[str, Any]:
    return Scenario.model_validate({"name": "steady", **keys}).dump()


AMQP, KAFKA = {"name": "a", "kind": "amqp"}, {"name": "k", "kind": "kafka"}


@pytest.mark.parametrize(
    ("changes", "differs_in"),
    [
        ({}, {}),
        ({"scenario": scenario(load={"rate_per_second": 5.0})}, {"load.rate_per_second"}),
        (
            {"scenario": scenario(message={"bytes": 5000}, producers=2)},
            {"message.bytes", "producers"},
        ),
        ({"scenario": scenario(phases={"warmup_seconds": 1})}, {"phases.warmup_seconds"}),
        ({"scenario": scenario(phases={"measure_seconds": 99}, agents=4, tags={"a": "b"})}, {}),
        ({"scenario": scenario(slo=["p99 < 5ms"], trace="all")}, {}),
        ({"broker": KAFKA}, {"broker.kind"}),
        ({"scenario": scenario(amqp={"confirms": 9})}, {"amqp.confirms"}),
        ({"scenario": scenario(mqtt={"qos": 2})}, {}),
        ({"broker": {**AMQP, "name": "other"}}, {}),
    ],
)
def test_runs_that_were_not_asked_for_the_same_are_not_comparable(
    changes: dict[str, Any], differs_in: set[str]
) -> None:
    pair = alone(run("a", broker=AMQP)), alone(run("b", **{"broker": AMQP, **changes}))
    gate = parse_gate("lost > 0")
    document = comparison_document("t", [pair], [gate], False)
    [found] = document["comparisons"]
    assert found["differs_in"].keys() == set(differs_in)
    assert found["is_comparable"] is not bool(differs_in)
    assert document["passed"] is not bool(differs_in)
    is_marked = {entry["verdict"] for entry in found["metrics"]} == {NOT_COMPARABLE}
    assert is_marked is bool(differs_in)
    text = io.StringIO()
    write_comparison(document, text)
    lines = text.getvalue().splitlines()
    assert lines[1].startswith("  NOT COMPARABLE  the runs differ") is bool(differs_in)
    assert all(key in text.getvalue() for key in differs_in)

    across = comparison_document("t", [pair], [gate], False, is_across=True)
    assert across["passed"] is True
    assert across["comparisons"][0]["is_comparable"] is True
    assert across["comparisons"][0]["differs_in"] == found["differs_in"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_gate_is_not_passed_by_runs_that_are_not_valid_unless_that_is_asked_for(
    side: int,
) -> None:
    runs = [run("a"), run("b")]
    runs[side] = run("ab"[side], status="degraded", reasons=["the rate was not kept"])
    gates = [parse_gate("p99 > 9x"), parse_gate("lost > 0")]
    document = comparison_document("t", [(alone(runs[0]), alone(runs[1]))], gates, False)
    assert document["passed"] is False
    told = f"{'ab'[side]} is degraded: the rate was not kept; see --degraded"
    assert [(one["missed"], one["reason"]) for one in document["gates"]] == [(True, told)] * 2
    text = io.StringIO()
    write_comparison(document, text)
    assert " ".join(text.getvalue().split()).count(told) == 2
    taken = comparison_document(
        "t", [(alone(runs[0]), alone(runs[1]))], gates, False, takes_degraded=True
    )
    assert taken["passed"] is True


def test_repetitions_that_were_not_asked_for_the_same_are_not_comparable() -> None:
    other = run("b2", scenario=scenario(producers=3))
    before, after = Group("a", [run("a1"), run("a2")]), Group("b", [run("b1"), other])
    assert set(asked_differences(before, after)) == {"producers"}
    assert set(asked_differences(after, before)) == {"producers"}


def test_a_rate_that_a_search_has_found_was_not_asked_for() -> None:
    slower = run("b", scenario=scenario(load={"rate_per_second": 5.0}))
    found = Group("b", [slower], found_keys=("load.rate_per_second",))
    assert asked_differences(alone(run("a")), found) == {}


def test_brokers_and_machines_that_differ_are_told() -> None:
    def on(cores: int, version: str) -> Group:
        hosts = [{"cores": cores, "cpu": "x86", "memory_bytes": 2**30}]
        facts = {"product": "RabbitMQ", "version": version}
        return alone(run(version, broker=AMQP, environment={"hosts": hosts, "broker": facts}))

    document = comparison_document("t", [(on(2, "3.13"), on(4, "4.1"))], [], False)
    text = io.StringIO()
    write_comparison(document, text)
    folded = " ".join(text.getvalue().split())
    assert "broker differs: a (in memory), RabbitMQ 3.13 -> a (in memory), RabbitMQ 4.1" in folded
    assert "machine differs: 2 cores (x86), 1.07 GB of memory -> 4 cores" in folded
    assert document["comparisons"][0]["is_comparable"] is True


def test_the_table_is_never_cut() -> None:
    """Long names and numbers run over the edge of the page, and not into dots."""
    base = alone(run("a", latency_us=3e6, counts={"lost": 123_456_789_012, "duplicates": 0}))
    other = alone(run("b", latency_us=7, counts={"lost": 999_123_456_789, "duplicates": 0}))
    document = comparison_document("t", [(base, other)], [], False)
    text = io.StringIO()
    write_comparison(document, text)
    assert "123,456,789,012" in text.getvalue()
    assert "999,123,456,789" in text.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text.getvalue()


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        ((1000, []), (5000, ["p99_us"]), WORSE),
        ((1000, ["p99_us"]), (5000, []), CANNOT_TELL),
        ((5000, ["p99_us"]), (1000, []), BETTER),
        ((5000, []), (1000, ["p99_us"]), CANNOT_TELL),
        ((1000, ["p99_us"]), (1000, []), CANNOT_TELL),
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
    [found] = comparison_document("t", [(before, noisy)], [], False)["comparisons"]
    assert found["method"] == WELCH
    [p50] = [entry for entry in found["metrics"] if entry["metric"] == "latency.p50"]
    assert p50["verdict"] == CANNOT_TELL
    assert p50["reason"] == "too few repetitions (3 and 3): its interval is wide"
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
    [found] = comparison_document("t", [(alone(run("a")), alone(candidate))], [], False)[
        "comparisons"
    ]
    assert found["method"] == BOOTSTRAP
    assert found["remarks"][0] == "b is degraded: see its audit"
    assert "repeat runs" in found["remarks"][1]
    assert list(found["scenario_differences"]) == ["load.rate_per_second"]


def test_differences_are_told_by_their_dotted_keys() -> None:
    one = {"name": "x", "load": {"mode": "rate", "steps": []}, "agents": 1}
    other = {"name": "y", "load": {"mode": "window", "steps": []}, "more": {"key": 2}, "agents": 1}
    assert differences(one, other) == {"load.mode": ["rate", "window"], "more.key": [None, 2]}
