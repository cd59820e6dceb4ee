"""`bench-spark demo`: one scenario on two real brokers, from nothing to an answered SQL query."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from bench_spark.cache import DEFAULT_STORE, default_store
from bench_spark.cli.options import QuietOption, StoreOption, VerboseOption, display_of
from bench_spark.cli.output import to_stdout
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.loader import load_scenario
from bench_spark.config.models import Scenario
from bench_spark.errors import EXIT_INTERRUPTED
from bench_spark.report.descriptions import load_of
from bench_spark.report.formats import Rows
from bench_spark.report.formatting import Document, one_line
from bench_spark.report.live import Steps
from bench_spark.report.terminal import write_side_by_side
from bench_spark.runs import RunConfig, prepare
from bench_spark.spark.launch import spark_session
from bench_spark.store.delta import Store

if TYPE_CHECKING:
    from bench_spark.results.document import RunSummary

BROKERS = ("kafka", "qpid")

QUERY = (
    "SELECT scenario, broker, round(received_per_second) AS received_per_second, latency_p50_us, "
    "latency_p99_us FROM latency_spec ORDER BY started_at DESC LIMIT 4"
)


@dataclass(frozen=True)
class DemoRun:
    """One of the demo's runs."""

    heading: str
    config: RunConfig


def demo(
    store: StoreOption = DEFAULT_STORE, quiet: QuietOption = False, verbose: VerboseOption = False
) -> None:
    """Compare an embedded Kafka and an embedded Qpid.

    Takes about two minutes; the first time also fetches the brokers. Both are gone afterwards, the
    results stay in the store.
    """
    from bench_spark import brokers
    from bench_spark.spark.session import local_session_master

    display = display_of(quiet, verbose)
    opened = Store(store).open()
    at_rate = load_scenario("demo")
    at_most = load_scenario("demo", ["name=demo-maximum", "load.mode=maximum"])
    with brokers.embedded(*BROKERS, say=display.step) as running:
        trials = [
            _trial(scenario, label, running[name].broker)
            for scenario, label in ((at_rate, "rate"), (at_most, "maximum"))
            for name in BROKERS
        ]
        agents = max(len(trial.config.plan.assignments) for trial in trials)
        with spark_session(local_session_master(agents), display) as spark:
            outcomes = _run_all(spark, opened, display, trials)
            _print_comparison(trials, [outcome.document for outcome in outcomes])
            exit_code = max(outcome.exit_code for outcome in outcomes)
            if exit_code < EXIT_INTERRUPTED:
                option = "" if store == default_store() else f" --store {shlex.quote(store)}"
                _print_query(spark, opened, option)
                _print_what_next(opened, option)
            display.step("stopping Spark and the brokers")
    raise typer.Exit(exit_code)


def _trial(scenario: Scenario, label: str, broker: Broker) -> DemoRun:
    return DemoRun(f"{broker.name} {label}", prepare(scenario, Ends.of(broker)))


def _run_all(
    spark: Any, store: Store, display: Steps, trials: Sequence[DemoRun]
) -> list[RunSummary]:
    """Every trial in turn, until one is interrupted."""
    from bench_spark.spark.engine import Engine

    outcomes: list[RunSummary] = []
    with closing(Engine(spark, store, display)) as engine:
        for number, trial in enumerate(trials, start=1):
            load = load_of(trial.config.scenario.dump())
            display.detail(f"run {trial.config.plan.run_id} into {store.uri}")
            display.step(f"run {number} of {len(trials)}: {trial.config.ends.name}, {load}")
            display.name_next(trial.heading)
            outcomes.append(engine.run(trial.config))
            if outcomes[-1].exit_code >= EXIT_INTERRUPTED:
                break
    return outcomes


def _print_comparison(trials: Sequence[DemoRun], documents: Sequence[Document]) -> None:
    def write(writer: TextIO) -> None:
        writer.write("\n")
        headings = [trial.heading for trial in trials[: len(documents)]]
        write_side_by_side(documents, headings, writer)
        for heading, document in zip(headings, documents, strict=True):
            for reason in document["reasons"]:
                writer.write(f"\n  {heading}: {one_line(reason)}\n")

    to_stdout(write)


def _print_query(spark: Any, store: Store, store_option: str) -> None:
    from bench_spark.spark.sql import run_query

    answer = Rows.of_table("Answer", run_query(spark, store, QUERY))

    def write(writer: TextIO) -> None:
        writer.write("\nEverything is in Delta tables. Ask them:\n\n")
        writer.write(f'  bench-spark sql "{QUERY}"{store_option}\n\n')
        answer.write_terminal(writer)

    to_stdout(write)


def _print_what_next(store: Store, store_option: str) -> None:
    text = _WHAT_NEXT.format(store=store.uri, option=store_option)
    to_stdout(lambda writer: writer.writelines([text]))


_WHAT_NEXT = """
The store is {store}
`bench-spark runs{option}` lists what is in it.
`bench-spark show RUN{option}` prints a result again.

To measure a broker of your own, write down where it is:

  # mine.yaml
  kind: amqp                            # or kafka, with bootstrap_servers: HOST:PORT
  uri: amqp://HOST:5672/
  username: USER
  password_env: MINE_PASSWORD           # the variable that holds the password

and run any scenario on it:

  bench-spark run steady --broker mine.yaml --set load.rate_per_second=5000

"""
