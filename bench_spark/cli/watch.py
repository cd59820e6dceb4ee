"""`bench-spark watch`: a run of any process, followed from the store's tables. Needs no Spark."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from bench_spark.cli.endpoints import (
    DashboardOption,
    PrometheusOption,
    dashboard_at,
    endpoint_of,
    exporting,
    html_command,
)
from bench_spark.cli.options import DEFAULT_STORE, StoreOption
from bench_spark.cli.output import parse_formats
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.stored import existing_store, listed_runs, run_report, stored_run
from bench_spark.driver_process import RUNNING
from bench_spark.errors import ConfigurationError
from bench_spark.report.live import Steps
from bench_spark.store.delta import Store
from bench_spark.watch.dashboard import REFRESH_SECONDS, Dashboard
from bench_spark.watch.followed_run import FollowedRun

QUIET_SECONDS = 30.0
"""After so long without news a run is said to be silent: its driver may have been killed."""


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run id, as `runs` lists it; unset: the newest that is running.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    dashboard: DashboardOption = None,
    prometheus: PrometheusOption = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with the exit code of the run.")
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Follow a run until it ends, and print its result.

    The run may be one of another process or machine: all that is needed is its store.
    """
    display = display_of(quiet, verbose)
    page_at = endpoint_of("--dashboard", dashboard)
    metrics_at = endpoint_of("--prometheus", prometheus)
    opened = existing_store(store)
    run_id = run or _newest_running(opened)
    broker = str(stored_run(opened, run_id).document["broker"]["name"])
    display.step(f"watching {run_id} on {broker}")
    with (
        exporting(display, metrics_at, broker) as told,
        dashboard_at(page_at, display) as page,
    ):
        _follow(FollowedRun(opened, run_id), told, page, html_command(run_id, store))
        ended = stored_run(opened, run_id)
        parse_formats(None).write(run_report(ended.document, store))
    if exit_code:
        raise typer.Exit(ended.exit_code or 0)


def _newest_running(store: Store) -> str:
    running = [row["run_id"] for row in listed_runs(store) if row["status"] == RUNNING]
    if not running:
        raise ConfigurationError(
            f"no run is running in {store.uri}; `bench-spark runs` lists those that ended"
        )
    return str(running[0])


def _follow(run: FollowedRun, display: Steps, page: Dashboard | None, show_again: str) -> None:
    state = run.state
    has_started = is_silent = False
    while True:
        run.refresh()
        if state.plan is not None and not has_started and state.timeline is None:
            display.opening(state.plan, 0)
        if state.plan is not None and state.timeline is not None and not state.is_over:
            if not has_started:
                has_started = True
                display.name_next(run.run_id)
                display.started(state.plan, state.timeline, lambda: state.newest_ns, state.window)
            display.counted(state.agents.totals)
            display.update(state.window, is_draining=False)
        silence = _silence(run)
        if silence and not is_silent:
            display.step(silence)
        is_silent = bool(silence)
        if page is not None:
            page.show(state, silence, show_again)
        if state.is_over:
            display.ended()
            return
        time.sleep(REFRESH_SECONDS)


def _silence(run: FollowedRun) -> str:
    """What to say of a run that tells nothing any more."""
    if run.seconds_without_news < QUIET_SECONDS:
        return ""
    return (
        f"no news of {run.run_id} for {QUIET_SECONDS:.0f} s: its driver may have been killed; "
        "Ctrl-C ends the watching"
    )
