"""What a Spark task of the load is: one agent. Loaded by the executors' Python.

It must stay light. What is imported here is imported by every Python worker of every executor, and
is what a packed environment for executors has to bring: no deltalake, no store, no summary.

Proof that every executor sees the same store as the driver. On a cluster a local path names a
different directory on every machine. The driver leaves a marker with a random content in the store,
and every agent reads it before it touches the broker. A URI of an object store or HDFS is the same
place everywhere, and an agent's Python has no credentials for it: there the rolling metrics prove,
before the load, that Spark's executors can read it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark import BarrierTaskContext

from bench_spark.agent.agent import AgentResult, AgentTask, run_agent
from bench_spark.agent.tracer import MakeTraceWriter
from bench_spark.errors import StoreNotReady


@dataclass(frozen=True)
class StoreMarker:
    path: Path
    content: str

    def prove_readable(self) -> None:
        """Raises StoreNotReady on a machine that does not see the driver's store."""
        host = socket.gethostname()
        try:
            found = self.path.read_text()
        except (OSError, ValueError) as error:
            raise StoreNotReady(
                f"the executor on {host} cannot read the store ({type(error).__name__}): with a "
                "master that is not local the store must be a URI or path that every machine shares"
            ) from None
        if found != self.content:
            raise StoreNotReady(f"the executor on {host} sees another store than the driver")


@contextmanager
def store_marker(directory: Path | None) -> Iterator[StoreMarker | None]:
    """A marker in the store while the agents start; None: there is no directory to share."""
    if directory is None:
        yield None
        return
    marker = StoreMarker(directory / f"_marker-{secrets.token_hex(8)}", secrets.token_hex(16))
    marker.path.write_text(marker.content)
    try:
        yield marker
    finally:
        marker.path.unlink(missing_ok=True)


def start_worker(number: int) -> int:
    """The worker that has loaded this has loaded the agent, and is used again."""
    return number


def start_workers(numbers: Iterable[int]) -> Iterable[int]:
    return map(start_worker, numbers)


def in_task(
    tasks: list[AgentTask], marker: StoreMarker | None, messages: MakeTraceWriter | None
) -> Callable[[Iterable[int]], Iterable[AgentResult]]:
    """The body of the stage: task n carries out the n-th of these. `messages` makes the writers of
    rows of single messages, where these are traced."""

    def work(numbers: Iterable[int]) -> Iterable[AgentResult]:
        context = BarrierTaskContext.get()
        for number in numbers:
            yield run_agent(
                tasks[number],
                attempt=context.attemptNumber(),
                executor=context.getTaskInfos()[number].address,
                preflight=marker.prove_readable if marker is not None else None,
                message_writer=messages,
            )

    return work
