"""One trial after the other. Knows neither Spark nor brokers: it is given a way to run a trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_GATE_MISSED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_VALID,
    BenchError,
    HookFailed,
)
from bench_spark.report.formatting import one_line
from bench_spark.scenario.suite import (
    Suite,
    Trial,
    estimated_trial_seconds,
    hook_arguments,
    hook_environment,
    trials_of,
)
from bench_spark.suite.hooks import run_hook
from bench_spark.suite.progress import TrialRun, is_finished
from bench_spark.suite.time_left import TimeLeft

SIGNALLED = (EXIT_INTERRUPTED, EXIT_TERMINATED)

OVERHEAD_SECONDS = 1.0
"""What a trial takes beyond its load and drain, for estimates."""


@dataclass(frozen=True)
class Outcome:
    """What became of one trial now."""

    trial: Trial
    exit_code: int
    seconds: float
    text: str = ""
    """Its result in a line, or why there is none."""


@dataclass
class SuiteResult:
    outcomes: list[Outcome] = field(default_factory=list)
    kept: int = 0
    """Trials that were done before."""
    skipped: int = 0

    @property
    def exit_code(self) -> int:
        """A signal before lost data, lost data before any other failure, and a failure before an
        objective that a valid trial has missed."""
        codes = {outcome.exit_code for outcome in self.outcomes}
        for code in (*SIGNALLED, EXIT_DATA_LOST):
            if code in codes:
                return code
        if codes <= {EXIT_VALID, EXIT_GATE_MISSED}:
            return max(codes, default=EXIT_VALID)
        return EXIT_DEGRADED


class TrialEnd(NamedTuple):
    """How a trial that ran has ended."""

    exit_code: int
    text: str


RunTrial = Callable[[Trial], TrialEnd]
"""Raises a BenchError when the trial could not start."""
Say = Callable[[str], None]


def run_suite(
    suite: Suite,
    done: Mapping[str, TrialRun],
    run_trial: RunTrial,
    say: Say,
    name_next: Say,
    tools: Mapping[str, str] | None = None,
) -> SuiteResult:
    """Run what is missing. A trial that fails costs only itself; a signal ends the suite.

    `say` is told a line when a trial is over, `name_next` what to call the one that begins. `tools`
    are variables for the hooks that name the broker's own programs; whoever has set one already
    knows better.
    """
    tools = {name: text for name, text in (tools or {}).items() if name not in os.environ}
    result = SuiteResult()
    trials = trials_of(suite)
    left = TimeLeft(
        {
            trial.key: estimated_trial_seconds(suite, trial, OVERHEAD_SECONDS)
            for trial in trials
            if trial.skipped_because is None and not is_finished(trial.key, done)
        }
    )
    for trial in trials:
        place = f"trial {trial.number} of {len(trials)}"
        if trial.skipped_because is not None:
            result.skipped += 1
            say(f"{place}: skipped, {trial.skipped_because}")
            continue
        if is_finished(trial.key, done):
            result.kept += 1
            continue
        name_next(f"{place}, {left.text}")
        outcome = _run_one(suite, trial, run_trial, tools)
        result.outcomes.append(outcome)
        left.took(trial.key, outcome.seconds)
        say(f"{place}: {trial.key}: {one_line(outcome.text)}; {left.text}")
        if outcome.exit_code in SIGNALLED:
            break
    return result


def _run_one(suite: Suite, trial: Trial, run_trial: RunTrial, tools: Mapping[str, str]) -> Outcome:
    started = time.monotonic()
    exit_code, text = EXIT_VALID, ""
    try:
        _hook(suite, trial, "before", suite.hooks.before, tools)
        exit_code, text = run_trial(trial)
    except BenchError as error:
        exit_code, text = error.exit_code, f"failed, {error}"
    try:
        _hook(suite, trial, "after", suite.hooks.after, tools)
    except HookFailed as error:
        exit_code, text = exit_code or error.exit_code, f"{text}; {error}"
    return Outcome(trial, exit_code, time.monotonic() - started, text)


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
