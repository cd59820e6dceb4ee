"""`bench-spark suite`: grids of trials, planned, run until complete, reported and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
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
from bench_spark.cli.results import AcrossOption, DegradedOption, FailIfOption, StrictOption
from bench_spark.compare.comparison import parse_gate
from bench_spark.config.loader import described
from bench_spark.config.problems import shown_path
from bench_spark.config.suite_loader import load_suite
from bench_spark.errors import EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.report.charts import DRAWN_AS, SeriesColours, drawn
from bench_spark.report.comparison import SuiteComparisonReport
from bench_spark.report.plan_text import write_suite_plan
from bench_spark.report.suite import SuiteReport, suite_figures
from bench_spark.report.suite_table import SuiteTable
from bench_spark.results.stored import existing_store
from bench_spark.runs import open_store, refuse_idle_broker
from bench_spark.store.delta import Store
from bench_spark.suites.comparison import StoredSuite, suite_comparison
from bench_spark.suites.suite import (
    SuiteConfig,
    run_missing,
    stored_table,
)

app = typer.Typer(
    help="Grids of trials around a scenario.", no_args_is_help=True, rich_markup_mode=None
)

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
    to_stdout(lambda writer: write_suite_plan(config.suite, config.ends.name, writer))


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
    store = open_store(session.store, session.master)
    displays = suite_displays(session.quiet, session.verbose)
    exit_code = run_missing(config, store, session.master, displays, live, force)
    outputs.write(_report(config, stored_table(config, store), session.store))
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
    table = stored_table(config, Store(store).open())
    outputs.write(_report(config, table, store))
    if figures is not None:
        _write_figures(table, figures)


# -- reporting -------------------------------------------------------------------------------------


def _report(config: SuiteConfig, table: SuiteTable, store: str) -> SuiteReport:
    return SuiteReport(table, config.stored_name, config.ends.name, store)


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
    degraded: DegradedOption = False,
    formats: FormatsOption = None,
) -> None:
    """Compare what a store has of SUITE with a baseline, combination by combination.

    Exit code 0, or 1 if a condition given by --fail-if holds for any of them, or is about runs that
    are not comparable or not valid.
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
    before = StoredSuite(baseline, existing_store(baseline_store or store), "baseline")
    after = StoredSuite(candidate, existing_store(store), "candidate")
    document = suite_comparison(before, after, gates, strict, across, degraded)
    outputs.write(SuiteComparisonReport(document))
    raise typer.Exit(EXIT_VALID if document["passed"] else EXIT_GATE_MISSED)
