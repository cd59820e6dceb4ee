"""Whole agents on the loopback transport, every message traced, and the rows joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from agents import Load, start_load
from pyarrow import fs

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.records import SentRing
from bench_spark.agent.tracer import MessageEvent
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.hdr import merge_sparse
from bench_spark.data.checking import with_records
from bench_spark.driver.committer import Committer
from bench_spark.plan import make_plan, timeline_of
from bench_spark.store.delta import Store
from bench_spark.trace.files import MessageDirectory
from bench_spark.trace.joining import ROWS, JoinedMessages, JoinRule, join_parts, unite
from bench_spark.trace.live import LiveFiles, LiveJoin

LOOPBACK = Broker(name="loopback", kind="loopback")
KIND = {event.name.lower(): int(event) for event in MessageEvent}


def traced(store: Store, **keys: Any) -> Load:
    defaults = {
        "load": {"rate_per_second": 2_000},
        "phases": {"warmup_seconds": 0.2, "measure_seconds": 0.8, "drain_seconds": 2},
    }
    scenario = Scenario.model_validate(defaults | keys)
    plan = make_plan(with_records(scenario, LOOPBACK), "traced")
    committer = Committer(store, "traced", live=False)
    writer = MessageDirectory(store.table_uri("messages"), is_local=True)
    load = start_load(plan, LOOPBACK, writer, committer.add_files)
    load.wait()
    assert load.control.failures == []
    assert [result.failure for result in load.results] == [None] * len(plan.assignments)
    for result in load.results:
        committer.add_files(result.agent, 0, result.files)
    committer.close()
    return load


def timed_late(store: Store, load: Load) -> list[EventRow]:
    """What the driver would have found while the files came, one after the other."""
    files = MessageDirectory(store.table_uri("messages"), is_local=True).filesystem()
    live = LiveFiles(files, LiveJoin(rule_of(load)))
    found = files.get_file_info(fs.FileSelector("traced"))
    return [row for file in found for row in live.added([file.path])]


def rule_of(load: Load) -> JoinRule:
    assert load.control.start_at_ns is not None
    timeline = timeline_of(load.plan.scenario, load.control.start_at_ns)
    return JoinRule(timeline, load.plan.scenario.histogram.highest_us, has_schedule=True)


def joined(store: Store, load: Load) -> JoinedMessages:
    table = store.read("messages", run_id="traced")
    made = {
        "kind": pa.array([KIND[kind] for kind in table["kind"].to_pylist()], pa.int8()),
        "is_measured": pa.array([phase == "measure" for phase in table["phase"].to_pylist()]),
    }
    columns = [made[name] if name in made else table[name] for name in ROWS.names]
    rows = pa.table(columns, schema=ROWS)
    return unite(pa.Table.from_batches(list(join_parts(rows.to_batches(), rule_of(load)))))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"producers": 2, "consumers": 2, "destinations": 1, "topology": "fan-out"},
    ],
    ids=["pair", "fan-out"],
)
def test_the_join_of_all_rows_agrees_with_the_accounts_and_the_histograms(
    store: Store, keys: dict[str, Any]
) -> None:
    load = traced(store, trace="all", **keys)
    found, accounts = joined(store, load), load.accounts()
    assert accounts.sent == 1_600
    assert found.total("sent") == accounts.sent
    assert found.total("received_once") == accounts.received_once == 1_600 * accounts.copies
    assert found.total("received") == load.total("consumer", "received")
    assert (found.duplicates, found.missing(accounts.copies)) == (0, 0)
    assert found.total("unexpected") == found.total("untimed") == 0
    for measure in ("latency", "delivery_latency"):
        assert found.histogram(measure) == load.histogram(measure), measure


def test_a_sample_has_the_same_messages_at_both_ends(store: Store) -> None:
    traced(store, trace="sample 1/50")
    table = store.read("messages", columns=["kind", "sequence"], run_id="traced").to_pylist()
    by_kind = {
        kind: sorted(row["sequence"] for row in table if row["kind"] == kind)
        for kind in ("sent", "received")
    }
    assert by_kind["sent"] == by_kind["received"] == list(range(0, 2_000, 50))


def test_nothing_is_written_unless_it_is_asked_for(store: Store) -> None:
    traced(store)
    assert len(store.read("messages")) == 0


def test_what_the_receiving_agent_cannot_time_is_timed_by_the_rows_of_both_ends(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages carry only an ID, and the agent does not remember: as if another had sent them."""
    monkeypatch.setattr(SentRing, "add", lambda *given: None)
    (tmp_path / "records.txt").write_text("one\ntwo\nthree\n")
    keys = {
        "dataset": {"path": str(tmp_path / "records.txt")},
        "identity": {"carrier": "prefix", "content_hash": True},
    }
    load = traced(store, trace="all", **keys)
    assert load.histogram("latency").count == 0
    found, accounts = joined(store, load), load.accounts()
    assert found.total("received_once") == accounts.received_once == 1_600
    assert found.total("untimed") == found.histogram("latency").count == 1_600
    assert found.total("corrupted") == 0
    late = [row for row in timed_late(store, load) if row.phase == "measure"]
    for measure in ("latency", "delivery_latency"):
        live = [row.histograms[measure] for row in late]
        assert merge_sparse(live) == found.histogram(measure), measure
