"""`bench-spark suite compare`: a suite against itself, on another broker or in another store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from bench_spark.cli.asked_suite import (
    AskedSuite,
    QuickOption,
    SuiteArgument,
    SuiteBrokerOption,
    VariantOption,
    load,
)
from bench_spark.cli.compare import (
    AcrossOption,
    FailIfOption,
    StrictOption,
    group_of_runs,
)
from bench_spark.cli.options import DEFAULT_STORE, FormatsOption, StoreOption
from bench_spark.cli.output import parse_formats
from bench_spark.cli.stored import existing_store
from bench_spark.compare.comparison import Group, comparison_document, parse_gate
from bench_spark.config.suite import RATE, Suite, Trial, trials_of, value_text
from bench_spark.errors import EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.report.comparison import SuiteComparisonReport
from bench_spark.store.delta import Store
from bench_spark.suites.runner import TrialRun, is_finished, runs_of_suite

NO_VARIANT = "none"


def compare(
    suite: SuiteArgument,
    broker: SuiteBrokerOption = None,
    store: StoreOption = DEFAULT_STORE,
    baseline_broker: Annotated[
        str | None,
        typer.Option(
            "--baseline-broker",
            metavar="BROKER",
            help="The baseline ran on this broker; unset: on the same.",
        ),
    ] = None,
    baseline_store: Annotated[
        str | None,
        typer.Option(
            "--baseline-store",
            metavar="PATH",
            help="The baseline is in this store; unset: in the same.",
        ),
    ] = None,
    quick: QuickOption = False,
    variant: VariantOption = None,
    baseline_variant: Annotated[
        str | None,
        typer.Option(
            "--baseline-variant",
            metavar="NAME",
            show_default=False,
            help="The baseline is this variant of the suite, or `none`; unset: the same variant.",
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
    candidate = load(suite, broker, quick, variant=variant)
    before_as = None if baseline_variant == NO_VARIANT else baseline_variant or variant
    baseline = load(suite, baseline_broker or broker, quick, variant=before_as)
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

    def __init__(self, asked: AskedSuite, store: Store, name: str) -> None:
        self.where = f"{asked.ends.name} ({name})"
        self._store = store
        runs = runs_of_suite(store, asked.stored_name, asked.ends.name)
        self.trials = _finished(asked.suite, runs)
        self._searched = {_name(trial) for trial in trials_of(asked.suite) if trial.search}

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
