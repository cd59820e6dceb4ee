"""`bench-spark watch`: a run of any process, followed from the store's tables. Needs no Spark.

What a command serves while it runs, `--prometheus` and `--dashboard`, is declared here as well.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark.cache import DEFAULT_STORE, default_store
from bench_spark.cli.options import (
    QuietOption,
    StoreOption,
    Text,
    VerboseOption,
    argument,
    display_of,
    option,
)
from bench_spark.cli.output import parse_formats
from bench_spark.config.broker import host_and_port
from bench_spark.config.problems import shown_value
from bench_spark.driver_process import RUNNING
from bench_spark.errors import ConfigurationError
from bench_spark.report.exporter import Exporter
from bench_spark.report.live import Steps
from bench_spark.report.run import report_of
from bench_spark.results.stored import existing_store, listed_runs, stored_run
from bench_spark.store.delta import Store

if TYPE_CHECKING:
    from bench_spark.watch.dashboard import Dashboard
    from bench_spark.watch.followed_run import FollowedRun

QUIET_SECONDS = 30.0
"""After so long without news a run is said to be silent: its driver may have been killed."""


LOOPBACK = "127.0.0.1"

PrometheusOption = Annotated[
    Text,
    option(
        "--prometheus [HOST:]PORT",
        "Serve the running trial at /metrics, on 127.0.0.1 unless HOST is given.",
    ),
]
DashboardOption = Annotated[
    Text,
    option(
        "--dashboard [HOST:]PORT",
        "Serve a page with live charts, on 127.0.0.1 unless HOST is given.",
    ),
]

Endpoint = tuple[str, int]


def endpoint_of(option: str, text: str | None) -> Endpoint | None:
    """The address that an option gives; None where it was not given."""
    if text is None:
        return None
    try:
        return host_and_port(text if ":" in text else f"{LOOPBACK}:{text}")
    except ValueError as error:
        rule = str(error).replace("HOST:PORT", "PORT or HOST:PORT")
        raise ConfigurationError(f"{option}: {shown_value(text)} is not allowed; {rule}") from None


@contextmanager
def exporting(display: Steps, endpoint: Endpoint | None, broker: str) -> Iterator[Steps]:
    """The display, with its numbers served to Prometheus too where an endpoint is given."""
    exporter = Exporter(*endpoint, display, broker) if endpoint is not None else None
    try:
        yield display
    finally:
        if exporter is not None:
            exporter.close()


@contextmanager
def dashboard_at(endpoint: Endpoint | None, display: Steps) -> Iterator[Dashboard | None]:
    """Serve the dashboard; at the end wait until open pages have fetched the end of the run, unless
    the command was interrupted."""
    if endpoint is None:
        yield None
        return
    from bench_spark.watch.dashboard import Dashboard

    dashboard = Dashboard(*endpoint)
    display.step(f"dashboard at {dashboard.address}")
    try:
        yield dashboard
    except BaseException as error:
        dashboard.close(wait_for_viewers=isinstance(error, Exception))
        raise
    dashboard.close(wait_for_viewers=True)


def html_command(run_id: str, store: str) -> str:
    """What makes the report of a run."""
    option = "" if store == default_store() else f" --store {shlex.quote(store)}"
    return f"bench-spark show {run_id}{option} --format html > report.html"


# -- following ------------------------------------------------------------------------------------


def watch(
    run: Annotated[
        Text,
        argument(
            "[RUN]",
            "A run id, as `runs` lists it; unset: the newest that is running.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    dashboard: DashboardOption = None,
    prometheus: PrometheusOption = None,
    exit_code: Annotated[bool, option("--exit-code", "End with the exit code of the run.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Follow a run until it ends, and print its result.

    The run may be one of another process or machine: all that is needed is its store.
    """
    from bench_spark.watch.followed_run import FollowedRun

    display = display_of(quiet, verbose)
    page_at = endpoint_of("--dashboard", dashboard)
    metrics_at = endpoint_of("--prometheus", prometheus)
    opened = existing_store(store)
    run_id = run or _newest_running(opened)
    broker = str(stored_run(opened, run_id).document["broker"]["name"])
    display.step(f"watching {run_id} on {broker}")
    with exporting(display, metrics_at, broker) as exported, dashboard_at(page_at, display) as page:
        _follow(FollowedRun(opened, run_id), exported, page, html_command(run_id, store))
        ended = stored_run(opened, run_id)
        parse_formats(None).write(report_of(ended.document, store))
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
    from bench_spark.watch.dashboard import REFRESH_SECONDS

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
    """What to show of a run whose tables get no new rows."""
    if run.seconds_without_news < QUIET_SECONDS:
        return ""
    return (
        f"no news of {run.run_id} for {QUIET_SECONDS:.0f} s: its driver may have been killed; "
        "Ctrl-C ends the watching"
    )
