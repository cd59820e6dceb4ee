"""A suite on its brokers: checked before Spark starts, and its trials run on one engine.

A trial is one load, or a search made of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench_spark.config.ends import Ends
from bench_spark.config.loader import with_ends
from bench_spark.config.models import Scenario
from bench_spark.config.objectives import headline_measure
from bench_spark.config.suite import (
    MAX,
    SUSTAINED,
    Suite,
    Trial,
    suite_digest,
    trials_of,
    value_text,
)
from bench_spark.data.checking import with_records_at
from bench_spark.doctor.preflight import refuse_what_the_broker_cannot, with_remedy
from bench_spark.errors import BrokerUnreachable, RunError
from bench_spark.report.formatting import duration, rate
from bench_spark.report.live import Steps, p99_label
from bench_spark.results.document import Document, RunSummary, TrialOf
from bench_spark.results.totals import Tick
from bench_spark.runs import RunConfig, new_run_id, plan_for, plan_for_cluster
from bench_spark.store.delta import Store
from bench_spark.suites.rate_trials import RateTrials, exit_code_of, received_per_second
from bench_spark.suites.runner import (
    DIGEST_TAG,
    KEY_TAG,
    NOTE_TAG,
    SEARCH_END_TAG,
    SEARCH_TAG,
    SIGNALLED,
    SuiteResult,
    TrialEnd,
    TrialRun,
    add_tags,
    run_suite,
)
from bench_spark.suites.sustained import Bounds, Sustained
from bench_spark.transports.registry import fitted_to

if TYPE_CHECKING:
    from bench_spark.spark.engine import Engine


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

        def run_at_rate(rate_per_second: float) -> RunSummary:
            scenario = trial.at_rate(rate_per_second)
            summary = self._load(trial, scenario, {SEARCH_TAG: trial.key})
            exit_codes.append(summary.exit_code)
            if summary.exit_code in SIGNALLED:
                raise _Interrupted(summary.exit_code)
            return summary

        loads = RateTrials(run_at_rate, self.abilities.ticks)
        try:
            found = loads.find(start, self._bounds())
        except _Interrupted as interrupted:
            return TrialEnd(interrupted.exit_code, "interrupted")
        # The load at the rate that was found stands for the trial.
        standing = loads.standing_for(found)
        text = found.text if found.is_settled else f"{found.text}; {_edge_text(found, loads)}"
        tags = {KEY_TAG: trial.key, NOTE_TAG: text, SEARCH_END_TAG: found.end}
        self.abilities.tag(standing.document["run_id"], tags)
        return TrialEnd(exit_code_of(found, standing, exit_codes), text)

    def _bounds(self) -> Bounds:
        search = self.suite.search
        return Bounds(
            search.lowest_share,
            search.highest_share,
            1 + search.precision_share,
            search.most_trials,
        )


def _edge_text(found: Sustained, loads: RateTrials) -> str:
    """The loads that an unsettled answer hangs on, with their figures."""
    texts = []
    for run in (loads.runs[place] for place in found.edge):
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


def agents_of(scenario: Scenario) -> int:
    found = plan_for(scenario, "suite", None)
    return len(found.assignments) if found is not None else 0
