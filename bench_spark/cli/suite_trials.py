"""The trials of a suite on a Spark session that is there, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench_spark.cli.asked_suite import AskedSuite
from bench_spark.cli.preflight import refuse_what_the_broker_cannot, with_remedy
from bench_spark.cli.preparing import new_run_id, plan_for, plan_for_cluster
from bench_spark.config.models import Scenario
from bench_spark.config.suite import Trial
from bench_spark.errors import BrokerUnreachable
from bench_spark.plan import Plan
from bench_spark.report.live import Steps
from bench_spark.results.rows import TrialOf
from bench_spark.store.delta import Store
from bench_spark.suites.rate_trials import received_per_second
from bench_spark.suites.runner import SuiteResult, TrialRun, add_tags, run_suite
from bench_spark.suites.trials import Abilities, SuiteTrials

if TYPE_CHECKING:
    from bench_spark.spark.engine import Engine

_LONGEST_NAME_IN_RUN_ID = 80


def ask_broker(
    asked: AskedSuite, trials: Sequence[Trial], agents_are_here: bool, display: Steps
) -> list[str]:
    """Refuse now what the broker would refuse trial by trial; what it refuses of some is returned.

    Whether it can be reached is for the agents to say where they run elsewhere, and for the first
    trial where a hook may start it.
    """
    named = [(trial.key, asked.fitted(trial.scenario)) for trial in trials]
    try:
        with with_remedy(asked.ends):
            return refuse_what_the_broker_cannot(named, asked.ends)
    except BrokerUnreachable as error:
        if asked.suite.hooks.before is None:
            if agents_are_here:
                raise
            display.step(f"warning: not reached from the driver: {error}")
    return []


def agents_of(scenario: Scenario) -> int:
    found = plan_for(scenario, "suite", None)
    return len(found.assignments) if found is not None else 0


def run_trials(
    spark: Any,
    engine: Engine,
    asked: AskedSuite,
    store: Store,
    done: Mapping[str, TrialRun],
    displays: tuple[Steps, Steps],
    live: bool,
) -> SuiteResult:
    from bench_spark.brokers import tools_environment
    from bench_spark.spark.request import RunRequest
    from bench_spark.spark.ticks import merged_ticks_here

    master = spark.sparkContext.master

    def plan_of(scenario: Scenario) -> Plan:
        run_id = new_run_id(asked.stored_name[:_LONGEST_NAME_IN_RUN_ID])
        local = None if master.startswith("local") else master
        return plan_for(scenario, run_id, local) or plan_for_cluster(spark, scenario, run_id)

    def run_scenario(scenario: Scenario, place: TrialOf) -> Any:
        plan = plan_of(asked.fitted(scenario))
        with with_remedy(asked.ends):
            return engine.run(RunRequest(plan, asked.ends, live, place))

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
    trials = SuiteTrials(asked.suite, asked.stored_name, abilities, throughputs)
    tools = {
        key: text for end in asked.ends.once for key, text in tools_environment(end.broker).items()
    }
    display, of_trials = displays
    return run_suite(asked.suite, done, trials.run, display.step, of_trials.name_next, tools)
