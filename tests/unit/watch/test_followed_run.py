"""A run followed through a real store: what is known of it at each moment."""

from __future__ import annotations

import pytest
import result_documents as documents
from growing_run import STARTED, GrowingRun, scenario

from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BrokerUnreachable, StoreError
from bench_spark.store.delta import Store
from bench_spark.watch.dashboard import charts_so_far, span_of, timeline_so_far
from bench_spark.watch.followed_run import KEPT_SECONDS, FollowedRun


@pytest.fixture
def followed(store: Store) -> FollowedRun:
    return FollowedRun(Store(store.uri), "r1")


def test_a_run_is_known_from_its_first_row_to_its_last(store: Store, followed: FollowedRun) -> None:
    run = GrowingRun(store)
    state = followed.state
    assert not followed.refresh()
    run.begin()
    assert followed.refresh()
    assert state.plan == run.plan
    assert (state.timeline, state.window, state.is_over) == (None, None, False)
    for second in range(4):
        run.add_second(second)
    followed.refresh()
    assert state.timeline is not None
    assert state.timeline.start_ns == round((STARTED.timestamp() + 10) * NANOSECONDS)
    assert state.newest_ns == state.timeline.start_ns + 4 * NANOSECONDS
    assert state.window is not None
    assert state.window.received_per_second == 990
    assert state.window.measures["latency"]["p99_us"] == 8000
    assert state.agents.totals == {"sent": 4 * 1001, "received_once": 4 * 1001}
    assert state.agents.by_number[1].received_per_second == 501
    run.end(documents.VALID)
    assert followed.refresh()
    assert state.is_over
    assert state.document is not None
    assert state.document["run_id"] == "r1"
    assert not followed.refresh()


def test_the_start_is_known_from_any_tick(store: Store, followed: FollowedRun) -> None:
    run = GrowingRun(store, loaded=scenario(phases={"warmup_seconds": 2.0, "measure_seconds": 9}))
    run.begin()
    run.add_events(5)
    followed.refresh()
    assert followed.state.timeline is not None
    assert followed.state.timeline.start_ns == round((STARTED.timestamp() + 10) * NANOSECONDS)


def test_a_load_that_has_to_settle_is_measured_from_when_its_driver_says(
    store: Store, followed: FollowedRun
) -> None:
    run = GrowingRun(store, loaded=scenario(load={"mode": "maximum"}))
    run.begin()
    for second in range(3):
        run.add_second(second)
    followed.refresh()
    state = followed.state
    assert state.timeline is not None
    start_ns = state.timeline.start_ns
    assert state.timeline.measure_start_ns == start_ns + 6 * NANOSECONDS, "at the latest"
    drawn = dict(state.throughput)
    run.measure_from(3.5)
    run.add_second(3)
    followed.refresh()
    assert state.timeline.start_ns == start_ns
    assert state.timeline.measure_start_ns == start_ns + round(3.5 * NANOSECONDS)
    assert drawn.items() <= state.throughput.items(), "what was drawn stays where it is"
    over_time = timeline_so_far(state)
    assert over_time is not None
    assert over_time.measured == (1.5, 7.5)


def test_a_window_that_is_published_again_counts_as_it_was_last(
    store: Store, followed: FollowedRun
) -> None:
    run = GrowingRun(store)
    run.begin()
    run.add_events(0)
    run.add_window(0, rate=10)
    followed.refresh()
    run.add_window(0, rate=20)
    followed.refresh()
    assert followed.state.window is not None
    assert followed.state.window.sent_per_second == 20
    timeline = timeline_so_far(followed.state)
    assert timeline is not None
    assert [row["sent_per_second"] for row in timeline.throughput] == [20]


def test_a_run_that_could_not_start_has_reasons_and_no_result(
    store: Store, followed: FollowedRun
) -> None:
    run = GrowingRun(store)
    run.begin()
    run.fail(BrokerUnreachable("nobody there"))
    followed.refresh()
    state = followed.state
    assert state.is_over
    assert state.document is None
    assert state.run is not None
    assert state.run["reasons"] == ["nobody there"]


def test_a_scenario_of_another_version_is_called_one(store: Store, followed: FollowedRun) -> None:
    run = GrowingRun(store)
    run.begin()
    [row] = store.read("runs").to_pylist()
    store.replace_run(row | {"scenario_json": '{"name": "s", "of_the_future": 1}'})
    with pytest.raises(StoreError, match="run r1 has a scenario of another version"):
        followed.refresh()


def test_resources_wait_for_the_first_events(store: Store, followed: FollowedRun) -> None:
    run = GrowingRun(store)
    run.begin()
    run.add_resources(0)
    followed.refresh()
    assert followed.state.broker == {}
    run.add_events(0)
    followed.refresh()
    assert [list(rows) for rows in followed.state.broker.values()] == [[-1.0]]


def test_what_is_kept_and_drawn_does_not_grow_with_the_run(
    store: Store, followed: FollowedRun
) -> None:
    run = GrowingRun(store, loaded=scenario(measure_seconds=100_000))
    run.begin()
    run.add_second(0)
    followed.refresh()
    for second in (5000, 5001, 5500):
        run.add_second(second)
    followed.refresh()
    state = followed.state
    assert sorted(state.agents.by_tick) == [5000, 5001, 5500]
    assert list(state.throughput) == list(state.durations["latency"]) == [4999, 5000, 5499]
    assert len(state.broker["node"]) == 3
    assert state.agents.totals["sent"] == 4 * 1001
    timeline = timeline_so_far(state)
    assert timeline is not None
    first, last = span_of(timeline)
    assert last - first == KEPT_SECONDS
    charts = {chart.caption: chart for chart in charts_so_far(state, timeline)}
    assert list(charts) == [
        *("Throughput", "Latency", "Delivery latency", "CPU", "Disk", "Memory", "Agents")
    ]
    assert [row["slowest"] for row in charts["Agents"].rows] == [500] * 3
    assert [row["fastest"] for row in charts["Agents"].rows] == [501] * 3
