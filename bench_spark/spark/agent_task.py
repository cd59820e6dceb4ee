"""What a Spark task of the load is: one agent. Loaded by the executors' Python.

It must stay light. What is imported here is imported by every Python worker of every executor, and
is what a packed environment for executors has to bring: no deltalake, no store, no summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark import BarrierTaskContext

from bench_spark.agent.agent import AgentResult, AgentTask, run_agent
from bench_spark.agent.tracer import MakeMessageWriter
from bench_spark.spark.marker import StoreMarker


def start_worker(number: int) -> int:
    """The worker that has loaded this has loaded the agent, and is used again."""
    return number


def start_workers(numbers: Iterable[int]) -> Iterable[int]:
    return map(start_worker, numbers)


def in_task(
    tasks: list[AgentTask], marker: StoreMarker | None, messages: MakeMessageWriter | None
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
