"""Whole agents against a real broker, without Spark: threads in place of tasks.

The collector, the links, the steps and the accounts are the product's own; only the barrier stage
is missing. Keeps tests of loads on real brokers quick.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench_spark.agent.agent import AgentResult, AgentTask, run_agent
from bench_spark.agent.protocol import EventRow, new_token
from bench_spark.agent.tracer import MakeMessageWriter, MessageFile
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.core.clock import Clock
from bench_spark.core.hdr import SparseHistogram, merge_sparse
from bench_spark.driver.accounts import Accounts, accounts_of
from bench_spark.driver.control import RunControl
from bench_spark.driver.server import CollectorServer
from bench_spark.plan import Plan


@dataclass
class Load:
    """One run of all agents of a plan, and what came of it."""

    plan: Plan
    control: RunControl
    server: CollectorServer
    results: list[AgentResult] = field(default_factory=list)
    rows: list[tuple[int, EventRow]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def stop(self) -> None:
        self.server.call(lambda: self.control.stop("the test said so"))

    def wait(self, timeout_seconds: float = 600.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "an agent did not end"
        self.server.close()
        for result in self.results:
            self.rows += [(result.agent, row) for row in result.rows]

    def total(
        self, role: str, counter: str, phase: str = "measure", agent: int | None = None
    ) -> int:
        return sum(
            row.counters.get(counter, 0)
            for number, row in self.rows
            if row.role == role and row.phase == phase and agent in (None, number)
        )

    def total_of_all_phases(self, role: str, counter: str) -> int:
        return sum(self.total(role, counter, phase) for phase in ("warmup", "measure"))

    def histogram(self, measure: str, phase: str = "measure") -> SparseHistogram:
        return merge_sparse(
            [
                row.histograms[measure]
                for _, row in self.rows
                if row.phase == phase and measure in row.histograms
            ]
        )

    def accounts(self) -> Accounts:
        accounts = accounts_of(self.plan, self.control)
        assert accounts is not None
        return accounts


def start_load(
    plan: Plan,
    broker: Broker | Ends,
    message_writer: MakeMessageWriter | None = None,
    on_files: Callable[[int, int, list[MessageFile]], None] | None = None,
) -> Load:
    """Start every agent of the plan in a thread; `Load.wait` ends it."""
    token, clock = new_token(), Clock.local()
    server = CollectorServer(("127.0.0.1", 0), token, len(plan.assignments), clock)
    rows: list[tuple[int, EventRow]] = []

    def keep(agent: int, attempt: int, new: list[EventRow]) -> None:
        rows.extend((agent, row) for row in new)

    control = RunControl(plan, clock.now_ns, server.send, keep, on_files=on_files)
    server.start(control)
    load = Load(plan, control, server, rows=rows)
    ends = broker if isinstance(broker, Ends) else Ends.of(broker)

    def work(task: AgentTask) -> None:
        load.results.append(run_agent(task, message_writer=message_writer))

    for assignment in plan.assignments:
        task = AgentTask(assignment, ends, ("127.0.0.1", server.port), token)
        load.threads.append(threading.Thread(target=work, args=(task,), daemon=True))
    for thread in load.threads:
        thread.start()
    return load


def run_load(
    plan: Plan, broker: Broker | Ends, meanwhile: Callable[[Load], None] | None = None
) -> Load:
    """Run the plan to its end; `meanwhile` is called once the load has started."""
    load = start_load(plan, broker)
    if meanwhile is not None:
        assert load.control.started.wait(30), load.control.failures
        meanwhile(load)
    load.wait()
    return load
