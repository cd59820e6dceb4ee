"""Trials of a suite one after the other: hooks, what is done already, how long it takes.

What of a suite is done: read from the runs in its store, so that a killed suite goes on. A trial is
known by its key, which its run carries as a tag; so does the digest of the suite file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench_spark.config.suite import (
    Suite,
    Trial,
    estimated_trial_seconds,
    hook_arguments,
    hook_environment,
    trials_of,
)
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_GATE_MISSED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_VALID,
    BenchError,
    ConfigurationError,
    HookFailed,
)
from bench_spark.process import output_of
from bench_spark.report.formatting import one_line, seconds
from bench_spark.results.document import Document
from bench_spark.store.delta import Store

_SHOWN_CHARACTERS = 300


def run_hook(
    command: Sequence[str],
    when: str,
    directory: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
) -> None:
    """Run it in that directory; its environment is added to our own."""
    program = command[0]
    if "/" in program:
        program = str(directory / program)
    try:
        exit_code, output = output_of(
            [program, *command[1:]],
            timeout_seconds,
            stderr=subprocess.STDOUT,
            directory=directory,
            environment=environment,
        )
    except OSError as error:
        raise HookFailed(f"hook {when}: {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise HookFailed(
            f"hook {when}: {command[0]} was not done after {timeout_seconds:g} s"
        ) from None
    if exit_code != 0:
        said = " ".join(output.split())[-_SHOWN_CHARACTERS:]
        ending = f"hook {when}: {command[0]} ended with exit code {exit_code}"
        raise HookFailed(f"{ending}: {said}" if said else ending)


KEY_TAG, DIGEST_TAG = "trial_key", "suite_digest"
SEARCH_TAG = "search_of"
"""Key of the trial that a load was part of the search for."""
NOTE_TAG = "trial_note"
"""What a search has found, in words."""
SEARCH_END_TAG = "search_end"
"""How a search has ended: `settled`, or why its answer is not to be trusted."""

FINISHED = ("valid", "degraded")
"""A trial that failed, was interrupted, or whose driver was killed is run again."""

_COLUMNS = ["run_id", "tags", "status", "started_at", "reasons", "result_json"]


@dataclass(frozen=True)
class TrialRun:
    """The newest run of a trial."""

    run_id: str
    key: str
    digest: str
    status: str
    started_at: datetime
    reasons: tuple[str, ...] = ()
    document: Document | None = None
    note: str | None = None
    search_end: str | None = None
    """Of the trial that a search was made for."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


def runs_of_suite(store: Store, suite: str, broker: str) -> dict[str, TrialRun]:
    """The run that counts of each trial, by key: the newest that finished, else the newest."""
    rows = store.read("runs", columns=_COLUMNS, suite=suite, broker=broker)
    return newest_by_key(rows.to_pylist())


def is_finished(key: str, runs: Mapping[str, TrialRun]) -> bool:
    """Whether the trial of this key need not be run any more."""
    return key in runs and runs[key].is_finished


def add_tags(store: Store, run_id: str, tags: Mapping[str, str]) -> None:
    [row] = store.read("runs", run_id=run_id).to_pylist()
    store.replace_run(row | {"tags": sorted((dict(row["tags"] or ()) | dict(tags)).items())})


def newest_by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, TrialRun]:
    runs: dict[str, TrialRun] = {}
    for row in sorted(rows, key=lambda row: row["started_at"]):
        tags = dict(row["tags"] or ())
        if KEY_TAG not in tags:
            continue
        run = TrialRun(
            run_id=row["run_id"],
            key=tags[KEY_TAG],
            digest=tags.get(DIGEST_TAG, ""),
            status=row["status"],
            started_at=row["started_at"],
            reasons=tuple(row["reasons"] or ()),
            document=json.loads(row["result_json"]) if row["result_json"] else None,
            note=tags.get(NOTE_TAG),
            search_end=tags.get(SEARCH_END_TAG),
        )
        known = runs.get(run.key)
        if known is None or run.is_finished or not known.is_finished:
            runs[run.key] = run
    return runs


def refuse_if_changed(suite: str, digest: str, runs: Mapping[str, TrialRun]) -> None:
    """Results of two versions of a suite do not belong into one table."""
    others = [run for run in runs.values() if run.is_finished and run.digest != digest]
    if others:
        first = min(others, key=lambda run: run.started_at)
        raise ConfigurationError(
            f"suite {suite!r} has changed since {len(others)} of its trials were run (the first at "
            f"{first.started_at:%Y-%m-%d %H:%M} UTC): use another --store or another name, or "
            "--force to go on and keep them"
        )


class TimeLeft:
    """Expectations are corrected by the trials that are over: hooks and starting agents take time
    that nobody knows beforehand, and searches may be short."""

    def __init__(self, expected_seconds: Mapping[str, float]) -> None:
        """Of every trial that is still to be run, by its key."""
        self._expected = dict(expected_seconds)
        self._expected_so_far = self._taken_so_far = 0.0

    def took(self, key: str, taken_seconds: float) -> None:
        """A trial is over."""
        self._expected_so_far += self._expected.pop(key)
        self._taken_so_far += taken_seconds

    @property
    def seconds(self) -> float:
        correction = 1.0
        if self._expected_so_far > 0:
            correction = self._taken_so_far / self._expected_so_far
        return sum(self._expected.values()) * correction

    @property
    def text(self) -> str:
        return f"about {seconds(round(self.seconds))} left"


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

    `say` gets a line when a trial is over, `name_next` what to call the one that begins. `tools`
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
