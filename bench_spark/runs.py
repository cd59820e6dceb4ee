"""A run from its files to its result: what the command line and the Python API share.

    scenario, ends = runs.fit(runs.load("steady", []), "kafka")
    config = runs.prepare(scenario, ends)
    with runs.launched(config, store, master, display) as (spark, config):
        summary = runs.execute(config, spark, store, display)

Everything that can be found wrong before Spark is started is found before Spark is started.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from bench_spark.config.ends import End, Ends, scenario_at
from bench_spark.config.loader import Given, check_run_id, load_scenario, with_ends, with_tags
from bench_spark.config.models import Scenario
from bench_spark.config.objectives import parse_objective
from bench_spark.config.problems import shown_value
from bench_spark.data.checking import find_doubt, with_records_at
from bench_spark.errors import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
    StoreError,
)
from bench_spark.java import is_submitted
from bench_spark.plan import SLOTS_FOR_STREAMING, Plan, make_plan
from bench_spark.process import in_background
from bench_spark.report.live import Steps
from bench_spark.report.plan_text import write_plan
from bench_spark.results.audit import ABORTED, FAILED
from bench_spark.results.document import TrialOf, run_row
from bench_spark.spark.launch import (
    refuse_too_few_slots,
    refuse_unshared_store,
    runs_agents_here,
    settled_master,
    slots_of,
    spark_session,
)
from bench_spark.store.delta import Store
from bench_spark.transports.base import TransportContext
from bench_spark.transports.peer import probed
from bench_spark.transports.registry import fitted_to

if TYPE_CHECKING:
    from bench_spark.results.document import RunSummary

_LONGEST_NAME_IN_RUN_ID = 40


@dataclass(frozen=True)
class RunConfig:
    """A run that was checked: its plan, its brokers with their logins, and how it is watched."""

    plan: Plan
    ends: Ends
    live: bool = True
    stops_on_slo: bool = False
    """End the run as soon as a rolling window misses an objective of the scenario."""
    trial: TrialOf | None = None
    """The suite or search that the run belongs to, if any. Its next run uses the same session, so
    the end of this one does not wait for the rolling metrics."""
    unsized: Scenario | None = None
    """The scenario as asked, where only the running cluster can say how many agents fit. The plan
    has one agent until it is made again from this."""

    @property
    def scenario(self) -> Scenario:
        return self.plan.scenario

    def row(self, started_at: datetime, **outcome: Any) -> dict[str, Any]:
        """The run's row in `runs`; `outcome` as `run_row` takes it."""
        brokers = self.ends.all_shown
        return run_row(
            self.plan, self.ends.shown, started_at, brokers=brokers, trial=self.trial, **outcome
        )


# -- files -----------------------------------------------------------------------------------------


def load(
    scenario: str,
    overrides: Sequence[str] = (),
    tags: Sequence[str] = (),
    objectives: Sequence[str] = (),
) -> Scenario:
    """The scenario of a file, with what the command line changes and adds."""
    return _with_objectives(_tagged(load_scenario(scenario, overrides), tags), objectives)


def fit(
    scenario: Scenario,
    broker: Given | None,
    ingress: Sequence[Given] = (),
    egress: Sequence[Given] = (),
) -> tuple[Scenario, Ends]:
    """The scenario as it runs on these brokers, and the brokers. `broker` serves every end that
    neither `ingress`, `egress` nor the scenario names.

    Refuses a scenario that they can never carry out, and secrets that are missing.
    """
    named, ends = with_ends(scenario, broker, ingress, egress)
    fitted = with_records_at(fitted_to(named, ends), ends)
    for end in ends.once:
        for source in end.broker.resources:
            source.token()  # raises now, and not after the run, if the token is missing
    return fitted, ends


def refuse_idle_broker(
    scenario: Scenario, ingress: Sequence[str] | None, egress: Sequence[str] | None
) -> None:
    """Refuse a `--broker` that would not be used, because ingress and egress name all brokers."""
    if (ingress or scenario.ingress) and (egress or scenario.egress):
        raise ConfigurationError(
            "--broker: would not be used, as ingress and egress name the brokers; leave it out, or "
            "name others by --ingress and --egress"
        )


def _with_objectives(scenario: Scenario, texts: Sequence[str]) -> Scenario:
    """The scenario with the objectives of the command line behind its own."""
    slo = list(scenario.slo)
    for text in texts:
        try:
            slo.append(parse_objective(text).text)
        except ValueError as error:
            raise ConfigurationError(f"--slo: {shown_value(text)}: {error}") from None
    return scenario.model_copy(update={"slo": slo})


def _tagged(scenario: Scenario, texts: Sequence[str]) -> Scenario:
    """The scenario with the tags of the command line over its own."""
    tags: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--tag: {shown_value(text)} is not KEY=VALUE")
        tags[key] = value
    return with_tags(scenario, tags, "--tag")


# -- before Spark ----------------------------------------------------------------------------------


def prepare(
    scenario: Scenario,
    ends: Ends,
    run_id: str | None = None,
    master: str | None = None,
    live: bool = True,
    stops_on_slo: bool = False,
) -> RunConfig:
    """Plan a run. `master` None: this machine, or the master that spark-submit has chosen."""
    if stops_on_slo:
        _refuse_unwatched(scenario, live)
    chosen_id = choose_run_id(run_id, scenario.name, ends.name)
    plan = plan_for(scenario, chosen_id, _settled(master))
    return RunConfig(
        plan or make_plan(scenario, chosen_id),
        ends,
        live,
        stops_on_slo,
        unsized=scenario if plan is None else None,
    )


def _refuse_unwatched(scenario: Scenario, live: bool) -> None:
    """Refuse --stop-on-slo where no objective is watched while the run goes on."""
    from bench_spark.results.facts import is_judged_live

    if not live:
        raise ConfigurationError("--stop-on-slo: --no-live has no rolling windows to watch")
    if not any(map(is_judged_live, scenario.slo)):
        raise ConfigurationError(
            '--stop-on-slo: needs an objective of a measure or a rate, as in --slo "p99 < 50ms"; '
            f"there is none among the {len(scenario.slo)} given"
        )


def _settled(master: str | None) -> str | None:
    """The master as given, or the one that spark-submit has chosen; None where neither is known."""
    if not is_submitted():
        return master
    if master is not None:
        raise ConfigurationError("--master: spark-submit has chosen the master; give it there")
    return settled_master()


def plan_for(scenario: Scenario, run_id: str, master: str | None) -> Plan | None:
    """The plan on this master; None if only the running cluster can say how many agents fit."""
    slots = slots_of(master)
    if slots is None and scenario.agents == "auto":
        return None
    plan = make_plan(scenario, run_id) if slots is None else make_plan(scenario, run_id, slots)
    if master is not None:
        refuse_too_few_slots(plan, master)
    return plan


def plan_for_cluster(
    spark: Any, scenario: Scenario, run_id: str, say: Callable[[str], None] = lambda text: None
) -> Plan:
    """Wait until no more executors join, then plan as many agents as fit into them."""
    from bench_spark.spark.session import (
        executors,
        start_timeout,
        wait_for_all_slots,
        wait_for_slots,
    )

    timeout_seconds = start_timeout(spark)
    if scenario.load.scope == "per_agent":
        slots = wait_for_all_slots(spark, timeout_seconds, say)
    else:
        useful = SLOTS_FOR_STREAMING + scenario.producers + scenario.consumers
        slots = wait_for_slots(spark, useful, timeout_seconds, say)
    return make_plan(scenario, run_id, slots, executors(spark))


def choose_run_id(given: str | None, *names: str) -> str:
    """The id that was given, checked; else a new one."""
    if given is not None:
        return check_run_id(given)
    return new_run_id(*(name[:_LONGEST_NAME_IN_RUN_ID] for name in names))


def new_run_id(*names: str) -> str:
    """An id of these names, the time and random digits: unique without a look into the store."""
    return "-".join([*names, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), secrets.token_hex(2)])


def open_store(uri: str, master: str | None) -> Store:
    """Open a store to write to; make it where there is none."""
    store = Store(uri)
    if (chosen := _settled(master)) is not None:
        refuse_unshared_store(uri, chosen)
    return store.open()


@contextmanager
def claimed(config: RunConfig, store: Store) -> Iterator[None]:
    """Claim the run's id in the store, so that no other run can use it.

    If an error or a signal ends the run before its load, its row in `runs` is closed here, with
    status, reason and exit code.
    """
    run_id = config.plan.run_id
    if not store.claim_run(config.row(datetime.now(UTC))):
        raise ConfigurationError(f"--run-id: the store has a run {run_id} already; choose another")
    try:
        yield
    except BaseException as error:
        # An error of the store must not hide this one.
        with suppress(StoreError):
            store.end_run(run_id, *_end_by(error))
        raise


def _end_by(error: BaseException) -> tuple[str, str, int]:
    """Status, reason and exit code of a run that ended on its way to the load."""
    if isinstance(error, BenchError):
        return FAILED, str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return ABORTED, "interrupted", EXIT_INTERRUPTED
    if isinstance(error, SystemExit):
        return ABORTED, "interrupted", error.code if isinstance(error.code, int) else EXIT_BUG
    return FAILED, f"unexpected {type(error).__name__}", EXIT_BUG


# -- asking the brokers ----------------------------------------------------------------------------

SILENT_SECONDS = 2.0
"""How long to wait for a broker that says nothing at all, unless its file gives a timeout. With the
start of the program that makes less than three seconds."""


@contextmanager
def with_remedy(ends: Ends) -> Iterator[None]:
    """Errors about a broker that cannot be used say what to do about it."""
    try:
        yield
    except (BrokerUnreachable, LoginRefused) as error:
        from bench_spark.doctor import remedy

        meant = [end for end in ends.once if end.address in str(error)] or ends.once
        raise type(error)(f"{error}; {remedy(error, meant[0].broker.name)}") from error


def ask_brokers(scenario: Scenario, ends: Ends, agents_are_here: bool, display: Steps) -> None:
    """Refuse a run that one of its brokers would refuse, while that takes a moment only.

    All are asked at once. Whether a broker can be reached is for the agents to say where they run
    elsewhere.
    """
    asked = [
        (end, in_background("preflight", partial(_probe, scenario, end))) for end in ends.every
    ]
    for end, answer in asked:
        try:
            with with_remedy(ends):
                answer.result()
        except BrokerUnreachable as error:
            if agents_are_here:
                raise
            display.step(f"warning: {end.label}: not reached from the driver: {error}")


def refuse_what_the_broker_cannot(trials: Iterable[tuple[str, Scenario]], ends: Ends) -> list[str]:
    """Ask each broker from here, once for each kind of trial, what it can do.

    `trials` are names and scenarios. If the broker would refuse all of them, the first is raised by
    its name: nothing needs to be started for that. If it would refuse some, what it says of those
    is returned, a line for each kind: they will fail by themselves, and leave a hole in the table.
    """
    refused: dict[str, str] = {}
    asked: set[tuple[str, str]] = set()
    for (name, scenario), end in product(trials, ends.every):
        # What is probed depends on how the protocol is used, and on nothing else of a load.
        section = scenario_at(scenario, end).dump().get(end.broker.kind)
        kind = json.dumps(section, sort_keys=True)
        if (end.label, kind) in asked:
            continue
        asked.add((end.label, kind))
        try:
            _probe(scenario, end)
        except BrokerRefused as error:
            refused[kind] = f"trial {name}: {error}"
    refusals = list(refused.values())
    if asked and len(refused) == len(asked):
        raise BrokerRefused(refusals[0])
    return refusals


def _probe(scenario: Scenario, end: End) -> None:
    at_end = scenario_at(scenario, end)
    is_chosen = "connect_timeout_seconds" in end.broker.model_fields_set
    probed(
        TransportContext("preflight", at_end, end.broker, end.credentials),
        silent_seconds=None if is_chosen else SILENT_SECONDS,
    )


# -- with Spark ------------------------------------------------------------------------------------


@contextmanager
def launched(
    config: RunConfig, store: Store, master: str | None, display: Steps, is_run: bool = True
) -> Iterator[tuple[Any, RunConfig]]:
    """Start a session on `master`, or on the one that spark-submit has chosen. Gives the session,
    and the run with its final plan.

    `is_run` False: the id is that of a search, and each of its runs claims an id of its own. No
    broker is contacted before the id is claimed; a run that is refused before its load frees it.
    """
    if doubt := find_doubt(config.scenario):
        display.step(f"warning: {doubt}")
    with claimed(config, store) if is_run else nullcontext():
        ask_brokers(config.scenario, config.ends, runs_agents_here(master), display)
        agents = 0 if config.unsized else len(config.plan.assignments)
        slots = 0 if config.unsized else config.plan.slots_needed
        with spark_session(session_master(master, agents), display, slots) as spark:
            if config.unsized:
                plan = plan_for_cluster(spark, config.unsized, config.plan.run_id, display.step)
                config = replace(config, plan=plan, unsized=None)
            text = io.StringIO()
            write_plan(config.plan, config.ends.shown, text, config.ends.all_shown)
            display.detail(f"run {config.plan.run_id} into {store.uri}\n{text.getvalue()}")
            yield spark, config


def session_master(master: str | None, agents: int) -> str | None:
    """The master to start Spark on; None where spark-submit has started it."""
    from bench_spark.spark.session import local_session_master

    return None if is_submitted() else master or local_session_master(agents)


def execute(
    config: RunConfig,
    spark: Any,
    store: Store,
    display: Steps,
    trigger_seconds: float | None = None,
) -> RunSummary:
    """Carry out one run on the session that is there."""
    from bench_spark.spark.engine import Engine

    display.name_next(f"{config.scenario.name} on {config.ends.name}")
    with (
        closing(Engine(spark, store, display, trigger_seconds)) as engine,
        with_remedy(config.ends),
    ):
        return engine.run(config)
