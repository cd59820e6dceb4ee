"""`bench-spark compare`: runs against a baseline, with gates for pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import FormatsOption, StoreOption, Texts, argument, option
from bench_spark.cli.output import parse_formats
from bench_spark.compare.comparison import Group, comparison_document, parse_gate
from bench_spark.config.problems import shown_value
from bench_spark.errors import EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.report.comparison import ComparisonReport
from bench_spark.results.stored import existing_store
from bench_spark.runs import group_of_runs
from bench_spark.store.delta import Store

FailIfOption = Annotated[
    Texts,
    option(
        "--fail-if CONDITION",
        "End with exit code 1 if it holds: 'p99 > 1.10x', 'receive_rate < 0.95x', "
        "'latency.p99 > 5ms', 'lost > 0'; repeatable.",
    ),
]
StrictOption = Annotated[
    bool,
    option("--strict", "Judge conditions by the numbers themselves, not by their whole intervals."),
]
AcrossOption = Annotated[
    bool,
    option(
        "--across",
        "Compare runs although they differ in what was asked for: in keys of the scenario "
        "that change the load, or in the kind of broker.",
    ),
]


def compare(
    runs: Annotated[
        list[str],
        argument(
            "BASELINE CANDIDATE...",
            "Run ids, as `runs` lists them; repetitions as RUN,RUN,RUN.",
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
