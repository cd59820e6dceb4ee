"""Records with IDs through systems that are no brokers: all of them are found again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import run_load
from contract import free_port
from proxy import Proxy
from relay import Relay, relaying

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.data.checking import with_records
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted

LINES = {"framing": "line"}


@contextmanager
def system(kind: str) -> Iterator[tuple[Broker, str]]:
    """A system of that kind in front of our consumers, and where those are to listen."""
    port = free_port()
    if kind == "tcp":
        proxy = Proxy("127.0.0.1", port)
        yield Broker(kind="tcp", uri=f"tcp://127.0.0.1:{proxy.port}"), f"tcp://127.0.0.1:{port}"
        proxy.close()
        return

    def given_id(number: int) -> bytes:
        return b"%032x" % number

    relay = Relay(port, lambda number: (201, {}, given_id(number)))
    if kind == "naming":
        relay.change = lambda number, body: body + b" is " + given_id(number)
    with relaying(relay):
        uri = f"http://127.0.0.1:{relay.port}/in"
        yield Broker(kind="http", uri=uri), f"http://127.0.0.1:{port}/in"


def scenario_of(path: Path, kind: str, consumer_uri: str, keys: dict[str, Any]) -> Scenario:
    section = {"consumer_uri": consumer_uri, **keys.get(kind, {})}
    return Scenario.model_validate(
        {
            "producers": 2,
            "consumers": 2,
            "dataset": {"path": str(path), "order": "shuffled"},
            "load": {"rate_per_second": 300},
            "phases": {"warmup_seconds": 0.2, "measure_seconds": 0.8, "drain_seconds": 10},
            **keys,
            kind: section,
        }
    )


@pytest.mark.parametrize(
    ("kind", "carrier", "section"),
    [
        ("http", "prefix", {}),
        ("http", "header", {"in_flight": 5}),
        ("naming", "acknowledgement", {"answer": "body"}),
        ("tcp", "append", {}),
        ("tcp", "prefix", LINES),
    ],
)
def test_records_come_back_from_a_system_as_they_were_sent(
    tmp_path: Path, kind: str, carrier: str, section: dict[str, Any]
) -> None:
    path = tmp_path / "records.txt"
    path.write_text("".join(f"{number} {'y' * (number * 31)}\n" for number in range(150)))
    with system(kind) as (broker, consumer_uri):
        keys = {broker.kind: section, "identity": {"carrier": carrier}}
        scenario = scenario_of(path, broker.kind, consumer_uri, keys)
        plan = make_plan(
            with_records(fitted(scenario, broker), broker), f"through-{kind}-{carrier}"
        )
        load = run_load(plan, broker)
    assert load.control.failures == []
    accounts = load.accounts()
    assert accounts.sent == accounts.received_once == load.total(PRODUCER, "sent") > 0
    assert load.histogram("latency").count == accounts.sent
    for counter in ("malformed", "foreign", "duplicates"):
        assert load.total_of_all_phases(CONSUMER, counter) == 0


def test_a_record_that_holds_a_line_feed_is_refused_for_lines_and_named(tmp_path: Path) -> None:
    for name, text in (("a.txt", "good"), ("b.txt", "not\ngood")):
        (tmp_path / name).write_text(text)
    keys = {"tcp": LINES, "dataset": {"path": str(tmp_path), "format": "files"}}
    scenario = scenario_of(tmp_path, "tcp", "tcp://127.0.0.1:9", keys)
    broker = Broker(kind="tcp", uri="tcp://127.0.0.1:8")
    with pytest.raises(ConfigurationError, match=r"b\.txt: contains .* at byte 3"):
        with_records(fitted(scenario, broker), broker)
