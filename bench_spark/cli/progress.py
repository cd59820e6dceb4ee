"""How much a command says of what it does, on standard error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bench_spark.errors import ConfigurationError
from bench_spark.report.live import Steps, Verbosity, display_for, display_for_trials

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress: the result and errors only.")
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Every step with its time, and what was decided."),
]


def verbosity_of(quiet: bool, verbose: bool) -> Verbosity:
    if quiet and verbose:
        raise ConfigurationError("--quiet, --verbose: give one of them at most")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def display_of(quiet: bool, verbose: bool, live: bool = True) -> Steps:
    return display_for(sys.stderr, live, verbosity_of(quiet, verbose))


def suite_displays(quiet: bool, verbose: bool) -> tuple[Steps, Steps]:
    """For a suite and for each of its trials: of these a terminal shows where they are, and a log
    only what became of them, unless everything is wanted."""
    own = display_of(quiet, verbose, live=False)
    if quiet or verbose:
        return own, display_of(quiet, verbose)
    return own, display_for_trials(sys.stderr)
