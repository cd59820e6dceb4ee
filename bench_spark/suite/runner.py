"""One trial after the other. Knows neither Spark nor brokers: it is given a way to run a trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_VALID,
    BenchError,
    HookFailed,
)
from bench_spark.scenario.suite import Suite, Trial, hook_arguments, hook_environment, trials_of
from bench_spark.suite.hooks import run_hook
from bench_spark.suite.progress import TrialRun, is_finished

SIGNALLED = (EXIT_INTERRUPTED, EXIT_TERMINATED)


@dataclass(frozen=True)
class Outcome:
    """What became of one trial now."""

    trial: Trial
    exit_code: int
    seconds: float
    reason: str = ""


@dataclass
class SuiteResult:
    outcomes: list[Outcome] = field(default_factory=list)
    kept: int = 0
    """Trials that were done before."""
    skipped: int = 0

    @property
    def exit_code(self) -> int:
        """A signal before lost data, lost data before any other failure."""
        codes = {outcome.exit_code for outcome in self.outcomes}
        for code in (*SIGNALLED, EXIT_DATA_LOST):
            if code in codes:
                return code
        return EXIT_VALID if codes <= {EXIT_VALID} else EXIT_DEGRADED


RunTrial = Callable[[Trial], int]
"""Runs a trial and returns its exit code; raises a BenchError when it could not start."""
Say = Callable[[str], None]


def run_suite(
    suite: Suite,
    done: Mapping[str, TrialRun],
    run_trial: RunTrial,
    say: Say,
    tools: Mapping[str, str] | None = None,
) -> SuiteResult:
    """Run what is missing. A trial that fails costs only itself; a signal ends the suite.

    `tools` are variables for the hooks that name the broker's own programs; whoever has set one
    already knows better.
    """
    tools = {name: text for name, text in (tools or {}).items() if name not in os.environ}
    result = SuiteResult()
    trials = trials_of(suite)
    for trial in trials:
        place = f"trial {trial.number} of {len(trials)}"
        if trial.skipped_because is not None:
            result.skipped += 1
            say(f"{place}: skipped, {trial.skipped_because}")
            continue
        if is_finished(trial.key, done):
            result.kept += 1
            continue
        say(f"{place}: {trial.key}")
        outcome = _run_one(suite, trial, run_trial, tools)
        result.outcomes.append(outcome)
        if outcome.reason:
            say(f"{place}: {outcome.reason}")
        if outcome.exit_code in SIGNALLED:
            break
    return result


def _run_one(suite: Suite, trial: Trial, run_trial: RunTrial, tools: Mapping[str, str]) -> Outcome:
    started = time.monotonic()
    exit_code, reason = EXIT_VALID, ""
    try:
        _hook(suite, trial, "before", suite.hooks.before, tools)
        exit_code = run_trial(trial)
    except BenchError as error:
        exit_code, reason = error.exit_code, str(error)
    try:
        _hook(suite, trial, "after", suite.hooks.after, tools)
    except HookFailed as error:
        exit_code, reason = exit_code or error.exit_code, reason or str(error)
    return Outcome(trial, exit_code, time.monotonic() - started, reason)


def _hook(
    suite: Suite,
    trial: Trial,
    when: str,
    command: Sequence[str] | None,
    tools: Mapping[str, str],
) -> None:
    if command is not None:
        run_hook(
            hook_arguments(command, trial),
            when,
            suite.directory,
            {**tools, **hook_environment(suite, trial)},
            suite.hooks.timeout_seconds,
        )
