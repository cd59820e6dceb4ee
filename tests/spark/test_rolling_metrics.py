"""Rolling metrics against HdrHistogram itself, window by window, with rows as big as real ones."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from pyspark.sql import SparkSession
from realistic import HIGHEST_US, Load, Row, events_table, judge, timeline
from views_in_memory import views_in_memory

from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import RunError, StoreNotReady
from bench_spark.report.live import Steps
from bench_spark.spark.engine import Engine
from bench_spark.spark.metrics import RollingMetrics
from bench_spark.spark.windows import RunWindows
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

WARMUP_TICKS = 3
MEASURED_TICKS = 10
TICKS = WARMUP_TICKS + MEASURED_TICKS
INTERVAL = 4
TIMELINE = timeline(WARMUP_TICKS, MEASURED_TICKS)

Key = tuple[str, int, str | None]
"""Kind of window, first tick after it, measure."""


def windows_of(run_id: str) -> RunWindows:
    return RunWindows(run_id, TIMELINE, INTERVAL, HIGHEST_US)


@pytest.fixture
def metrics(spark: SparkSession, store: Store) -> Iterator[RollingMetrics]:
    rolling = RollingMetrics(spark, store, trigger_seconds=0.2)
    yield rolling
    rolling.stop()


def commit(store: Store, *batches: list[Row]) -> None:
    for rows in batches:
        store.append("events", events_table(rows, TIMELINE))


def published(store: Store, run_id: str) -> dict[Key, dict[str, Any]]:
    """The newest publication of every window."""
    newest: dict[Key, dict[str, Any]] = {}
    start = TIMELINE.start_ns // 1000
    rows = store.read("metrics", run_id=run_id).to_pylist()
    for row in sorted(rows, key=lambda row: (row["written_at"], row["batch_id"])):
        end = round(row["window_end"].timestamp() * 1_000_000) - start
        newest[row["window"], round(end / 1_000_000), row["measure"]] = row
    return newest


class Judge:
    """What HdrHistogram says of any set of ticks; each value is recorded once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row.agent, row.row_number): row for row in rows}.values()
        self._judged: dict[tuple[int, str, str], HdrHistogram] = {}

    def histogram(self, ticks: range, measure: str, phases: tuple[str, ...]) -> HdrHistogram:
        total = HdrHistogram(1, HIGHEST_US, 3)
        for tick in ticks:
            for phase in phases:
                key = (tick, phase, measure)
                if key not in self._judged:
                    chosen = [r for r in self.rows if r.tick == tick and r.phase == phase]
                    self._judged[key] = judge(chosen, measure)
                total.add(self._judged[key])
        return total

    def largest_us(self, ticks: range, measure: str, phases: tuple[str, ...]) -> int:
        return max(
            int(row.values_us[measure].max())
            for row in self.rows
            if row.tick in ticks and row.phase in phases and measure in row.values_us
        )

    def messages(self, ticks: range, role: str) -> int:
        return sum(row.messages for row in self.rows if row.role == role and row.tick in ticks)


def expected_windows(newest_tick: int) -> Iterator[tuple[str, int, range, int]]:
    """Kind, nominal end, ticks and seconds of every window, written down without the product.

    What arrives after the measured phase is measured in its last interval (`measured_in`)."""
    for last in range(newest_tick + 1):
        first = max(0, last - 9)
        yield "rolling", last + 1, range(first, last + 1), last + 1 - first
    for first in range(WARMUP_TICKS, min(newest_tick + 1, TICKS), INTERVAL):
        end = min(first + INTERVAL, TICKS)
        seen = min(end, newest_tick + 1)
        yield "interval", end, range(first, seen), seen - first


def measured_in(kind: str, ticks: range, newest_tick: int) -> range:
    is_last = kind == "interval" and ticks.stop == TICKS
    return range(ticks.start, newest_tick + 1) if is_last else ticks


def assert_exact(found: dict[Key, dict[str, Any]], rows: Iterable[Row], newest_tick: int) -> None:
    judge_all = Judge(rows)
    expected_keys = set()
    for kind, end, ticks, seconds in expected_windows(newest_tick):
        phases = ("measure",) if kind == "interval" else ("warmup", "measure")
        for measure in ("send_lag", "latency", "delivery_latency"):
            expected_keys.add((kind, end, measure))
            row = found[kind, end, measure]
            measured = measured_in(kind, ticks, newest_tick)
            truth = judge_all.histogram(measured, measure, phases)
            where = (kind, end, measure)
            assert row["count"] == truth.total_count, where
            values_us = truth.get_percentile_to_value_dict([one for _, one in PERCENTILES])
            for name, percentile in PERCENTILES:
                largest_us = judge_all.largest_us(measured, measure, phases)
                assert row[name] == min(values_us[percentile], largest_us), (where, name)
            sent, received = (judge_all.messages(ticks, r) for r in ("producer", "consumer"))
            assert (row["sent"], row["received"]) == (sent, received), where
            assert row["window_seconds"] == pytest.approx(seconds)
            assert row["sent_per_second"] == pytest.approx(sent / seconds)
            assert row["received_per_second"] == pytest.approx(received / seconds)
    assert set(found) == expected_keys


def assert_no_batch_twice(store: Store, run_id: str) -> None:
    rows = store.read("metrics", run_id=run_id).to_pylist()
    names = ("query_id", "batch_id", "window", "window_end", "measure")
    keys = [tuple(row[name] for name in names) for row in rows]
    assert len(keys) == len(set(keys))


def test_windows_equal_hdrhistogram_with_late_split_repeated_and_foreign_rows(
    store: Store, metrics: RollingMetrics
) -> None:
    load = Load("exact", TIMELINE)
    metrics.register_run(windows_of("exact"))
    metrics.make_ready()
    ticks = [load.tick(range(3), tick) for tick in range(TICKS + 2)]
    late = [load.row(1, "consumer", 2), load.row(2, "producer", 4)]
    split = [load.row(0, "consumer", 6), load.row(0, "consumer", 6)]
    of_warmup_in_measure = [load.row(2, "consumer", WARMUP_TICKS, phase="warmup")]
    commit(store, *ticks[:5])
    metrics.catch_up()
    assert metrics.latest("exact") is not None
    stranger = Load("another-application", TIMELINE).tick(range(1), 5)
    commit(store, ticks[5] + of_warmup_in_measure, ticks[6] + split, stranger)
    metrics.catch_up()
    # A committer that does not know whether a commit succeeded brings rows again, mixed with new.
    mixed = [load.row(2, "producer", 6), load.row(1, "consumer", 6)]
    commit(store, ticks[7] + ticks[6][:2] + mixed, ticks[6][2:4] + late, *ticks[8:])
    metrics.catch_up()
    rows = [row for tick in ticks for row in tick]
    rows += late + split + of_warmup_in_measure + mixed
    found = published(store, "exact")
    assert_exact(found, rows, TICKS + 1)
    assert not published(store, "another-application")

    latest = metrics.latest("exact")
    assert latest is not None
    newest = found["rolling", TICKS + 2, "latency"]
    assert latest.sent_per_second == newest["sent_per_second"]
    assert latest.measures["latency"]["p99_us"] == newest["p99_us"]


def test_a_phase_that_ended_early_has_its_last_interval_again(
    spark: SparkSession, store: Store, metrics: RollingMetrics
) -> None:
    """5.5 s instead of 10, in intervals of 4: the rest and the drain belong to the first."""
    load = Load("cut", TIMELINE, seed=11, values=500)
    metrics.register_run(windows_of("cut"))
    metrics.make_ready()
    ticks = [load.tick(range(2), tick) for tick in range(TICKS)]
    commit(store, *ticks)
    metrics.catch_up()
    until_ns = TIMELINE.measure_start_ns + 11 * NANOSECONDS // 2
    metrics.end_measuring("cut", until_ns)
    metrics.catch_up()
    store.replace_run({"run_id": "cut", "measured_until": until_ns // 1000})
    with views_in_memory(spark, store):
        rows = spark.sql(
            "SELECT * FROM latency_by_interval WHERE measure = 'latency' AND run_id = 'cut'"
        ).collect()
    judged = Judge(row for tick in ticks for row in tick)
    truth = judged.histogram(range(WARMUP_TICKS, TICKS), "latency", ("measure",))
    [row] = rows
    assert (row["count"], row["interval_seconds"]) == (truth.total_count, 6)
    received = judged.messages(range(WARMUP_TICKS, WARMUP_TICKS + 6), "consumer")
    assert row["received_per_second"] == pytest.approx(received / 6)
    assert row["p99_us"] == truth.get_value_at_percentile(99.0)


@pytest.mark.fault(case=14)
def test_a_killed_query_goes_on_from_its_checkpoint_and_stays_exact(
    spark: SparkSession, store: Store, metrics: RollingMetrics
) -> None:
    load = Load("restarted", TIMELINE, seed=2, values=2_000)
    ticks = [load.tick(range(2), tick) for tick in range(TICKS)]
    late = [load.row(0, "consumer", 1), load.row(1, "producer", 5)]
    metrics.register_run(windows_of("restarted"))
    metrics.start()
    commit(store, *ticks[:4])
    metrics.catch_up()
    commit(store, *ticks[4:6])
    metrics.catch_up()
    commit(store, *ticks[6:8])
    metrics.stop()
    # As if it had been killed between writing its last batch and noting that it did.
    checkpoint = next((Path(store.uri) / "_checkpoints").iterdir())
    last = max(int(entry.name) for entry in (checkpoint / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    commit(store, *ticks[8:10], late[:1])

    again = RollingMetrics(spark, store, trigger_seconds=0.2)
    again.register_run(windows_of("restarted"))
    again.start()
    commit(store, *ticks[10:], late[1:])
    again.catch_up()
    again.close()
    rows = [row for tick in ticks for row in tick] + late
    assert_exact(published(store, "restarted"), rows, TICKS - 1)
    assert_no_batch_twice(store, "restarted")
    assert len({row["query_id"] for row in published(store, "restarted").values()}) == 1
    assert not checkpoint.exists()


def end_unexpectedly(metrics: RollingMetrics) -> None:
    query = metrics._query
    assert query is not None
    query.stop()


def test_one_query_serves_two_runs_and_comes_back_when_it_ended_in_between(
    store: Store, metrics: RollingMetrics
) -> None:
    metrics.start()
    for name, seed in (("first", 3), ("second", 4)):
        load = Load(name, TIMELINE, seed=seed, values=2_000)
        metrics.make_ready()
        metrics.register_run(windows_of(name))
        ticks = [load.tick(range(2), tick) for tick in range(5)]
        commit(store, *ticks[:3])
        if name == "second":
            end_unexpectedly(metrics)
        commit(store, *ticks[3:])
        metrics.catch_up()
        metrics.forget_run(name)
        assert metrics.latest(name) is None
        assert_exact(published(store, name), [row for tick in ticks for row in tick], 4)


def test_a_run_of_a_suite_is_forgotten_when_its_last_rows_are_in(
    store: Store, metrics: RollingMetrics
) -> None:
    load = Load("trial", TIMELINE, seed=8, values=2_000)
    metrics.make_ready()
    metrics.register_run(windows_of("trial"))
    ticks = [load.tick(range(2), tick) for tick in range(5)]
    commit(store, *ticks)
    metrics.forget_when_done("trial")
    metrics.catch_up()
    assert metrics.latest("trial") is None
    assert_exact(published(store, "trial"), [row for tick in ticks for row in tick], 4)


def test_closing_waits_for_runs_that_are_not_done(store: Store, metrics: RollingMetrics) -> None:
    load = Load("last", TIMELINE, seed=9, values=2_000)
    metrics.make_ready()
    metrics.register_run(windows_of("last"))
    ticks = [load.tick(range(2), tick) for tick in range(5)]
    commit(store, *ticks)
    metrics.forget_when_done("last")
    metrics.close()
    assert_exact(published(store, "last"), [row for tick in ticks for row in tick], 4)


def test_without_a_live_query_the_same_rows_come_afterwards(
    spark: SparkSession, store: Store
) -> None:
    load = Load("afterwards", TIMELINE, seed=5, values=2_000)
    ticks = [load.tick(range(2), tick) for tick in range(TICKS)]
    commit(store, [row for tick in ticks for row in tick])
    store.compact("events")
    metrics = RollingMetrics(spark, store)
    metrics.register_run(windows_of("afterwards"))
    metrics.run_once()
    metrics.close()
    rows = [row for tick in ticks for row in tick]
    assert_exact(published(store, "afterwards"), rows, TICKS - 1)


def test_seconds_without_any_event_have_windows_too(store: Store, metrics: RollingMetrics) -> None:
    load = Load("gap", TIMELINE, values=100)
    metrics.register_run(windows_of("gap"))
    metrics.start()
    commit(store, [load.row(0, "producer", 0)])
    metrics.catch_up()
    commit(store, [load.row(0, "producer", 12)])
    metrics.catch_up()
    found = published(store, "gap")
    assert found["rolling", 11, None]["sent"] == 0
    assert found["interval", 7, None]["sent_per_second"] == 0


def test_waiting_for_a_query_that_has_ended_says_so(store: Store, metrics: RollingMetrics) -> None:
    with pytest.raises(RunError, match="not running"):
        metrics.catch_up(timeout_seconds=5)
    metrics.start()
    shutil.rmtree(store.table_uri("events"))
    with pytest.raises(RunError, match="rolling metrics stopped: "):
        metrics._await_marker(("never", 0), timeout_seconds=60)


def test_a_store_that_spark_cannot_read_is_said_before_any_run(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with S3 and no hadoop-aws on the class path: deltalake needs no jar."""
    monkeypatch.setattr(store, "table_uri", lambda name: f"nowhere://bucket/{name}")
    with pytest.raises(StoreNotReady, match=r'Spark cannot read it: .*"nowhere"'):
        Engine(spark, store, Steps(io.StringIO()))
