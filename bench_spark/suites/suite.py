"""A suite on its brokers: checked before Spark starts, its trials run one after the other.

A trial is one load, or a search made of several, with hooks before and after it. What is done
already is read from the runs in the store, so that a killed suite goes on. A trial is known by its
key, which its run carries as a tag; so does the digest of the suite file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_spark.config.ends import Ends
from bench_spark.config.loader import with_ends
from bench_spark.config.models import Scenario
from bench_spark.config.objectives import headline_measure
from bench_spark.config.suite import (
    MAX,
    SUSTAINED,
    TRIAL_OVERHEAD_SECONDS,
    Suite,
    Trial,
    estimated_trial_seconds,
    hook_arguments,
    hook_environment,
    suite_digest,
    trials_of,
    value_text,
)
from bench_spark.data.checking import with_records_at
from bench_spark.driver_process import end_abandoned
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_GATE_MISSED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_VALID,
    BenchError,
    BrokerUnreachable,
    ConfigurationError,
    HookFailed,
    RunError,
)
from bench_spark.plan import SLOTS_FOR_STREAMING
from bench_spark.process import output_of
from bench_spark.report.formatting import duration, one_line, rate, seconds
from bench_spark.report.live import Steps, p99_label
from bench_spark.report.suite_table import SuiteTable, TrialResult, suite_table
from bench_spark.results.document import Document, RunSummary, TrialOf
from bench_spark.results.totals import Tick
from bench_spark.runs import (
    RunConfig,
    new_run_id,
    plan_for,
    plan_for_cluster,
    refuse_what_the_broker_cannot,
    session_master,
    with_remedy,
)
from bench_spark.spark.launch import runs_agents_here, spark_session
from bench_spark.store.delta import Store
from bench_spark.suites.rate import (
    Bounds,
    Kept,
    Sustained,
    exit_code_of,
    find_sustained,
    judge_rate,
    received_per_second,
    standing_for,
)
from bench_spark.suites.window import measured_ticks
from bench_spark.transports.registry import fitted_to

if TYPE_CHECKING:
    from bench_spark.spark.engine import Engine


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

    @property
    def exit_code(self) -> int:
        """Of a trial that has finished, as it was when it ran."""
        known = (self.document or {}).get("exit_code")
        if known is None:
            known = EXIT_VALID if self.status == "valid" else EXIT_DEGRADED
        is_doubted = self.search_end not in (None, "settled")
        if is_doubted and known in (EXIT_VALID, EXIT_GATE_MISSED):
            return EXIT_DEGRADED
        return int(known)


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
    not known beforehand, and searches may be short."""

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


@dataclass(frozen=True)
class TrialOutcome:
    """What became of one trial now."""

    trial: Trial
    exit_code: int
    seconds: float
    text: str = ""
    """Its result in a line, or why there is none."""


@dataclass
class SuiteResult:
    outcomes: list[TrialOutcome] = field(default_factory=list)
    kept: list[TrialRun] = field(default_factory=list)
    """Trials that were done before."""
    skipped: int = 0

    @property
    def exit_code(self) -> int:
        """A signal before lost data, lost data before any other failure, and a failure before an
        objective that a valid trial has missed; whenever the trials ran."""
        codes = {one.exit_code for one in self.outcomes} | {one.exit_code for one in self.kept}
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
            trial.key: estimated_trial_seconds(suite, trial, TRIAL_OVERHEAD_SECONDS)
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
            result.kept.append(done[trial.key])
            continue
        name_next(f"{place}, {left.text}")
        outcome = _run_one(suite, trial, run_trial, tools)
        result.outcomes.append(outcome)
        left.took(trial.key, outcome.seconds)
        say(f"{place}: {trial.key}: {one_line(outcome.text)}; {left.text}")
        if outcome.exit_code in SIGNALLED:
            break
    return result


def _run_one(
    suite: Suite, trial: Trial, run_trial: RunTrial, tools: Mapping[str, str]
) -> TrialOutcome:
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
    return TrialOutcome(trial, exit_code, time.monotonic() - started, text)


def _hook(
    suite: Suite, trial: Trial, when: str, command: Sequence[str] | None, tools: Mapping[str, str]
) -> None:
    if command is not None:
        run_hook(
            hook_arguments(command, trial),
            when,
            suite.directory,
            {**tools, **hook_environment(suite, trial)},
            suite.hooks.timeout_seconds,
        )


@dataclass(frozen=True)
class Abilities:
    """What a trial needs of the world."""

    run: Callable[[Scenario, TrialOf], RunSummary]
    """Run a scenario to its end; raises a BenchError if it could not start."""
    ticks: Callable[[str], Iterable[Tick]]
    """Second by second, what a run counted."""
    tag: Callable[[str, Mapping[str, str]], None]
    """Add tags to a run that has ended."""


class _Interrupted(Exception):
    """A signal ended a load of a search."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass
class SuiteTrials:
    """Runs the trials of one suite; remembers throughputs, from which searches start."""

    suite: Suite
    stored_name: str
    """What results call the suite."""
    abilities: Abilities
    throughputs: dict[str, float]
    """Of trials that were run before, by their keys: messages received per second."""
    _digest: str = field(init=False)

    def __post_init__(self) -> None:
        self._digest = suite_digest(self.suite)

    def run(self, trial: Trial) -> TrialEnd:
        if trial.search == SUSTAINED:
            return self._search(trial)
        summary = self._load(trial, trial.scenario, {KEY_TAG: trial.key})
        if trial.search == MAX:
            self.throughputs[trial.key] = received_per_second(summary.document)
        return TrialEnd(summary.exit_code, result_text(summary.document))

    def _load(self, trial: Trial, scenario: Scenario, tags: Mapping[str, str]) -> RunSummary:
        parameters = {name: value_text(value) for name, value in trial.parameters.items()}
        parameters["repetition"] = str(trial.repetition)
        all_tags = {**scenario.tags, **tags, DIGEST_TAG: self._digest}
        place = TrialOf(self.stored_name, trial.number, parameters)
        return self.abilities.run(scenario.model_copy(update={"tags": all_tags}), place)

    # -- the highest rate that is kept -----------------------------------------------------------

    def _search(self, trial: Trial) -> TrialEnd:
        start = self.throughputs.get(trial.found_from or "")
        if not start:
            raise RunError(f"the search has no throughput to start from: {trial.found_from}")

        exit_codes: list[int] = []

        def run_at_rate(rate_per_second: float) -> Kept:
            scenario = trial.at_rate(rate_per_second)
            summary = self._load(trial, scenario, {SEARCH_TAG: trial.key})
            exit_codes.append(summary.exit_code)
            if summary.exit_code in SIGNALLED:
                raise _Interrupted(summary.exit_code)
            ticks = measured_ticks(self.abilities.ticks(summary.document["run_id"]))
            return judge_rate(summary.document, ticks, rate_per_second)

        try:
            found = find_sustained(start, run_at_rate, self._bounds())
        except _Interrupted as interrupted:
            return TrialEnd(interrupted.exit_code, "interrupted")
        text = found.text if found.is_settled else f"{found.text}; {_edge_text(found)}"
        tags = {KEY_TAG: trial.key, NOTE_TAG: text, SEARCH_END_TAG: found.end}
        # The load at the rate that was found stands for the trial.
        self.abilities.tag(standing_for(found).document["run_id"], tags)
        return TrialEnd(exit_code_of(found, exit_codes), text)

    def _bounds(self) -> Bounds:
        search = self.suite.search
        return Bounds(
            search.lowest_share,
            search.highest_share,
            1 + search.precision_share,
            search.most_trials,
        )


def _edge_text(found: Sustained) -> str:
    """The loads that an unsettled answer hangs on, with their figures."""
    texts = []
    for run in (found.trials[place] for place in found.edge):
        kept = "kept" if run.verdict.kept else "not kept"
        figures = f"{rate(run.document['rates']['receive_rate'])} received"
        figures += "".join(f", {text}" for text in _p99_texts(run.document))
        texts.append(f"{rate(run.rate_per_second)} {kept} ({figures}, {run.document['run_id']})")
    return "; ".join(texts)


def _p99_texts(document: Document) -> list[str]:
    """The 99th percentile and what it is of; none where the run measured nothing."""
    measures = document.get("measures", {})
    measure = headline_measure(measures)
    if measure is None or measures[measure].get("p99_us") is None:
        return []
    return [f"{p99_label(measure)} {duration(measures[measure]['p99_us'])}"]


def result_text(document: Document) -> str:
    """The result of a load in a line."""
    rates = document["rates"]
    received = rates["receive_rate"]
    parts = [
        document["status"],
        f"{rate(rates.get('send_rate') if received is None else received)} msg/s",
        *_p99_texts(document),
        *document.get("reasons", ())[:1],
    ]
    return ", ".join(parts)


_LONGEST_NAME_IN_RUN_ID = 80


@dataclass(frozen=True)
class SuiteConfig:
    """A suite and the brokers that it runs on, both checked."""

    suite: Suite
    ends: Ends

    @classmethod
    def checked(
        cls, suite: Suite, broker: str, ingress: Sequence[str] = (), egress: Sequence[str] = ()
    ) -> SuiteConfig:
        """Refuses a suite with a trial that these brokers can never carry out."""
        _, ends = with_ends(suite.base, broker, ingress, egress)
        config = cls(suite, ends)
        for trial in trials_of(suite):
            if trial.skipped_because is None:
                config.fitted(trial.scenario)
        return config

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

    def ask_broker(
        self, trials: Sequence[Trial], agents_are_here: bool, display: Steps
    ) -> list[str]:
        """Refuse now what the broker would refuse trial by trial; what it refuses of some is
        returned.

        Whether it can be reached is for the agents to say where they run elsewhere, and for the
        first trial where a hook may start it.
        """
        named = [(trial.key, self.fitted(trial.scenario)) for trial in trials]
        try:
            with with_remedy(self.ends):
                return refuse_what_the_broker_cannot(named, self.ends)
        except BrokerUnreachable as error:
            if self.suite.hooks.before is None:
                if agents_are_here:
                    raise
                display.step(f"warning: not reached from the driver: {error}")
        return []

    def run_trials(
        self,
        spark: Any,
        engine: Engine,
        store: Store,
        done: Mapping[str, TrialRun],
        displays: tuple[Steps, Steps],
        live: bool,
    ) -> SuiteResult:
        """Run what is missing; `displays` are those of the suite and of its trials."""
        from bench_spark.brokers import tools_environment
        from bench_spark.spark.merge import merged_ticks_here

        master = spark.sparkContext.master

        def run_scenario(scenario: Scenario, place: TrialOf) -> Any:
            fitted = self.fitted(scenario)
            run_id = new_run_id(self.stored_name[:_LONGEST_NAME_IN_RUN_ID])
            local = None if master.startswith("local") else master
            plan = plan_for(fitted, run_id, local) or plan_for_cluster(spark, fitted, run_id)
            with with_remedy(self.ends):
                return engine.run(RunConfig(plan, self.ends, live, trial=place))

        abilities = Abilities(
            run=run_scenario,
            ticks=lambda run_id: merged_ticks_here(store, run_id),
            tag=lambda run_id, tags: add_tags(store, run_id, tags),
        )
        throughputs = {
            key: received_per_second(known.document)
            for key, known in done.items()
            if known.is_finished and known.document is not None
        }
        trials = SuiteTrials(self.suite, self.stored_name, abilities, throughputs)
        tools = {
            key: text
            for end in self.ends.once
            for key, text in tools_environment(end.broker).items()
        }
        display, of_trials = displays
        return run_suite(self.suite, done, trials.run, display.step, of_trials.name_next, tools)


def run_missing(
    config: SuiteConfig,
    store: Store,
    master: str | None,
    displays: tuple[Steps, Steps],
    live: bool = True,
    force: bool = False,
) -> int:
    """Run the trials that the store lacks; returns the exit code. `displays` are those of the suite
    and of its trials; `force`: although the suite has changed since some trials were run."""
    display, of_trials = displays
    done = runs_of_suite(store, config.stored_name, config.ends.name)
    if not force:
        refuse_if_changed(config.stored_name, suite_digest(config.suite), done)
    trials = trials_of(config.suite)
    missing = [
        trial
        for trial in trials
        if trial.skipped_because is None and not is_finished(trial.key, done)
    ]
    display.step(
        f"{config.stored_name} on {config.ends.name}: {len(missing)} trials to run, "
        f"{len(trials) - len(missing)} done or skipped"
    )
    display.detail(f"results go into {store.uri}\n" + "\n".join(t.key for t in missing))
    if not missing:
        kept = [done[trial.key] for trial in trials if trial.skipped_because is None]
        return SuiteResult(kept=kept).exit_code
    for run_id in end_abandoned(store):
        display.step(f"run {run_id} is abandoned: its driver has vanished")
    for refusal in config.ask_broker(missing, runs_agents_here(master), display):
        display.step(f"will fail: {refusal}")
    from bench_spark.spark.engine import Engine

    agents = max(agents_of(trial.scenario) for trial in missing)
    slots = agents + SLOTS_FOR_STREAMING
    with (
        spark_session(session_master(master, agents), display, slots) as spark,
        closing(Engine(spark, store, of_trials)) as engine,
    ):
        display.step("starting workers" + (" and the rolling metrics" if live else ""))
        engine.warm_up(max(1, agents), live)
        return config.run_trials(spark, engine, store, done, displays, live).exit_code


def agents_of(scenario: Scenario) -> int:
    found = plan_for(scenario, "suite", None)
    return len(found.assignments) if found is not None else 0


def stored_table(config: SuiteConfig, store: Store) -> SuiteTable:
    """From what a store has of a suite."""
    runs = runs_of_suite(store, config.stored_name, config.ends.name)
    return suite_table(config.suite, {key: _result_of(known) for key, known in runs.items()})


def _result_of(known: TrialRun) -> TrialResult:
    if known.is_finished:
        return TrialResult(document=known.document, note=known.note, search_end=known.search_end)
    return TrialResult(failure="; ".join(known.reasons) or known.status)
