"""Everything about a run that can be found wrong before Spark is started."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench_spark.cli.masters import refuse_too_few_slots, refuse_unshared_store, slots_of
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.loader import Given, check_run_id, load_scenario, with_ends, with_tags
from bench_spark.config.models import Scenario
from bench_spark.config.objectives import parse_objective
from bench_spark.config.problems import shown_value
from bench_spark.data.checking import with_records_at
from bench_spark.errors import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    BenchError,
    ConfigurationError,
    StoreError,
)
from bench_spark.plan import SLOTS_FOR_STREAMING, Plan, make_plan
from bench_spark.results.judging import ABORTED, FAILED
from bench_spark.results.rows import run_row
from bench_spark.store.delta import Store
from bench_spark.transports.registry import fitted_to

_LONGEST_NAME_IN_RUN_ID = 40


@dataclass(frozen=True)
class Asked:
    """A scenario and brokers that go together, with the logins."""

    scenario: Scenario
    ends: Ends


def load(
    scenario: str,
    broker: str,
    overrides: Sequence[str],
    tags: Sequence[str] = (),
    ingress: Sequence[str] = (),
    egress: Sequence[str] = (),
    objectives: Sequence[str] = (),
    is_broker_typed: bool = False,
) -> Asked:
    """`broker` is whatever of the brokers nobody has named; `is_broker_typed`: it was asked for."""
    loaded = _tagged(load_scenario(scenario, overrides), tags)
    if is_broker_typed:
        refuse_idle_broker(loaded, ingress, egress)
    return asked_of(_with_objectives(loaded, objectives), broker, ingress, egress)


def asked_of(
    scenario: Scenario,
    broker: Given | None,
    ingress: Sequence[Given] = (),
    egress: Sequence[Given] = (),
) -> Asked:
    """Refuses a scenario that these brokers can never carry out, and secrets that are missing."""
    named, ends = with_ends(scenario, broker, ingress, egress)
    asked = with_records_at(fitted_to(named, ends), ends)
    for end in ends.once:
        for source in end.broker.resources:
            source.token()  # a token that is missing is said now, and not after the run
    return Asked(asked, ends)


def refuse_idle_broker(
    scenario: Scenario, ingress: Sequence[str] | None, egress: Sequence[str] | None
) -> None:
    """A broker that was typed and that nothing would be sent to is a misunderstanding."""
    if (ingress or scenario.ingress) and (egress or scenario.egress):
        raise ConfigurationError(
            "--broker: would not be used, as ingress and egress name the brokers; leave it out, or "
            "name others by --ingress and --egress"
        )


@dataclass(frozen=True)
class Ready:
    """What is known of a run before its session: all but, on some clusters, the plan."""

    run_id: str
    store: Store
    plan: Plan | None


def settle(scenario: Scenario, run_id: str, store: str, master: str | None) -> Ready:
    """Plan the run and open its store; no master means this machine."""
    plan = plan_for(scenario, run_id, master)
    if master is not None:
        refuse_unshared_store(store, master)
    return Ready(run_id, Store(store).open(), plan)


@contextmanager
def claimed(asked: Asked, ready: Ready) -> Iterator[None]:
    """Take the run's id, before anything is done in its name: nobody else can have it then.

    A run that ends on its way to the load, by an error or a signal, ends its row here.
    """
    ends, run_id, store = asked.ends, ready.run_id, ready.store
    plan = ready.plan or make_plan(asked.scenario, run_id)
    row = run_row(plan, ends.shown, datetime.now(UTC), brokers=ends.all_shown)
    if not store.claim_run(row):
        raise ConfigurationError(f"--run-id: the store has a run {run_id} already; choose another")
    try:
        yield
    except BaseException as error:
        # An error of the store's own must not hide this one.
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
    """The plan for as many agents as fit into the executors that are there once no more come."""
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


def choose_run_id(given: str | None, scenario: Scenario, broker: Broker | Ends) -> str:
    """As given, else a new one."""
    if given is not None:
        return check_run_id(given)
    return new_run_id(*(name[:_LONGEST_NAME_IN_RUN_ID] for name in (scenario.name, broker.name)))


def new_run_id(*names: str) -> str:
    """Says what ran and when, and is unique without asking anyone."""
    return "-".join([*names, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), secrets.token_hex(2)])


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
