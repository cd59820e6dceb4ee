"""Pages of every kind, from documents made by hand: small, and with all that can be hostile."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import result_documents as documents

from bench_spark.config.suite import trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.report.html_compare import write_comparison_html, write_suite_comparison_html
from bench_spark.report.html_run import write_run_html
from bench_spark.report.html_suite import write_suite_html
from bench_spark.report.suite_table import Outcome, suite_table
from bench_spark.report.timeline import RunReport, RunTimes, Timeline

HOSTILE = "</script><script>window.hurt = true</script><img src=x onerror='window.hurt = true'>\\\""

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = RunTimes(STARTED, STARTED, STARTED + timedelta(seconds=10))

_NAMES = ("p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us")


def timeline(source: str = "node") -> Timeline:
    seconds = range(-5, 12)
    durations = [
        {"second": float(second)} | {name: 100 * 2**n + second for n, name in enumerate(_NAMES)}
        for second in seconds
    ]
    return Timeline(
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


def run_page(document: Any = None, hurt: bool = False) -> str:
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
    report = RunReport(
        found,
        TIMES if has_started else RunTimes(STARTED),
        timeline(HOSTILE if hurt else "node") if has_started else None,
        distribution() if found.get("measures") else [],
    )
    writer = io.StringIO()
    write_run_html(report, HOSTILE if hurt else "bench-store", writer)
    return writer.getvalue()


def suite_page(directory: Path, hurt: bool = False) -> str:
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
        trial.key: Outcome(
            documents.changed(
                rates={"send_rate": 100.0 * trial.number, "receive_rate": 90.0 * trial.number}
            ),
            note=HOSTILE if hurt else None,
        )
        for trial in trials_of(suite)[1:]
    }
    writer = io.StringIO()
    broker = HOSTILE if hurt else "rabbitmq"
    table = suite_table(suite, outcomes)
    write_suite_html(table, suite, "study", broker, "bench-store", writer)
    return writer.getvalue()


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


def written(write: Callable[..., None], document: Any) -> str:
    writer = io.StringIO()
    write(document, writer)
    return writer.getvalue()


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
        "comparison": written(write_comparison_html, comparison("candidate")),
        "comparison_hostile": written(write_comparison_html, comparison(HOSTILE, False)),
        "suite_comparison": written(write_suite_comparison_html, comparison(HOSTILE)),
    }
