"""Pages of every kind, from documents made by hand: small, and with all that can be hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import result_documents as documents

from bench_spark.config.suite import trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.report.comparison import ComparisonReport, SuiteComparisonReport
from bench_spark.report.formats import FORMATS, Report
from bench_spark.report.run import RunReport
from bench_spark.report.searches import RateSearchReport, WindowSearchReport
from bench_spark.report.suite import SuiteReport
from bench_spark.report.suite_table import TrialResult, suite_table
from bench_spark.report.timeline import RunHistory, RunTimes, TimeSeries

HOSTILE = "</script><script>window.hurt = true</script><img src=x onerror='window.hurt = true'>\\\""

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = RunTimes(STARTED, STARTED, STARTED + timedelta(seconds=10))

_NAMES = ("p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us")


def timeline(source: str = "node") -> TimeSeries:
    seconds = range(-5, 12)
    durations = [
        {"second": float(second)} | {name: 100 * 2**n + second for n, name in enumerate(_NAMES)}
        for second in seconds
    ]
    return TimeSeries(
        throughput=[
            {"second": float(s), "sent_per_second": 1e4, "received_per_second": 1e4 - s}
            for s in seconds
        ],
        durations={"latency": durations, "delivery_latency": durations},
        broker={
            source: [
                {
                    **{"second": s + 0.3, "cpu": 0.2 + s / 100, "rss_bytes": 3e8},
                    **{"written_per_second": 1e6 * (s + 6), "device_written_per_second": None},
                }
                for s in seconds
            ]
        },
        generator=[{"second": float(s), "busy": 0.5} for s in seconds],
        measured=(0.0, 10.0),
    )


def distribution() -> list[dict[str, Any]]:
    return [
        {
            **{"decades": step / 10, "percentile": 100 * (1 - 10 ** (-step / 10))},
            **{"latency": 100 * 1.2**step, "delivery_latency": 120 * 1.2**step},
        }
        for step in range(41)
    ]


def run_report(document: Any = None, hurt: bool = False) -> RunReport:
    found = documents.VALID if document is None else document
    if hurt:
        found = documents.changed(
            run_id=HOSTILE,
            reasons=[HOSTILE],
            scenario={**documents.VALID["scenario"], "name": HOSTILE, "tags": {HOSTILE: HOSTILE}},
            broker={**documents.VALID["broker"], "name": HOSTILE},
            agents=[{"agent": 0, "host": HOSTILE, "executor": HOSTILE, "sent": 1}],
            environment={HOSTILE: HOSTILE},
        )
    has_started = bool(found.get("counts"))
    history = RunHistory(
        TIMES if has_started else RunTimes(STARTED),
        timeline(HOSTILE if hurt else "node") if has_started else None,
        distribution() if found.get("measures") else [],
    )
    return RunReport(found, lambda: history, HOSTILE if hurt else "bench-store")


def run_page(document: Any = None, hurt: bool = False) -> str:
    return run_report(document, hurt).page().html


def suite_report(directory: Path, hurt: bool = False) -> SuiteReport:
    file = directory / "study.yaml"
    label = '"</script><b>"' if hurt else "plain"
    file.write_text(
        "base: steady\n"
        f"axes: {{queue: {{{label}: {{}}, lazy: {{}}}}, producers: [1, 2, 4]}}\n"
        "repetitions: 2\n"
        "report: {title: '<script>window.hurt = true</script>', columns: [{value: latency.p99}]}\n"
    )
    suite = load_suite(str(file))
    outcomes = {
        trial.key: TrialResult(
            documents.changed(
                rates={"send_rate": 100.0 * trial.number, "receive_rate": 90.0 * trial.number}
            ),
            note=HOSTILE if hurt else None,
        )
        for trial in trials_of(suite)[1:]
    }
    broker = HOSTILE if hurt else "rabbitmq"
    return SuiteReport(suite_table(suite, outcomes), "study", broker, "bench-store")


def suite_page(directory: Path, hurt: bool = False) -> str:
    return suite_report(directory, hurt).page().html


def comparison(label: str, is_comparable: bool = True) -> dict[str, Any]:
    def side(name: str) -> dict[str, Any]:
        return {
            **{"label": name, "runs": [name], "statuses": ["valid"], "broker": "kafka"},
            **{"brokers": [f"{name} 4.1"], "machines": [f"2 cores ({name})"]},
        }

    def entry(metric: str, unit: str, ratio: float | None, verdict: str) -> dict[str, Any]:
        estimate = {"value": 100.0, "low": 90.0, "high": 110.0}
        found = None if ratio is None else {"value": ratio, "low": ratio * 0.9, "high": ratio * 1.1}
        return {
            **{"metric": metric, "unit": unit, "higher_is_better": unit == "per_second"},
            **{"baseline": estimate, "candidate": estimate, "ratio": found, "verdict": verdict},
            "reason": f"too few repetitions {label}" if verdict == "cannot tell" else None,
        }

    gate = {
        **{"gate": f"p99 > 1.10x{label}", "candidate": label, "is_ratio": True, "reason": None},
        **{"metric": "latency.p99", "unit": "us", "value": 1.5, "low": 1.35, "high": 1.65},
        **{"judged_by": "interval", "doubt": None, "missed": True},
    }
    return {
        "title": f"{label} against base",
        "comparisons": [
            {
                **{"baseline": side("base"), "candidate": side(label), "remarks": [label]},
                **{"method": "m", "scenario_differences": {"agents": [1, label]}},
                **{"is_comparable": is_comparable, "differs_in": {"producers": [1, label]}},
                "metrics": [
                    entry("receive_rate", "per_second", 1.0, "no difference"),
                    entry("latency.p99", "us", 1.5, "worse"),
                    entry("lost", "count", None, "cannot tell"),
                ],
            }
        ],
        "gates": [gate],
        "is_strict": False,
        "passed": False,
        "unmatched": [label],
    }


def window_search(name: str = "rabbitmq") -> dict[str, Any]:
    figures = {"mean_per_second": 990.0, "stddev_per_second": 10.0, "samples": 100}
    points = [
        {
            **{"in_flight": window, "median_per_second": 1e4 * number, **figures},
            **{"low_per_second": 9e3 * number, "high_per_second": 1.1e4 * number},
        }
        for number, window in enumerate((1, 10, 100), start=1)
    ]
    runs = [{"trial": 1, "run_id": name, "status": "degraded"}, {"trial": 2, "run_id": "r2"}]
    runs += [{"trial": 3, "run_id": "r3"}]
    return {
        **{"in_flight": 100, "median_per_second": 3e4, "end": "settled", "end_text": name},
        **{"smallest_in_flight": 10, "smallest_median_per_second": 2e4, "took_seconds": 61.0},
        "trials": [
            {"status": "valid", **run, **one} for run, one in zip(runs, points, strict=True)
        ],
        "curve": points,
        "scenario": {"name": name, "producers": 1},
        "broker": {"name": name},
    }


def rate_search(name: str = "rabbitmq") -> dict[str, Any]:
    percentiles = {"p50_us": 500, "p50_is_lower_bound": False, "p99_us": 5000}
    percentiles |= {"p99_is_lower_bound": True}
    verdicts: list[tuple[float | None, bool | None, str]] = [
        *((None, None, ""), (1000.0, True, ""), (2000.0, False, name))
    ]
    trials = [
        {
            **{"trial": number, "run_id": f"r{number}", "status": "valid", **percentiles},
            **{"rate_per_second": rate, "sent_per_second": 900.0, "received_per_second": 900.0},
            **{"kept": kept, "limited_by": None if kept is not False else "broker"},
            **{"objective": None, "why": why, "limit": ""},
        }
        for number, (rate, kept, why) in enumerate(verdicts, start=1)
    ]
    ends = {"p50_low_us": 450, "p50_high_us": 500, "p99_low_us": 4000, "p99_high_us": 5000}
    return {
        **{"status": "valid", "rate_per_second": 1000.0, "above_per_second": 2000.0},
        **{"range_low_per_second": 1000.0, "range_high_per_second": 2000.0, "is_settled": True},
        **{"is_lower_bound": False, "limited_by": "broker", "limit": "", "objective": None},
        **{"text": name, "run_id": "r2", "measure": "delivery_latency", **percentiles},
        **{"unthrottled_per_second": 900.0, "end": "settled", "end_text": name},
        **{"edge_trials": [2, 3], "took_seconds": 61.0, "trials": trials},
        "curve": [{**one, **ends} for one in trials[1:]],
        **{"scenario": {"name": name, "producers": 1}, "broker": {"name": name}},
    }


def reports(directory: Path) -> dict[str, Report]:
    """A report of every command."""
    return {
        "run": run_report(),
        "suite": suite_report(directory),
        "comparison": ComparisonReport(comparison("candidate")),
        "suite_comparison": SuiteComparisonReport(comparison("candidate")),
        "window_search": WindowSearchReport(window_search()),
        "rate_search": RateSearchReport(rate_search()),
    }


def text_of(report: Report, format_name: str) -> str:
    return FORMATS[format_name].encode(report).decode()


def pages(directory: Path) -> dict[str, str]:
    """Every kind of page, peaceful and hostile, by name."""
    return {
        "run": run_page(),
        "run_hostile": run_page(hurt=True),
        "run_degraded": run_page(documents.degraded()),
        "run_only_published": run_page(documents.only_published()),
        "run_only_consumed": run_page(documents.only_consumed()),
        "run_never_started": run_page(documents.never_started()),
        "suite": suite_page(directory),
        "suite_hostile": suite_page(directory, hurt=True),
        "comparison": ComparisonReport(comparison("candidate")).page().html,
        "comparison_hostile": ComparisonReport(comparison(HOSTILE, False)).page().html,
        "suite_comparison": SuiteComparisonReport(comparison(HOSTILE)).page().html,
        "window_search": WindowSearchReport(window_search()).page().html,
        "window_search_hostile": WindowSearchReport(window_search(HOSTILE)).page().html,
        "rate_search": RateSearchReport(rate_search()).page().html,
        "rate_search_hostile": RateSearchReport(rate_search(HOSTILE)).page().html,
    }
