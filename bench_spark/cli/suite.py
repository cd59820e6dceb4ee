"""`bench-spark suite`: grids of trials, planned, run until complete, reported and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TextIO

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.compare import AcrossOption, FailIfOption, StrictOption, group_of_runs
from bench_spark.cli.files import write_list
from bench_spark.cli.options import (
    BROKER_VARIABLE,
    DEFAULT_BROKER,
    EgressOption,
    FormatsOption,
    IngressOption,
    SessionOptions,
    SetOption,
    StoreOption,
    Text,
    argument,
    option,
    suite_displays,
    with_options,
)
from bench_spark.cli.output import parse_formats, to_stdout, write_bytes
from bench_spark.cli.results import existing_store
from bench_spark.compare.comparison import Group, comparison_document, parse_gate
from bench_spark.config.loader import described
from bench_spark.config.problems import shown_path
from bench_spark.config.suite import (
    RATE,
    Suite,
    Trial,
    estimated_seconds,
    suite_digest,
    trials_of,
    value_text,
)
from bench_spark.config.suite_loader import load_suite
from bench_spark.driver_process import end_abandoned
from bench_spark.errors import EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.plan import SLOTS_FOR_STREAMING
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.charts import SeriesColours
from bench_spark.report.comparison import SuiteComparisonReport
from bench_spark.report.formatting import count, seconds
from bench_spark.report.suite import SuiteReport, suite_figures
from bench_spark.report.suite_table import SuiteTable, TrialResult, suite_table
from bench_spark.runs import open_store, refuse_idle_broker, session_master
from bench_spark.spark.launch import refuse_unshared_store, runs_agents_here, spark_session
from bench_spark.store.delta import Store
from bench_spark.suites.suite import (
    OVERHEAD_SECONDS,
    SuiteConfig,
    TrialRun,
    agents_of,
    is_finished,
    refuse_if_changed,
    runs_of_suite,
)

app = typer.Typer(
    help="Grids of trials around a scenario.", no_args_is_help=True, rich_markup_mode=None
)

START_SECONDS = 12.0
"""What Spark takes to start."""


SuiteArgument = Annotated[
    str,
    argument(
        "SUITE",
        "A suite file, or the name of a shipped one.",
        show_default=False,
        completes="suites",
    ),
]
SuiteBrokerOption = Annotated[
    Text,
    option(
        "--broker BROKER",
        "A broker file, or the name of a shipped one.",
        envvar=BROKER_VARIABLE,
        show_default=f"the suite's, else {DEFAULT_BROKER}",
        completes="brokers",
    ),
]
QuickOption = Annotated[
    bool, option("--quick", "The suite in small: every axis with two or three values.")
]
VariantOption = Annotated[
    Text,
    option(
        "--variant NAME",
        "The suite with the settings that it has under this name.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class SuiteOptions:
    """A suite, the broker that it runs on, and what of it is wanted."""

    suite: SuiteArgument
    broker: SuiteBrokerOption = None
    ingress: IngressOption = None
    egress: EgressOption = None
    quick: QuickOption = False
    variant: VariantOption = None
    given_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Where the value of each option comes from: COMMANDLINE, ENVIRONMENT or DEFAULT."""

    def load(self, overrides: Sequence[str] | None = None) -> SuiteConfig:
        loaded = load_suite(self.suite, self.quick, overrides or [], self.variant)
        if self.given_by.get("broker") == "COMMANDLINE":
            refuse_idle_broker(loaded.base, self.ingress, self.egress)
        broker = self.broker or loaded.broker or DEFAULT_BROKER
        return SuiteConfig.checked(loaded, broker, self.ingress or [], self.egress or [])


@app.command("list")
def list_suites() -> None:
    """List the shipped suites."""
    write_list(described("suites"))


@app.command("plan")
@with_options
def plan(options: SuiteOptions, overrides: SetOption = None) -> None:
    """List the trials of SUITE and how long they take."""
    config = options.load(overrides)
    to_stdout(lambda writer: _write_plan(config, writer))


def _write_plan(config: SuiteConfig, writer: TextIO) -> None:
    trials = trials_of(config.suite)
    for trial in trials:
        skipped = f"  (skipped: {trial.skipped_because})" if trial.skipped_because else ""
        writer.write(f"{trial.number:5d}  {trial.key}{skipped}\n")
    running = sum(trial.skipped_because is None for trial in trials)
    taken = START_SECONDS + estimated_seconds(config.suite, OVERHEAD_SECONDS)
    writer.write(
        f"\n{count(running)} trials on {config.ends.name}, about {seconds(round(taken))}\n"
    )


@app.command("run")
@with_options
def run(
    options: SuiteOptions,
    session: SessionOptions,
    overrides: SetOption = None,
    force: Annotated[
        bool, option("--force", "Go on although the suite has changed since some trials were run.")
    ] = False,
    live: Annotated[
        bool, option("--live/--no-live", "Rolling metrics while the loads run.")
    ] = True,
    formats: FormatsOption = None,
) -> None:
    """Run the trials of SUITE that its store lacks, and print its table.

    A suite that was killed goes on where it was: trials that finished are kept.
    """
    config = options.load(overrides)
    outputs = parse_formats(formats, "markdown")
    store, master = session.store, session.master
    display, of_trials = suite_displays(session.quiet, session.verbose)
    opened = open_store(store, master)
    done = runs_of_suite(opened, config.stored_name, config.ends.name)
    if not force:
        refuse_if_changed(config.stored_name, suite_digest(config.suite), done)
    trials = trials_of(config.suite)
    missing = [
        trial
        for trial in trials
        if trial.skipped_because is None and not is_finished(trial.key, done)
    ]
    display.step(
        f"{config.stored_name} on {config.ends.name}: {len(missing)} trials to run, "
        f"{len(trials) - len(missing)} done or skipped"
    )
    display.detail(f"results go into {opened.uri}\n" + "\n".join(t.key for t in missing))
    exit_code = 0
    if missing:
        for run_id in end_abandoned(opened):
            display.step(f"run {run_id} is abandoned: its driver has vanished")
        for refusal in config.ask_broker(missing, runs_agents_here(master), display):
            display.step(f"will fail: {refusal}")
        from bench_spark.spark.engine import Engine

        agents = max(agents_of(trial.scenario) for trial in missing)
        slots = agents + SLOTS_FOR_STREAMING
        with spark_session(session_master(master, agents), display, slots) as spark:
            refuse_unshared_store(store, spark.sparkContext.master)
            with closing(Engine(spark, opened, of_trials)) as engine:
                display.step("starting workers" + (" and the rolling metrics" if live else ""))
                engine.warm_up(max(1, agents), live)
                displays = (display, of_trials)
                result = config.run_trials(spark, engine, opened, done, displays, live)
            exit_code = result.exit_code
    outputs.write(_report(config, _table(config, opened), store))
    raise typer.Exit(exit_code)


@app.command("report")
@with_options
def report(
    options: SuiteOptions,
    store: StoreOption = DEFAULT_STORE,
    formats: FormatsOption = None,
    figures: Annotated[
        Path | None,
        option(
            "--figures DIRECTORY",
            "Draw each number against the swept parameter, as SVG and PNG files there.",
        ),
    ] = None,
) -> None:
    """Print the table of SUITE from what its store has."""
    config = options.load()
    outputs = parse_formats(formats, "markdown")
    if figures is not None:
        _make_directory(figures)
    table = _table(config, Store(store).open())
    outputs.write(_report(config, table, store))
    if figures is not None:
        _write_figures(table, figures)


# -- reporting -------------------------------------------------------------------------------------


def _report(config: SuiteConfig, table: SuiteTable, store: str) -> SuiteReport:
    return SuiteReport(table, config.stored_name, config.ends.name, store)


def _table(config: SuiteConfig, store: Store) -> SuiteTable:
    runs = runs_of_suite(store, config.stored_name, config.ends.name)
    return suite_table(config.suite, {key: _outcome(known) for key, known in runs.items()})


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


def _outcome(known: TrialRun) -> TrialResult:
    if known.is_finished:
        return TrialResult(document=known.document, note=known.note, search_end=known.search_end)
    return TrialResult(failure="; ".join(known.reasons) or known.status)


# -- comparing ------------------------------------------------------------------------------------

NO_VARIANT = "none"


@app.command("compare")
def compare_suite(
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    store: StoreOption = DEFAULT_STORE,
    baseline_broker: Annotated[
        Text,
        option("--baseline-broker BROKER", "The baseline ran on this broker; unset: on the same."),
    ] = None,
    baseline_store: Annotated[
        Text, option("--baseline-store PATH", "The baseline is in this store; unset: in the same.")
    ] = None,
    quick: QuickOption = False,
    variant: VariantOption = None,
    baseline_variant: Annotated[
        Text,
        option(
            "--baseline-variant NAME",
            "The baseline is this variant of the suite, or `none`; unset: the same variant.",
            show_default=False,
        ),
    ] = None,
    fail_if: FailIfOption = None,
    strict: StrictOption = False,
    across: AcrossOption = False,
    formats: FormatsOption = None,
) -> None:
    """Compare what a store has of SUITE with a baseline, combination by combination.

    Exit code 0, or 1 if a condition given by --fail-if holds for any of them, or is about runs that
    are not comparable.
    """
    outputs = parse_formats(formats)
    gates = [parse_gate(text) for text in fail_if or []]
    if baseline_broker is None and baseline_store is None and baseline_variant is None:
        raise ConfigurationError(
            "suite compare: give --baseline-broker, --baseline-store or --baseline-variant: with "
            "none of them the suite would be compared with itself"
        )
    candidate = SuiteOptions(suite, broker, quick=quick, variant=variant).load()
    before_as = None if baseline_variant == NO_VARIANT else baseline_variant or variant
    before_on = baseline_broker or broker
    baseline = SuiteOptions(suite, before_on, quick=quick, variant=before_as).load()
    before = _Side(baseline, existing_store(baseline_store or store), "baseline")
    after = _Side(candidate, existing_store(store), "candidate")
    shared = [name for name in before.trials if name in after.trials]
    if not shared:
        raise ConfigurationError(
            f"suite compare: {candidate.stored_name}: no combination was measured on both sides"
        )
    title = f"{candidate.stored_name}: {after.where} against {before.where}"
    if baseline.stored_name != candidate.stored_name:
        title += f" of {baseline.stored_name}"
    pairs = ((before.group(name), after.group(name)) for name in shared)
    document = dict(comparison_document(title, pairs, gates, strict, across))
    document["unmatched"] = list(_unmatched(candidate.suite, before, after))
    outputs.write(SuiteComparisonReport(document))
    raise typer.Exit(EXIT_VALID if document["passed"] else EXIT_GATE_MISSED)


class _Side:
    """The finished trials of one side, by the name of their combination."""

    def __init__(self, config: SuiteConfig, store: Store, name: str) -> None:
        self.where = f"{config.ends.name} ({name})"
        self._store = store
        runs = runs_of_suite(store, config.stored_name, config.ends.name)
        self.trials = _finished(config.suite, runs)
        self._searched = {_name(trial) for trial in trials_of(config.suite) if trial.search}

    def group(self, name: str) -> Group:
        found_keys = (RATE,) if name in self._searched else ()
        return group_of_runs(self._store, self.trials[name], name, found_keys)


def _finished(suite: Suite, runs: Mapping[str, TrialRun]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trial in trials_of(suite):
        if is_finished(trial.key, runs):
            found.setdefault(_name(trial), []).append(runs[trial.key].run_id)
    return found


def _name(trial: Trial) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in trial.parameters.items())


def _unmatched(suite: Suite, before: _Side, after: _Side) -> Iterator[str]:
    for name in dict.fromkeys(_name(trial) for trial in trials_of(suite)):
        missing = [side.where for side in (before, after) if name not in side.trials]
        if len(missing) == 1:
            yield f"{name}: nothing finished on {missing[0]}"
