"""Loads that pile up, and loads that go on: what the agents themselves need meanwhile."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from fault_records import Seen
from whole_runs import CarryOut, Loading, workers_at

from bench_spark.config.broker import Broker

MEBIBYTE = 1 << 20


POOL = "tokio-rt-worker"
"""Threads of Delta's library: as many as its last work had a use for, and they end when idle."""


def own_threads(pid: int) -> int:
    names = [file.read_text().strip() for file in Path(f"/proc/{pid}/task").glob("*/comm")]
    return sum(name != POOL for name in names)


@dataclass
class Use:
    """What processes used, second by second."""

    memory_bytes: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def add(self, processes: list[psutil.Process]) -> None:
        try:
            self.memory_bytes.append(sum(one.memory_info().rss for one in processes))
            self.threads.append(sum(own_threads(one.pid) for one in processes))
            self.descriptors.append(sum(one.num_fds() for one in processes))
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return  # the load is over

    def medians(self, column: list[int]) -> tuple[float, float]:
        """Of the second and of the last quarter: in the first, buffers find their size."""
        quarter = len(column) // 4
        return (
            statistics.median(column[quarter : 2 * quarter]),
            statistics.median(column[-quarter:]),
        )


@pytest.mark.fault(case=19)
@pytest.mark.faults_slow
def test_what_slow_consumers_leave_is_reported_and_not_kept_in_memory(
    rabbitmq_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    """120 MB are sent, of which the consumer takes one."""
    use = Use()

    def watch(loading: Loading) -> None:
        workers = workers_at(rabbitmq_broker.port)
        while loading.elapsed_seconds < 4:
            use.add(workers)
            threading.Event().wait(0.2)

    outcome = carry_out(
        rabbitmq_broker,
        watch,
        phases={"warmup_seconds": 0, "measure_seconds": 4, "drain_seconds": 1},
        load={"rate_per_second": 1500},
        message={"bytes": 20_000},
        consumer={"rate_per_second": 10},
        amqp={"ack": "manual", "prefetch": 20},
    )
    grown_bytes = max(use.memory_bytes) - use.memory_bytes[0]
    assert outcome.counts["left_in_broker"] > outcome.counts["sent"] * 0.9
    assert outcome.closes
    assert outcome.check("drain").startswith("fail")
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert grown_bytes < 64 * MEBIBYTE
    seen(
        f"{outcome.counts['left_in_broker']:,} of {outcome.counts['sent']:,} left in the broker, "
        f"the agent grew by {grown_bytes / MEBIBYTE:.0f} MiB"
    )


SOAK_SECONDS = 90
SOAK_RATE = 10_000


@pytest.mark.fault(case=20)
@pytest.mark.faults_slow
def test_a_long_load_needs_no_more_at_its_end_than_at_its_beginning(
    rabbitmq_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    """As many messages as an hour at 250 a second has, on ten connections each way."""
    agents, driver = Use(), Use()

    def watch(loading: Loading) -> None:
        workers = workers_at(rabbitmq_broker.port)
        while loading.elapsed_seconds < SOAK_SECONDS - 1:
            agents.add(workers)
            driver.add([psutil.Process()])
            threading.Event().wait(1.0)

    outcome = carry_out(
        rabbitmq_broker,
        watch,
        live=True,
        phases={"warmup_seconds": 5, "measure_seconds": SOAK_SECONDS, "drain_seconds": 10},
        load={"rate_per_second": SOAK_RATE},
        message={"bytes": 200},
        **{"producers": 10, "consumers": 10, "destinations": 10},
        amqp={"confirms": 200, "ack": "manual", "ack_every": 20, "prefetch": 200},
    )
    assert outcome.closes
    assert outcome.counts["lost"] == 0
    told = []
    for name, use in (("agent", agents), ("driver", driver)):
        early, late = use.medians(use.memory_bytes)
        assert late < early * 1.10 + 8 * MEBIBYTE, name
        assert use.medians(use.threads)[1] <= use.medians(use.threads)[0] + 1, name
        assert use.medians(use.descriptors)[1] <= use.medians(use.descriptors)[0] + 2, name
        told.append(
            f"{name} {early / MEBIBYTE:.0f} to {late / MEBIBYTE:.0f} MiB, {use.threads[-1]} "
            f"threads, {use.descriptors[-1]} descriptors"
        )
    seen(f"{outcome.counts['received_once']:,} messages: " + "; ".join(told))
