"""Runs made by hand for summing up: ticks as merged events give them, and what the driver saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from bench_spark.config.models import Scenario
from bench_spark.core.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.driver.accounts import Accounts
from bench_spark.plan import Plan, make_plan
from bench_spark.results.document import RunSummary, summarise
from bench_spark.results.facts import GeneratorFacts, MessageFacts, RunEnd, RunFacts
from bench_spark.results.totals import IntervalStatistics, Statistics, statistics

START_US = 1_700_000_000_123_456
"""Ticks are stored in whole microseconds ..."""
START_SECONDS = (START_US * 1000 + 789) / 1e9
"""... but a run starts at any nanosecond."""
RATE = 100


@dataclass
class HandTick:
    """A tick as the merged events give it."""

    role: str
    phase: str
    second: int
    counters: dict[str, int] = field(default_factory=dict)
    values_us: dict[str, list[int]] = field(default_factory=dict)
    tick_seconds: float = 1.0

    @property
    def start_seconds(self) -> float:
        return (START_US + self.second * 1_000_000) / 1e6

    @property
    def measures(self) -> Iterable[str]:
        return self.values_us

    def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    def histogram(self, measure: str) -> SparseHistogram:
        found = Histogram(shape_for(10_000_000))
        found.record_ns(np.array(self.values_us[measure], dtype=np.int64) * 1000)
        return found.sparse()


def plan(**keys: Any) -> Plan:
    defaults = {
        "load": {"rate_per_second": RATE},
        "phases": {"warmup_seconds": 5, "measure_seconds": 3},
    }
    return make_plan(Scenario.model_validate(defaults | keys), "run-1")


_PARTS = {"messages": MessageFacts, "generator": GeneratorFacts, "end": RunEnd}


def facts(**changes: Any) -> RunFacts:
    """Of a run without incident: 5 s of warm-up, 3 s measured, 300 messages. `changes` may name
    fields of its parts as well."""
    given: dict[str, Any] = {
        "accounts": Accounts(sent=300, received_once=300),
        "confirms": True,
        "busiest_agent_share": 0.2,
        "busiest_host_share": 0.4,
        "spark_cores": 0.3,
        "environment": {"hosts": []},
        **changes,
    }
    parts = {
        name: part(**{one.name: given.pop(one.name) for one in fields(part) if one.name in given})
        for name, part in _PARTS.items()
    }
    span = {"measured_from": START_SECONDS + 5, "measured_until": START_SECONDS + 8}
    whole = {
        "plan": plan(),
        "broker": {"kind": "amqp", "name": "here"},
        "measured": tuple(given.pop(name, moment) for name, moment in span.items()),
    }
    return RunFacts(**(whole | parts | given))


def producer(second: int, phase: str = "measure", **counters: int) -> HandTick:
    return HandTick("producer", phase, second, counters)


def consumer(second: int, values_us: list[int], phase: str = "measure") -> HandTick:
    counters = {"received": len(values_us), "bytes": 1000 * len(values_us)}
    return HandTick("consumer", phase, second, counters, {"latency": values_us})


def good_ticks() -> list[HandTick]:
    seconds = range(5, 8)
    return [
        producer(4, "warmup", due=RATE, sent=RATE, confirmed=RATE),
        consumer(4, [900_000] * RATE, "warmup"),
        *(producer(second, due=RATE, sent=RATE, confirmed=RATE) for second in seconds),
        *(consumer(second, [100 * (second - 4)] * RATE) for second in seconds),
    ]


def summary(ticks: list[HandTick] | None = None, **changes: Any) -> RunSummary:
    return summarise(good_ticks() if ticks is None else ticks, facts(**changes))


def interval_statistics(
    intervals: list[SparseHistogram], highest_us: int
) -> tuple[Statistics, Statistics]:
    """`interval_max` and `interval_mean` of all these intervals."""
    found = IntervalStatistics(highest_us)
    for interval in intervals:
        found.add(interval)
    return found.both(statistics(merge_sparse(intervals), highest_us))
