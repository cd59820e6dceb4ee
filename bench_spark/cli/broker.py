"""`bench-spark broker`, real brokers on this machine for trying things out, and `cleanup`: what
killed runs have left in a broker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatsOption,
    StoreOption,
    Text,
    argument,
    option,
)
from bench_spark.cli.output import parse_formats, to_stdout
from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE
from bench_spark.config.loader import load_broker
from bench_spark.config.models import Scenario, stored_scenario
from bench_spark.config.problems import shown_value
from bench_spark.driver_process import end_abandoned
from bench_spark.errors import ConfigurationError
from bench_spark.report.formats import Rows
from bench_spark.store.delta import Store
from bench_spark.transports.leftovers import KnownRun, Leftover, Wanted, sparing_kept
from bench_spark.transports.registry import sweeper_of

if TYPE_CHECKING:
    from bench_spark.brokers import BrokerStatus


# The brokers bring the client libraries along, which no other command should wait for.
NameArgument = Annotated[
    str, argument("NAME", "kafka, qpid, rabbitmq or mosquitto.", show_default=False)
]

broker_app = typer.Typer(
    help="Real brokers on this machine, for trying things out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


NodesOption = Annotated[
    int | None,
    option(
        "--nodes N",
        "Start so many nodes that form a cluster (kafka, rabbitmq); 1 unless given.",
        min=1,
        show_default=False,
    ),
]


@broker_app.command()
def start(name: NameArgument, nodes: NodesOption = None) -> None:
    """Start a broker and return when clients can use it."""
    from bench_spark import brokers

    started = brokers.start(name, _say, nodes=nodes)
    for command in started.broker.rabbitmqctl:
        _say(f"rabbitmqctl for it: {command}")
    _print_lines([started])


@broker_app.command()
def stop(name: NameArgument) -> None:
    """Stop a broker and remove everything it left."""
    from bench_spark import brokers

    _print_lines([brokers.stop(name)])


@broker_app.command()
def status(name: Annotated[Text, argument("[NAME]", "One of them; unset: all.")] = None) -> None:
    """Print a line per broker: name, state, address and all ports."""
    from bench_spark import brokers

    _print_lines([brokers.status(each) for each in ([name] if name else brokers.NAMES)])


def _print_lines(found: Sequence[BrokerStatus]) -> None:
    lines = [f"{broker.line_with_ports}\n" for broker in found]
    to_stdout(lambda writer: writer.writelines(lines))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


_COLUMNS = ("kind", "name", "run_id", "holds", "state")
ORPHANED = "orphaned"


def cleanup(
    broker: BrokerOption = DEFAULT_BROKER,
    run_prefix: Annotated[
        str,
        option(
            "--run-prefix TEXT",
            "Only what runs have left whose ids begin like this.",
            show_default="all runs",
        ),
    ] = "",
    dry_run: Annotated[
        bool, option("--dry-run/--delete", "Only show what is there, or delete it as well.")
    ] = True,
    store: StoreOption = DEFAULT_STORE,
    formats: FormatsOption = None,
) -> None:
    """Show, and with --delete remove, what killed runs have left in a broker.

    Queues, topics, groups and the like whose names begin with bench- and a run id; nothing else is
    looked at. What is in use is left alone. The store tells which runs there were, for brokers
    that cannot list what they have (AMQP without management_uri) and for sessions of MQTT.
    """
    outputs = parse_formats(formats)
    if run_prefix and not PLAIN_NAME.fullmatch(run_prefix):
        raise ConfigurationError(
            f"--run-prefix: {shown_value(run_prefix)} is not the beginning of a run id; allowed: "
            f"{PLAIN_NAME_RULE}"
        )
    loaded = load_broker(broker)
    sweeper = sweeper_of(loaded, resolve_credentials(loaded))
    known = _known_runs(store, loaded, run_prefix)
    found = sparing_kept(sweeper.find(Wanted(run_prefix, known)), known)
    orphans = [one for one in found if not one.used_by]
    if found or formats:
        outputs.write(Rows("Left in the broker", _COLUMNS, [*map(_cells, found)]))
    if not orphans:
        _tell("nothing is orphaned")
    elif dry_run:
        _tell(
            f"a dry run: nothing was deleted; with --delete it is what is orphaned: {len(orphans)}"
        )
    else:
        sweeper.delete(orphans)
        _tell(f"deleted: {len(orphans)}")
    if not dry_run:
        for run_id in _ended_runs(store, run_prefix):
            _tell(f"run {run_id} is abandoned: its driver has vanished, its row is ended")


def _cells(left: Leftover) -> Sequence[str]:
    use = f"used by {left.used_by}" if left.used_by else ORPHANED
    return left.kind, left.name, left.run_id, left.holds, use


def _tell(text: str) -> None:
    sys.stderr.write(f"cleanup: {text}\n")


def _ended_runs(store: str, run_prefix: str) -> list[str]:
    opened = Store(store)
    if opened.is_local and not Path(opened.table_uri("runs")).is_dir():
        return []
    return end_abandoned(opened.open(), run_prefix)


def _known_runs(store: str, broker: Broker, run_prefix: str) -> list[KnownRun]:
    """Runs on this broker, if there is a store: it is of help only."""
    opened = Store(store)
    if opened.is_local and not Path(opened.table_uri("runs")).is_dir():
        return []
    rows = opened.read("runs", columns=["run_id", "scenario_json", "broker_json"]).to_pylist()
    return [
        KnownRun(row["run_id"], _scenario_of(row["run_id"], row["scenario_json"]))
        for row in rows
        if row["run_id"].startswith(run_prefix) and _is_at(broker, json.loads(row["broker_json"]))
    ]


def _scenario_of(run_id: str, text: str) -> Scenario:
    """As it ran; a suite's tags are its own, and need not be what a file may hold."""
    return stored_scenario(run_id, json.loads(text) | {"tags": {}})


def _is_at(broker: Broker, stored: dict[str, object]) -> bool:
    """Whether a run was on this broker, by what is not secret in its address."""
    shown = broker.masked()
    return all(stored.get(key) == shown.get(key) for key in ("kind", "uri", "bootstrap_servers"))
