"""`bench-spark compare` and `suite compare`: runs against a baseline, with gates for pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import FormatsOption, StoreOption
from bench_spark.cli.output import parse_formats
from bench_spark.cli.stored import existing_store, stored_run
from bench_spark.cli.suite import (
    QuickOption,
    SuiteArgument,
    SuiteBrokerOption,
    SuiteOptions,
    VariantOption,
)
from bench_spark.cli.suite import app as suite_app
from bench_spark.compare.comparison import Group, comparison_document, parse_gate
from bench_spark.compare.series import RunSeries, run_series
from bench_spark.config.problems import shown_value
from bench_spark.config.suite import RATE, Suite, Trial, trials_of, value_text
from bench_spark.errors import EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.report.comparison import ComparisonReport, SuiteComparisonReport
from bench_spark.store.delta import Store
from bench_spark.suites.runner import TrialRun, is_finished, runs_of_suite
from bench_spark.suites.suite_config import SuiteConfig

FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help="End with exit code 1 if it holds: 'p99 > 1.10x', 'receive_rate < 0.95x', "
        "'latency.p99 > 5ms', 'lost > 0'; repeatable.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Judge conditions by the numbers themselves, not by their whole intervals.",
    ),
]
AcrossOption = Annotated[
    bool,
    typer.Option(
        "--across",
        help="Compare runs although they differ in what was asked for: in keys of the scenario "
        "that change the load, or in the kind of broker.",
    ),
]


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BASELINE CANDIDATE...",
            help="Run ids, as `runs` lists them; repetitions as RUN,RUN,RUN.",
            show_default=False,
        ),
    ],
    store: StoreOption = DEFAULT_STORE,
    fail_if: FailIfOption = None,
    strict: StrictOption = False,
    across: AcrossOption = False,
    formats: FormatsOption = None,
) -> None:
    """Compare runs with a baseline: differences with their confidence intervals.

    Exit code 0, or 1 if a condition given by --fail-if holds, or is about runs that are not
    comparable.
    """
    outputs = parse_formats(formats)
    gates = [parse_gate(text) for text in fail_if or []]
    if len(runs) < 2:
        raise ConfigurationError("compare: give a baseline and at least one run to compare with it")
    opened = existing_store(store)
    groups = [_group(opened, text) for text in runs]
    title = f"{', '.join(group.label for group in groups[1:])} against {groups[0].label}"
    pairs = [(groups[0], candidate) for candidate in groups[1:]]
    document = comparison_document(title, pairs, gates, strict, across)
    outputs.write(ComparisonReport(document))
    raise typer.Exit(EXIT_VALID if document["passed"] else EXIT_GATE_MISSED)


def _group(store: Store, text: str) -> Group:
    run_ids = [part.strip() for part in text.split(",")]
    if not all(run_ids):
        raise ConfigurationError(f"compare: {shown_value(text)}: a run id between commas is empty")
    if len(set(run_ids)) < len(run_ids):
        raise ConfigurationError(
            f"compare: {shown_value(text)}: a run is named twice, which would make it look surer"
        )
    more = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
    return group_of_runs(store, run_ids, run_ids[0] + more)


def group_of_runs(
    store: Store, run_ids: Sequence[str], label: str, found_keys: Sequence[str] = ()
) -> Group:
    return Group(label, [_series(store, run_id) for run_id in run_ids], found_keys)


def _series(store: Store, run_id: str) -> RunSeries:
    from bench_spark.spark.merge import merged_ticks_here

    found = stored_run(store, run_id)
    if not found.document.get("measures") and not found.document.get("rates"):
        raise ConfigurationError(
            f"compare: {run_id} has no result: it is {found.document['status']}"
        )
    [times] = store.read(
        "runs", columns=["measured_from", "measured_until"], run_id=run_id
    ).to_pylist()
    began, ended = times["measured_from"], times["measured_until"]
    measured = None if began is None or ended is None else (began.timestamp(), ended.timestamp())
    resources = store.read("resources", run_id=run_id, phase="measure").to_pylist()
    return run_series(found.document, merged_ticks_here(store, run_id), measured, resources)


# -- suites ---------------------------------------------------------------------------------------

NO_VARIANT = "none"


@suite_app.command("compare")
def compare_suite(
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
