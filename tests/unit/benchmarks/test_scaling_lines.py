"""Figures of runs on clusters and of simulated crowds."""

from __future__ import annotations

import pytest

from benchmarks import many_agents, scaling
from benchmarks.crowd_agents import rows_of_a_tick
from benchmarks.figures import Results

DOCUMENT = {
    "rates": {"send_rate": 2000.0, "receive_rate": 1999.0},
    "agents": [{}, {}],
    "start_spread_us": 12.5,
    "measures": {"send_lag": {"p99_us": 700}, "latency": {"p99_us": 900}},
}


@pytest.mark.parametrize(("offered", "is_met"), [(1960.0, True), (2041.0, False), (1959.0, False)])
def test_the_bar_is_k_times_one_workers_load_within_two_percent(
    offered: float, is_met: bool
) -> None:
    two = scaling.figures_of(DOCUMENT | {"rates": {"send_rate": offered, "receive_rate": 0.0}})
    one = dict(two) | {scaling.OFFERED: 1000.0}
    results: Results = {"1 worker": [one], "2 workers": [two]}
    assert scaling.bars()[0].is_met(results) is is_met


def test_a_crowds_figures_are_per_agent_and_second_after_the_warm_up() -> None:
    seen = {
        "agents": 10,
        "ticks": many_agents.TICKS,
        "delays_seconds": [1.0, 2.0, 3.0],
        "cpu_seconds": 1.8,
        "wire_bytes_per_agent_tick": 40_000,
        "events_bytes": 10 * many_agents.TICKS * 5000,
        "metrics_bytes": 700,
        "metrics_rows": 7,
    }
    figures = many_agents.figures_of(seen)
    assert figures[many_agents.DELAY] == 2.0
    assert figures[many_agents.CPU] == pytest.approx(1.8 / 18 / 10 * 1e6)
    assert figures[many_agents.STORED] == 5000
    assert figures[many_agents.METRIC_BYTES] == 100


def test_simulated_agents_send_what_real_ones_do() -> None:
    producer, consumer = rows_of_a_tick(1000, seed=1)
    assert producer.counters["sent"] == consumer.counters["received"] == 1000
    assert set(consumer.histograms) == {"latency", "delivery_latency"}
    assert {one.count for row in (producer, consumer) for one in row.histograms.values()} == {1000}
