"""What a command serves while it runs: `--prometheus` and `--dashboard`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark.cli.options import default_store
from bench_spark.config.broker import host_and_port
from bench_spark.config.problems import shown_value
from bench_spark.errors import ConfigurationError
from bench_spark.report.exporter import Exporter, ExportingDisplay
from bench_spark.report.live import Steps

if TYPE_CHECKING:
    from bench_spark.watch.dashboard import Dashboard

LOOPBACK = "127.0.0.1"

PrometheusOption = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="[HOST:]PORT",
        help="Serve the running trial at /metrics, on 127.0.0.1 unless HOST is given.",
    ),
]
DashboardOption = Annotated[
    str | None,
    typer.Option(
        "--dashboard",
        metavar="[HOST:]PORT",
        help="Serve a page with live charts, on 127.0.0.1 unless HOST is given.",
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
    """The display, told to Prometheus too where an endpoint is given."""
    if endpoint is None:
        yield display
        return
    exporter = Exporter(*endpoint)
    try:
        yield ExportingDisplay(display, exporter, broker)
    finally:
        exporter.close()


@contextmanager
def dashboard_at(endpoint: Endpoint | None, display: Steps) -> Iterator[Dashboard | None]:
    """Open pages hear of the end of the run, unless the command was interrupted."""
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
    told = "" if store == default_store() else f" --store {shlex.quote(store)}"
    return f"bench-spark show {run_id}{told} --format html > report.html"
