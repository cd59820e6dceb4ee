"""A suite on its brokers: checked before Spark starts, and its trials run on one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench_spark.config.ends import Ends
from bench_spark.config.loader import with_ends
from bench_spark.config.models import Scenario
from bench_spark.config.suite import Suite, Trial, trials_of
from bench_spark.data.checking import with_records_at
from bench_spark.doctor.preflight import refuse_what_the_broker_cannot, with_remedy
from bench_spark.errors import BrokerUnreachable
from bench_spark.report.live import Steps
from bench_spark.results.rows import TrialOf
from bench_spark.runs import RunConfig, new_run_id, plan_for, plan_for_cluster
from bench_spark.store.delta import Store
from bench_spark.suites.rate_trials import received_per_second
from bench_spark.suites.runner import SuiteResult, TrialRun, add_tags, run_suite
from bench_spark.suites.trials import Abilities, SuiteTrials
from bench_spark.transports.registry import fitted_to

if TYPE_CHECKING:
    from bench_spark.spark.engine import Engine

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
        from bench_spark.spark.ticks import merged_ticks_here

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
