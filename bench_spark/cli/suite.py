"""`bench-spark suite`: grids of trials, planned, run until complete, and reported."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bench_spark.cli.examples import epilog
from bench_spark.cli.masters import refuse_unshared_store
from bench_spark.cli.options import (
    BROKER_VARIABLE,
    DEFAULT_BROKER,
    DEFAULT_STORE,
    EgressOption,
    IngressOption,
    MasterOption,
    SetOption,
    StoreOption,
    complete,
    is_typed,
)
from bench_spark.cli.output import Formats, Outputs, parse_formats_of, to_stdout, write_bytes
from bench_spark.cli.preflight import refuse_what_the_broker_cannot, start_of_broker_hinted
from bench_spark.cli.preparing import plan_for, plan_for_cluster, refuse_idle_broker
from bench_spark.cli.progress import QuietOption, VerboseOption, suite_displays
from bench_spark.cli.spark_session import spark_session
from bench_spark.conf_files import shipped
from bench_spark.errors import BrokerUnreachable, ConfigurationError
from bench_spark.identity.preparing import with_records_at
from bench_spark.plan import Plan
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.formatting import count, seconds
from bench_spark.report.html_suite import write_suite_html
from bench_spark.report.live import Steps
from bench_spark.report.suite_figures import suite_figures
from bench_spark.report.suite_formats import write_csv, write_json, write_markdown
from bench_spark.report.suite_table import Outcome, SuiteTable, suite_table
from bench_spark.scenario.ends import Ends
from bench_spark.scenario.ends_loader import with_ends
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.shown import shown_path
from bench_spark.scenario.suite import Suite, Trial, estimated_seconds, suite_digest, trials_of
from bench_spark.scenario.suite_loader import load_suite
from bench_spark.search.rate_trials import received_per_second
from bench_spark.store import Store
from bench_spark.suite.progress import (
    TrialRun,
    add_tags,
    is_finished,
    refuse_if_changed,
    runs_of_suite,
)
from bench_spark.suite.runner import OVERHEAD_SECONDS, SuiteResult, run_suite
from bench_spark.suite.trials import Abilities, SuiteTrials
from bench_spark.summary.rows import TrialOf
from bench_spark.transports.registry import fitted_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench_spark.spark.engine import Engine

app = typer.Typer(
    help="Grids of trials around a scenario.", no_args_is_help=True, rich_markup_mode=None
)

START_SECONDS = 12.0
"""What Spark takes to start."""

SuiteArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUITE",
        help="A suite file, or the name of a shipped one.",
        show_default=False,
        autocompletion=lambda incomplete: complete("suites", incomplete),
    ),
]
SuiteBrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="BROKER",
        envvar=BROKER_VARIABLE,
        show_default=f"the suite's, else {DEFAULT_BROKER}",
        help="A broker file, or the name of a shipped one.",
        autocompletion=lambda incomplete: complete("brokers", incomplete),
    ),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="The suite in small: every axis with two or three values.")
]
VariantOption = Annotated[
    str | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        show_default=False,
        help="The suite with the settings that it has under this name.",
    ),
]

SuiteFormatsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="FORMAT[=FILE]",
        help="Of the table: markdown (the default), csv, json or html; repeatable.",
    ),
]


@dataclass(frozen=True)
class AskedSuite:
    """A suite and the broker that it runs on, both checked."""

    suite: Suite
    ends: Ends

    @property
    def stored_name(self) -> str:
        """A suite in small is another suite: its results are not of the same load."""
        return f"{self.suite.name}-quick" if self.suite.is_quick else self.suite.name

    def fitted(self, scenario: Scenario) -> Scenario:
        """A trial's scenario as it runs on these brokers."""
        ends = self.ends
        if ends.are_apart:
            sides = ([end.broker for end in side] for side in (ends.ingress, ends.egress))
            scenario, _ = with_ends(scenario, None, *sides)
        return with_records_at(fitted_to(scenario, ends), ends)


def load(
    suite: str,
    broker: str | None,
    quick: bool,
    overrides: list[str] | None = None,
    variant: str | None = None,
    ingress: list[str] | None = None,
    egress: list[str] | None = None,
    is_broker_typed: bool = False,
) -> AskedSuite:
    loaded = load_suite(suite, quick, overrides or [], variant)
    if is_broker_typed:
        refuse_idle_broker(loaded.base, ingress, egress)
    where = broker or loaded.broker or DEFAULT_BROKER
    _, ends = with_ends(loaded.base, where, ingress or [], egress or [])
    asked = AskedSuite(loaded, ends)
    for trial in trials_of(loaded):
        if trial.skipped_because is None:
            asked.fitted(trial.scenario)
    return asked


@app.command("list", epilog=epilog("suite list"))
def list_suites() -> None:
    """List the shipped suites."""
    to_stdout(lambda writer: writer.writelines(f"{name}\n" for name in shipped("suites")))


@app.command("plan", epilog=epilog("suite plan"))
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


@app.command("run", epilog=epilog("suite run", exit_codes=True))
def run(
    context: typer.Context,
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    overrides: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
    master: MasterOption = None,
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
    formats: SuiteFormatsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the trials of SUITE that its store lacks, and print its table.

    A suite that was killed goes on where it was: trials that finished are kept.
    """
    from bench_spark.spark.session import is_submitted, local_session_master

    typed = is_typed(context, "broker")
    asked = load(suite, broker, quick, overrides, variant, ingress, egress, typed)
    outputs = _outputs(asked, store, formats)
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
        agents_are_here = not is_submitted() and (master or "local").startswith("local")
        for refusal in _ask_broker(asked, missing, agents_are_here):
            display.step(f"will fail: {refusal}")
        agents = max(_agents_of(trial.scenario) for trial in missing)
        chosen = None if is_submitted() else master or local_session_master(agents)
        with spark_session(chosen, display) as spark:
            refuse_unshared_store(store, spark.sparkContext.master)
            with _engine(spark, opened, of_trials) as engine:
                display.step("starting workers" + (" and the rolling metrics" if live else ""))
                engine.warm_up(max(1, agents), live)
                displays = (display, of_trials)
                result = _run_all(spark, engine, asked, opened, done, displays, live)
            exit_code = result.exit_code
    outputs.write(_table(asked, opened))
    raise typer.Exit(exit_code)


@app.command("report", epilog=epilog("suite report"))
def report(
    context: typer.Context,
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    ingress: IngressOption = None,
    egress: EgressOption = None,
    store: StoreOption = DEFAULT_STORE,
    quick: QuickOption = False,
    variant: VariantOption = None,
    formats: SuiteFormatsOption = None,
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
    outputs = _outputs(asked, store, formats)
    if figures is not None:
        _make_directory(figures)
    table = _table(asked, Store(store).open())
    outputs.write(table)
    if figures is not None:
        _write_figures(table, figures)


# -- running ---------------------------------------------------------------------------------------


def _ask_broker(asked: AskedSuite, trials: Sequence[Trial], agents_are_here: bool) -> list[str]:
    """Refuse now what the broker would refuse trial by trial; what it refuses of some is returned.

    Whether it can be reached is for the agents to say where they run elsewhere, and for the first
    trial where a hook may start it.
    """
    named = [(trial.key, asked.fitted(trial.scenario)) for trial in trials]
    try:
        with start_of_broker_hinted(asked.ends):
            return refuse_what_the_broker_cannot(named, asked.ends)
    except BrokerUnreachable:
        if agents_are_here and asked.suite.hooks.before is None:
            raise
    return []


def _agents_of(scenario: Scenario) -> int:
    found = plan_for(scenario, "suite", None)
    return len(found.assignments) if found is not None else 0


@contextmanager
def _engine(spark: Any, store: Store, display: Steps) -> Iterator[Engine]:
    from bench_spark.spark.engine import Engine

    engine = Engine(spark, store, display)
    try:
        yield engine
    finally:
        engine.close()


def _run_all(
    spark: Any,
    engine: Engine,
    asked: AskedSuite,
    store: Store,
    done: Mapping[str, TrialRun],
    displays: tuple[Steps, Steps],
    live: bool,
) -> SuiteResult:
    from bench_spark.brokers import tools_environment
    from bench_spark.spark.engine import RunRequest
    from bench_spark.spark.ticks import merged_ticks_here

    master = spark.sparkContext.master

    def plan_of(scenario: Scenario) -> Plan:
        run_id = _run_id(asked.stored_name)
        local = None if master.startswith("local") else master
        return plan_for(scenario, run_id, local) or plan_for_cluster(spark, scenario, run_id)

    def run_scenario(scenario: Scenario, place: TrialOf) -> Any:
        plan = plan_of(asked.fitted(scenario))
        with start_of_broker_hinted(asked.ends):
            return engine.run(RunRequest(plan, asked.ends, live, place))

    abilities = Abilities(
        run=run_scenario,
        ticks=lambda run_id: merged_ticks_here(store, run_id),
        tag=lambda run_id, tags: add_tags(store, run_id, tags),
    )
    throughputs = {
        key: received_per_second(known.document)
        for key, known in done.items()
        if known.is_finished and known.document is not None
    }
    trials = SuiteTrials(asked.suite, asked.stored_name, abilities, throughputs)
    tools = {
        key: text for end in asked.ends.once for key, text in tools_environment(end.broker).items()
    }
    display, of_trials = displays
    return run_suite(asked.suite, done, trials.run, display.step, of_trials.name_next, tools)


def _run_id(suite: str) -> str:
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{suite[:80]}-{moment}-{secrets.token_hex(2)}"


# -- reporting -------------------------------------------------------------------------------------


def _outputs(asked: AskedSuite, store: str, formats: Sequence[str] | None) -> Outputs[SuiteTable]:
    def write_html(table: SuiteTable, writer: TextIO) -> None:
        name = asked.stored_name
        write_suite_html(table, asked.suite, name, asked.ends.name, store, writer)

    known = Formats[SuiteTable](
        {"markdown": write_markdown, "csv": write_csv, "json": write_json, "html": write_html}
    )
    return parse_formats_of(known, formats or ["markdown"])


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
    for figure in suite_figures(table):
        for ending in DRAWN_AS:
            write_bytes(directory / f"{figure.name}{ending}", drawn(figure.spec, ending))


def _outcome(known: TrialRun) -> Outcome:
    if known.is_finished:
        return Outcome(document=known.document, note=known.note)
    return Outcome(failure="; ".join(known.reasons) or known.status)
