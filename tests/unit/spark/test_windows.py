"""Windows over ticks, and slots that stay exact whatever comes late, twice or after a restart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.spark import windows as windows_module
from bench_spark.spark.merge import RowIdentity, TickKey, TickRows, unite
from bench_spark.spark.windows import (
    INTERVAL,
    ROLLING,
    LiveWindow,
    RunWindows,
    TickSlots,
    Window,
    WindowSum,
    metric_rows,
)
from bench_spark.store.schema import COUNTERS


def run_windows(
    warmup_seconds: float = 3, measure_seconds: float = 10, interval_seconds: int = 4
) -> RunWindows:
    timeline = Timeline(
        start_ns=0,
        warmup_ns=int(warmup_seconds * NANOSECONDS),
        measure_ns=int(measure_seconds * NANOSECONDS),
        drain_ns=5 * NANOSECONDS,
    )
    return RunWindows("r", timeline, interval_seconds, 10_000_000)


def seconds(window: Window) -> tuple[float, float]:
    return window.start_ns / NANOSECONDS, window.end_ns / NANOSECONDS


@pytest.mark.parametrize(
    ("warmup_seconds", "tick", "ticks", "span"),
    [
        (3, 0, (0, 0), (0, 1)),
        (3, 5, (0, 5), (0, 6)),
        (3, 9, (0, 9), (0, 10)),
        (3, 12, (3, 12), (3, 13)),
        # Warm-up of 2.5 s: tick 2 lasts half a second, and later ticks end at .5.
        (2.5, 2, (0, 2), (0, 2.5)),
        (2.5, 9, (0, 9), (0, 9.5)),
        (2.5, 11, (2, 11), (2, 11.5)),
        (2.5, 12, (3, 12), (2.5, 12.5)),
    ],
)
def test_a_rolling_window_takes_whole_ticks_of_at_most_ten_seconds(
    warmup_seconds: float, tick: int, ticks: tuple[int, int], span: tuple[float, float]
) -> None:
    window = run_windows(warmup_seconds).rolling(tick)
    assert (window.first_tick, window.last_tick) == ticks
    assert seconds(window) == span


@pytest.mark.parametrize(
    ("tick", "span"),
    [(2, None), (3, (3, 7)), (6, (3, 7)), (7, (7, 11)), (11, (11, 13)), (13, (11, 13))],
)
def test_intervals_lie_side_by_side_in_the_measured_phase(
    tick: int, span: tuple[float, float] | None
) -> None:
    window = run_windows().interval(tick)
    assert (seconds(window) if window else None) == span


@pytest.mark.parametrize(
    ("measure_seconds", "interval_seconds", "until_seconds", "spans"),
    [
        (10, 4, None, [(3, 7), (7, 11), (11, 13)]),
        (9, 4, None, [(3, 7), (7, 12)]),
        (9.9, 4, None, [(3, 7), (7, 12.9)]),
        (1.4, 4, None, [(3, 4.4)]),
        # Ended early: by a number of messages, by samples, by a signal.
        (3600, 4, 9.5, [(3, 7), (7, 10)]),
        (3600, 4, 8.9, [(3, 9)]),
        (3600, 4, 3.2, [(3, 4)]),
        (10, 4, 30, [(3, 7), (7, 11), (11, 13)]),
    ],
)
def test_a_short_rest_and_the_drain_belong_to_the_last_interval(
    measure_seconds: float,
    interval_seconds: int,
    until_seconds: float | None,
    spans: list[tuple[float, float]],
) -> None:
    windows = run_windows(3, measure_seconds, interval_seconds)
    if until_seconds is not None:
        until_ns = int(until_seconds * NANOSECONDS)
        windows = replace(windows, measured_until_ns=until_ns)
    found = dict.fromkeys(windows.interval(tick) for tick in range(3, 40))
    assert [seconds(window) for window in found if window] == spans


def test_the_last_interval_measures_the_drain_but_its_throughput_does_not_count_it() -> None:
    windows = run_windows()
    slots = TickSlots(windows)
    slots.add([part(0, 12, "measure", [100]), part(1, 13, "measure", [9000])])
    slots.add([part(2, 14, "warmup", [7])])
    interval = windows.interval(14)
    assert interval is not None
    total = slots.sum_of(interval)
    assert (total.received, total.histograms["latency"].max_us) == (1, 9000)
    assert total.histograms["latency"].count == 2


def test_a_phase_that_ends_early_makes_another_interval_the_last() -> None:
    windows = run_windows(measure_seconds=3600)
    slots = TickSlots(windows)
    rows = [part(tick, tick, "measure", [100 * tick]) for tick in range(3, 13)]
    slots.add(rows)
    assert slots.last_interval_to_read() == set()
    slots.windows_touched(set(range(3, 13)))
    slots.cut_short(measured_until_ns=8 * NANOSECONDS)
    changed = slots.last_interval_to_read()
    first, last = slots.range_to_read(changed)
    assert first <= 3
    assert last == 12
    slots.replace(first, last, rows)
    [interval] = [w for w in slots.windows_touched(changed) if w.kind == INTERVAL]
    assert seconds(interval) == (3, 8)
    total = slots.sum_of(interval)
    assert (total.received, total.histograms["latency"].count) == (5, 10)
    assert slots.last_interval_to_read() == set()


def test_an_interval_that_is_not_over_covers_the_seconds_seen() -> None:
    windows = run_windows()
    interval = windows.interval(8)
    assert interval is not None
    assert windows.seconds_covered(interval, newest_tick=8) == 2
    assert windows.seconds_covered(interval, newest_tick=20) == 4


def test_a_late_tick_touches_the_windows_it_lies_in() -> None:
    touched = list(run_windows().touched({4}, known_until=12, newest_tick=12))
    assert [w.first_tick for w in touched if w.kind == INTERVAL] == [3]
    assert [w.last_tick for w in touched if w.kind == ROLLING] == list(range(4, 13))


def test_ticks_without_rows_are_published_when_time_moves_on() -> None:
    touched = list(run_windows().touched({7}, known_until=3, newest_tick=7))
    assert [w.last_tick for w in touched if w.kind == ROLLING] == [4, 5, 6, 7]
    assert [w.first_tick for w in touched if w.kind == INTERVAL] == [3, 7]


def test_the_live_window_is_what_the_rows_say() -> None:
    windows = run_windows()
    slots = TickSlots(windows)
    slots.add([part(0, 5, "measure", [100, 200, 300])])
    window = windows.rolling(5)
    rows = metric_rows(windows, window, slots.sum_of(window), 6.0)
    live = LiveWindow.of_rows(rows)
    assert live.received_per_second == 3 / 6
    assert live.measures["latency"]["p50_us"] == 200
    empty = LiveWindow.of_rows(metric_rows(windows, window, WindowSum(), 6.0))
    assert empty.measures == {}


def test_percentiles_in_the_overflow_are_the_end_of_the_range() -> None:
    windows = run_windows()
    slots = TickSlots(windows)
    slots.add([part(0, 5, "measure", [100, 50_000_000])])
    (row,) = metric_rows(windows, windows.rolling(5), slots.sum_of(windows.rolling(5)), 6.0)
    assert (row["p50_us"], row["p99_us"], row["max_us"]) == (100, 10_000_000, 50_000_000)
    assert (row["count"], row["overflow"]) == (2, 1)


# -- exactness under everything that can go wrong ------------------------------------------------


def part(number: int, tick: int, phase: str, values_us: list[int]) -> TickRows:
    """One event row as a merged row of its own."""
    histogram = Histogram(shape_for(10_000_000))
    histogram.record_ns(np.array(values_us, dtype=np.int64) * 1000)
    counters = np.zeros(len(COUNTERS), dtype=np.int64)
    counters[COUNTERS.index("received")] = len(values_us)
    row = TickRows(
        key=TickKey("r", "consumer", phase, tick),
        tick_start_us=tick * 1_000_000,
        tick_seconds=1.0,
        counters=counters,
        rows={RowIdentity(0, 0, number)},
    )
    row.add_histogram("latency", histogram.sparse())
    return row


def test_the_last_interval_is_kept_as_long_as_messages_of_it_arrive() -> None:
    slots = TickSlots(run_windows())
    drained_until = windows_module.KEPT_TICKS + 20
    for number, tick in enumerate((12, drained_until, drained_until + 1)):
        assert slots.add([part(number, tick, "measure", [100])]) == set()
        slots.forget_old()
    last = slots.windows.interval(drained_until)
    assert last is not None
    assert slots.sum_of(last).histograms["latency"].count == 3


Event = tuple[int, int, str, list[int]]
LAST_MEASURED = 32
"""After 3 s of warm-up and 30 s measured; later ticks are of the drain."""

events_strategy = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from(["warmup", "measure"]), st.lists(st.integers(1, 5000))
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(
    drawn=events_strategy,
    order=st.randoms(use_true_random=False),
    batch_size=st.integers(1, 6),
    repeats=st.integers(0, 5),
    restart_after=st.integers(0, 8),
    kept=st.integers(12, 30),
)
def test_published_windows_are_exact_with_late_repeated_and_reread_rows(
    drawn: list[tuple[int, str, list[int]]],
    order: Random,
    batch_size: int,
    repeats: int,
    restart_after: int,
    kept: int,
) -> None:
    windows = run_windows(warmup_seconds=3, measure_seconds=30, interval_seconds=7)
    events: list[Event] = [(n, *event) for n, event in enumerate(drawn)]
    stream = events + [order.choice(events) for _ in range(repeats)]
    order.shuffle(stream)
    batches = [stream[i : i + batch_size] for i in range(0, len(stream), batch_size)]
    kept_before = windows_module.KEPT_TICKS
    windows_module.KEPT_TICKS = kept
    try:
        published = publish(windows, batches, restart_after)
    finally:
        windows_module.KEPT_TICKS = kept_before
    for window, total in published.items():
        inside = [event for event in events if window.first_tick <= event[1] <= window.last_tick]
        assert total.received == sum(len(values) for *_, values in inside), window
        if window.kind == INTERVAL and window.last_tick == LAST_MEASURED:
            inside += [event for event in events if event[1] > LAST_MEASURED]
        counted = [
            value
            for _, _, phase, values in inside
            if window.kind == ROLLING or phase == "measure"
            for value in values
        ]
        found = total.histograms.get("latency")
        assert (found.count if found else 0) == len(counted), window
        assert (found.sum_us if found else 0) == sum(counted), window
    newest = max(event[1] for event in events)
    if restart_after == 0 or restart_after >= len(batches):
        assert set(published) == set(windows.published_until(newest))


def publish(
    windows: RunWindows, batches: list[list[Event]], restart_after: int
) -> dict[Window, WindowSum]:
    """What the rolling metrics do with a stream of batches, and a table that holds all so far."""
    slots = TickSlots(windows)
    published: dict[Window, WindowSum] = {}
    table: list[Event] = []
    for number, batch in enumerate(batches):
        if number and number == restart_after:
            slots = TickSlots(windows, is_restarted=True)
        table += batch
        parts = list(merge_events(batch).values())
        if doubtful := slots.add(parts):
            first, last = slots.range_to_read(doubtful)
            read = merge_events([event for event in table if first <= event[1] <= last])
            slots.replace(first, last, read.values())
        for window in slots.windows_touched({p.key.tick for p in parts}):
            published[window] = slots.sum_of(window)
        slots.forget_old()
    return published


def merge_events(events: list[Event]) -> dict[TickKey, TickRows]:
    once = {event[0]: event for event in events}
    united = unite(part(*event) for event in once.values())
    assert united is not None
    return united
