"""How much a command says of what it does, on standard error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bench_spark.errors import ConfigurationError
from bench_spark.report.live import Steps, Verbosity, display_for

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
