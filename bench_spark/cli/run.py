"""`bench-spark run`: one scenario on one broker."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bench_spark.cli.durations import duration_overrides, refuse_other_end
from bench_spark.cli.endpoints import (
    DashboardOption,
    PrometheusOption,
    dashboard_at,
    endpoint_of,
    exporting,
    html_command,
)
from bench_spark.cli.masters import runs_agents_here
from bench_spark.cli.options import (
    DEFAULT_BROKER,
    DEFAULT_STORE,
    BrokerOption,
    EgressOption,
    FormatsOption,
    IngressOption,
    JarsOption,
    MasterOption,
    PackagesOption,
    ScenarioArgument,
    SetOption,
    StoreOption,
    is_typed,
)
from bench_spark.cli.output import parse_formats
from bench_spark.cli.preflight import ask_brokers, with_remedy
from bench_spark.cli.preparing import (
    Asked,
    Ready,
    choose_run_id,
    claimed,
    load,
    plan_for_cluster,
    settle,
)
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.spark_session import spark_session
from bench_spark.cli.stored import run_report
from bench_spark.config.models import Scenario
from bench_spark.data.checking import find_doubt
from bench_spark.errors import ConfigurationError
from bench_spark.java import is_submitted
from bench_spark.plan import Plan
from bench_spark.report.live import Steps
from bench_spark.report.plan_text import write_plan
from bench_spark.results.facts import is_judged_live
from bench_spark.store.delta import Store

if TYPE_CHECKING:
    from bench_spark.results.document import RunSummary
    from bench_spark.watch.dashboard import Dashboard


def run(
    context: typer.Context,
    scenario: ScenarioArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    overrides: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
    master: MasterOption = None,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", metavar="ID", help="Name of the run; unset: SCENARIO-BROKER-TIME-RANDOM."
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live/--no-live",
            help="Rolling metrics and progress while the load runs, or metrics afterwards.",
        ),
    ] = True,
    trigger_seconds: Annotated[
        float | None,
        typer.Option(
            "--trigger-seconds",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            show_default="2",
            help="How often the rolling metrics are brought up to date; longer costs less CPU.",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration",
            metavar="TIME",
            help="Length of the measured phase: 90s, 15m, 8h (phases.measure_seconds).",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo",
            metavar="OBJECTIVE",
            help='What the run must reach, as in "p99 < 50ms"; repeatable, beside the scenario\'s '
            "own. One that is missed makes the exit code 1.",
        ),
    ] = None,
    stop_on_slo: Annotated[
        bool,
        typer.Option(
            "--stop-on-slo", help="End the run when 10 s of it miss an objective, and not later."
        ),
    ] = False,
    formats: FormatsOption = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="Stored with the run; repeatable."),
    ] = None,
    prometheus: PrometheusOption = None,
    dashboard: DashboardOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
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
    shown = display_of(quiet, verbose, live)
    outputs = parse_formats(formats)
    metrics_at = endpoint_of("--prometheus", prometheus)
    page_at = endpoint_of("--dashboard", dashboard)
    asked = load(
        scenario,
        broker,
        duration_overrides(duration, overrides or []),
        tags or [],
        ingress or [],
        egress or [],
        slo or [],
        is_broker_typed=is_typed(context, "broker"),
    )
    refuse_other_end(duration, asked.scenario)
    if stop_on_slo:
        _refuse_unwatched(asked.scenario, live)
    chosen_id = choose_run_id(run_id, asked.scenario, asked.ends)
    with (
        exporting(shown, metrics_at, asked.ends.name) as display,
        dashboard_at(page_at, display) as page,
        launched(asked, chosen_id, store, master, display) as launch,
        _shown_on(page, launch, html_command(chosen_id, store)),
    ):
        summary = carried_out(launch, asked, display, live, trigger_seconds, stop_on_slo)
        outputs.write(run_report(summary.document, store))
    raise typer.Exit(summary.exit_code)


def _refuse_unwatched(scenario: Scenario, live: bool) -> None:
    """Only what is watched can end a run."""
    if not live:
        raise ConfigurationError("--stop-on-slo: --no-live has no rolling windows to watch")
    if not any(map(is_judged_live, scenario.slo)):
        raise ConfigurationError(
            '--stop-on-slo: needs an objective of a measure or a rate, as in --slo "p99 < 50ms"; '
            f"there is none among the {len(scenario.slo)} given"
        )


class Launch(NamedTuple):
    """What a load needs beside the broker: a session, an open store, and a plan."""

    spark: Any
    store: Store
    plan: Plan


@contextmanager
def _shown_on(page: Dashboard | None, launch: Launch, show_again: str) -> Iterator[None]:
    if page is None:
        yield
        return
    from bench_spark.watch.dashboard import FollowingThread
    from bench_spark.watch.followed_run import FollowedRun

    # A store of its own: the run's handles are busy with appending.
    followed = FollowedRun(Store(launch.store.uri), launch.plan.run_id)
    following = FollowingThread(page, followed, show_again)
    try:
        yield
    finally:
        following.close()


@contextmanager
def launched(
    asked: Asked, run_id: str, store: str, master: str | None, display: Steps, is_run: bool = True
) -> Iterator[Launch]:
    """A session on the master that was asked for, or on the one that spark-submit has chosen.

    `is_run`: the id is that of a run, and not of a search of several. Nothing touches a broker
    before the id is ours; a run that is refused leaves it to the next.
    """
    if doubt := find_doubt(asked.scenario):
        display.step(f"warning: {doubt}")
    chosen = master
    if is_submitted():
        if master is not None:
            raise ConfigurationError("--master: spark-submit has chosen the master; give it there")
        from bench_spark.spark.session import settled_master

        chosen = settled_master()
    ready = settle(asked.scenario, run_id, store, chosen)
    with claimed(asked, ready) if is_run else nullcontext():
        ask_brokers(asked.scenario, asked.ends, runs_agents_here(master), display)
        from bench_spark.spark.session import local_session_master

        agents = len(ready.plan.assignments) if ready.plan is not None else 0
        own = None if is_submitted() else master or local_session_master(agents)
        with spark_session(own, display) as spark:
            yield _launch(spark, asked, ready, display)


def _launch(spark: Any, asked: Asked, ready: Ready, display: Steps) -> Launch:
    plan = ready.plan or plan_for_cluster(spark, asked.scenario, ready.run_id, display.step)
    text = io.StringIO()
    write_plan(plan, asked.ends.shown, text, asked.ends.all_shown)
    display.detail(f"run {plan.run_id} into {ready.store.uri}\n{text.getvalue()}")
    return Launch(spark, ready.store, plan)


def carried_out(
    launch: Launch,
    asked: Asked,
    display: Steps,
    live: bool,
    trigger_seconds: float | None = None,
    stops_on_slo: bool = False,
) -> RunSummary:
    """One run on the session that is there."""
    from bench_spark.spark.engine import Engine
    from bench_spark.spark.request import RunRequest

    display.name_next(f"{asked.scenario.name} on {asked.ends.name}")
    request = RunRequest(launch.plan, asked.ends, live, stops_on_slo=stops_on_slo)
    with (
        closing(Engine(launch.spark, launch.store, display, trigger_seconds)) as engine,
        with_remedy(asked.ends),
    ):
        return engine.run(request)
