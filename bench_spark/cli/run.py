"""`bench-spark run`: one scenario on one broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark import runs
from bench_spark.cli.options import (
    FormatsOption,
    LoadOptions,
    SessionOptions,
    Text,
    Texts,
    duration_changes,
    option,
    refuse_other_end,
    with_options,
)
from bench_spark.cli.output import parse_formats
from bench_spark.cli.watch import (
    DashboardOption,
    PrometheusOption,
    dashboard_at,
    endpoint_of,
    exporting,
    html_command,
)
from bench_spark.errors import ConfigurationError
from bench_spark.report.run import report_of
from bench_spark.store.delta import Store

if TYPE_CHECKING:
    from bench_spark.watch.dashboard import Dashboard


@with_options
def run(
    load: LoadOptions,
    session: SessionOptions,
    run_id: Annotated[
        Text, option("--run-id ID", "Name of the run; unset: SCENARIO-BROKER-TIME-RANDOM.")
    ] = None,
    live: Annotated[
        bool,
        option(
            "--live/--no-live",
            "Rolling metrics and progress while the load runs, or metrics afterwards.",
        ),
    ] = True,
    trigger_seconds: Annotated[
        float | None,
        option(
            "--trigger-seconds SECONDS",
            "How often the rolling metrics are brought up to date; longer costs less CPU.",
            min=0.1,
            max=3600,
            show_default="2; 1 on HDFS",
        ),
    ] = None,
    duration: Annotated[
        Text,
        option(
            "--duration TIME",
            "Length of the measured phase: 90s, 15m, 8h (phases.measure_seconds).",
        ),
    ] = None,
    slo: Annotated[
        Texts,
        option(
            "--slo OBJECTIVE",
            'What the run must reach, as in "p99 < 50ms"; repeatable, beside the scenario\'s '
            "own. One that is missed makes the exit code 1.",
        ),
    ] = None,
    stop_on_slo: Annotated[
        bool,
        option("--stop-on-slo", "End the run when 10 s of it miss an objective, and not later."),
    ] = False,
    formats: FormatsOption = None,
    prometheus: PrometheusOption = None,
    dashboard: DashboardOption = None,
) -> None:
    """Run SCENARIO on a broker and print the result.

    The broker is the one given by --broker, else by $BENCH_SPARK_BROKER, else kafka. A system that
    takes messages at one place and gives them out at another has an --ingress and an --egress.
    Whatever is wrong with the files or the options is said before Spark starts.
    """
    if trigger_seconds is not None and not live:
        raise ConfigurationError("--trigger-seconds: --no-live makes the metrics afterwards, once")
    if dashboard is not None and not live:
        raise ConfigurationError("--dashboard: --no-live makes its metrics afterwards, once")
    shown = session.display(live)
    outputs = parse_formats(formats)
    metrics_at = endpoint_of("--prometheus", prometheus)
    page_at = endpoint_of("--dashboard", dashboard)
    scenario, ends = load.load(duration_changes(duration, load.overrides or []), slo or [])
    refuse_other_end(duration, scenario)
    config = runs.prepare(scenario, ends, run_id, session.master, live, stop_on_slo)
    store = runs.open_store(session.store, session.master)
    with (
        exporting(shown, metrics_at, ends.name) as display,
        dashboard_at(page_at, display) as page,
        runs.launched(config, store, session.master, display) as (spark, planned),
        _shown_on(
            page, store, planned.plan.run_id, html_command(planned.plan.run_id, session.store)
        ),
    ):
        summary = runs.execute(planned, spark, store, display, trigger_seconds)
        outputs.write(report_of(summary.document, session.store))
    raise typer.Exit(summary.exit_code)


@contextmanager
def _shown_on(page: Dashboard | None, store: Store, run_id: str, show_again: str) -> Iterator[None]:
    if page is None:
        yield
        return
    from bench_spark.watch.dashboard import FollowingThread
    from bench_spark.watch.followed_run import FollowedRun

    # A store of its own: the run's handles are busy with appending.
    followed = FollowedRun(Store(store.uri), run_id)
    following = FollowingThread(page, followed, show_again)
    try:
        yield
    finally:
        following.close()
