"""A suite as the command line asks for it: which, on what brokers, in small or as a variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from bench_spark.cli.options import BROKER_VARIABLE, DEFAULT_BROKER, complete
from bench_spark.cli.preparing import refuse_idle_broker
from bench_spark.config.ends import Ends
from bench_spark.config.loader import with_ends
from bench_spark.config.models import Scenario
from bench_spark.config.suite import Suite, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.data.checking import with_records_at
from bench_spark.transports.registry import fitted_to

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
