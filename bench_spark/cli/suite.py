"""`bench-spark suite`: grids of trials, planned, run until complete, and reported."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, TextIO

import typer

from bench_spark.cli.asked_suite import (
    AskedSuite,
    QuickOption,
    SuiteArgument,
    SuiteBrokerOption,
    VariantOption,
    load,
)
from bench_spark.cli.files import write_list
from bench_spark.cli.masters import refuse_unshared_store, runs_agents_here
from bench_spark.cli.options import (
    DEFAULT_STORE,
    EgressOption,
    FormatsOption,
    IngressOption,
    JarsOption,
    MasterOption,
    PackagesOption,
    SetOption,
    StoreOption,
    is_typed,
)
from bench_spark.cli.output import parse_formats, to_stdout, write_bytes
from bench_spark.cli.progress import QuietOption, VerboseOption, suite_displays
from bench_spark.cli.spark_session import spark_session
from bench_spark.cli.suite_compare import compare
from bench_spark.cli.suite_trials import agents_of, ask_broker, run_trials
from bench_spark.config.loader import described
from bench_spark.config.problems import shown_path
from bench_spark.config.suite import estimated_seconds, suite_digest, trials_of
from bench_spark.driver_process import end_abandoned
from bench_spark.errors import ConfigurationError
from bench_spark.java import is_submitted
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.charts import SeriesColours
from bench_spark.report.formatting import count, seconds
from bench_spark.report.suite import SuiteReport
from bench_spark.report.suite_figures import suite_figures
from bench_spark.report.suite_table import Outcome, SuiteTable, suite_table
from bench_spark.store.delta import Store
from bench_spark.suites.runner import (
    OVERHEAD_SECONDS,
    TrialRun,
    is_finished,
    refuse_if_changed,
    runs_of_suite,
)

app = typer.Typer(
    help="Grids of trials around a scenario.", no_args_is_help=True, rich_markup_mode=None
)

START_SECONDS = 12.0
"""What Spark takes to start."""


@app.command("list")
def list_suites() -> None:
    """List the shipped suites."""
    write_list(described("suites"))


@app.command("plan")
def plan(
    context: typer.Context,
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    overrides: SetOption = None,
    quick: QuickOption = False,
    variant: VariantOption = None,
) -> None:
    """List the trials of SUITE and how long they take."""
    typed = is_typed(context, "broker")
    asked = load(suite, broker, quick, overrides, variant, ingress, egress, typed)
    to_stdout(lambda writer: _write_plan(asked, writer))


def _write_plan(asked: AskedSuite, writer: TextIO) -> None:
    trials = trials_of(asked.suite)
    for trial in trials:
        skipped = f"  (skipped: {trial.skipped_because})" if trial.skipped_because else ""
        writer.write(f"{trial.number:5d}  {trial.key}{skipped}\n")
    running = sum(trial.skipped_because is None for trial in trials)
    taken = START_SECONDS + estimated_seconds(asked.suite, OVERHEAD_SECONDS)
    writer.write(f"\n{count(running)} trials on {asked.ends.name}, about {seconds(round(taken))}\n")


@app.command("run")
def run(
    context: typer.Context,
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    overrides: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
    master: MasterOption = None,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    quick: QuickOption = False,
    variant: VariantOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Go on although the suite has changed since some trials were run."
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Rolling metrics while the loads run.")
    ] = True,
    formats: FormatsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the trials of SUITE that its store lacks, and print its table.

    A suite that was killed goes on where it was: trials that finished are kept.
    """
    typed = is_typed(context, "broker")
    asked = load(suite, broker, quick, overrides, variant, ingress, egress, typed)
    outputs = parse_formats(formats, "markdown")
    display, of_trials = suite_displays(quiet, verbose)
    if master is not None:
        if is_submitted():
            raise ConfigurationError("--master: spark-submit has chosen the master; give it there")
        refuse_unshared_store(store, master)
    opened = Store(store).open()
    done = runs_of_suite(opened, asked.stored_name, asked.ends.name)
    if not force:
        refuse_if_changed(asked.stored_name, suite_digest(asked.suite), done)
    trials = trials_of(asked.suite)
    missing = [
        trial
        for trial in trials
        if trial.skipped_because is None and not is_finished(trial.key, done)
    ]
    display.step(
        f"{asked.stored_name} on {asked.ends.name}: {len(missing)} trials to run, "
        f"{len(trials) - len(missing)} done or skipped"
    )
    display.detail(f"results go into {opened.uri}\n" + "\n".join(t.key for t in missing))
    exit_code = 0
    if missing:
        for run_id in end_abandoned(opened):
            display.step(f"run {run_id} is abandoned: its driver has vanished")
        for refusal in ask_broker(asked, missing, runs_agents_here(master), display):
            display.step(f"will fail: {refusal}")
        from bench_spark.spark.engine import Engine
        from bench_spark.spark.session import local_session_master

        agents = max(agents_of(trial.scenario) for trial in missing)
        chosen = None if is_submitted() else master or local_session_master(agents)
        with spark_session(chosen, display) as spark:
            refuse_unshared_store(store, spark.sparkContext.master)
            with closing(Engine(spark, opened, of_trials)) as engine:
                display.step("starting workers" + (" and the rolling metrics" if live else ""))
                engine.warm_up(max(1, agents), live)
                displays = (display, of_trials)
                result = run_trials(spark, engine, asked, opened, done, displays, live)
            exit_code = result.exit_code
    outputs.write(_report(asked, _table(asked, opened), store))
    raise typer.Exit(exit_code)


@app.command("report")
def report(
    context: typer.Context,
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    store: StoreOption = DEFAULT_STORE,
    quick: QuickOption = False,
    variant: VariantOption = None,
    formats: FormatsOption = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIRECTORY",
            help="Draw each number against the swept parameter, as SVG and PNG files there.",
        ),
    ] = None,
) -> None:
    """Print the table of SUITE from what its store has."""
    typed = is_typed(context, "broker")
    asked = load(suite, broker, quick, None, variant, ingress, egress, typed)
    outputs = parse_formats(formats, "markdown")
    if figures is not None:
        _make_directory(figures)
    table = _table(asked, Store(store).open())
    outputs.write(_report(asked, table, store))
    if figures is not None:
        _write_figures(table, figures)


app.command("compare")(compare)


# -- reporting -------------------------------------------------------------------------------------


def _report(asked: AskedSuite, table: SuiteTable, store: str) -> SuiteReport:
    return SuiteReport(table, asked.suite, asked.stored_name, asked.ends.name, store)


def _table(asked: AskedSuite, store: Store) -> SuiteTable:
    runs = runs_of_suite(store, asked.stored_name, asked.ends.name)
    return suite_table(asked.suite, {key: _outcome(known) for key, known in runs.items()})


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        shown = shown_path(str(directory))
        raise ConfigurationError(f"--figures: {shown}: {error.strerror}") from error


def _write_figures(table: SuiteTable, directory: Path) -> None:
    colours = SeriesColours()
    for figure in suite_figures(table):
        for ending in DRAWN_AS:
            write_bytes(directory / f"{figure.name}{ending}", drawn(figure.spec, ending, colours))


def _outcome(known: TrialRun) -> Outcome:
    if known.is_finished:
        return Outcome(document=known.document, note=known.note, search_end=known.search_end)
    return Outcome(failure="; ".join(known.reasons) or known.status)
