"""The agents' Spark stage: the task that runs one agent, and the job seen from the driver.

Loaded by the executors' Python as well, so it imports no deltalake, no store and no results: a
packed environment for executors need not bring them.

Proof that every executor sees the same store as the driver. On a cluster a local path names a
different directory on every machine. The driver leaves a marker with a random content in the store,
and every agent reads it before it touches the broker. A URI of an object store or HDFS is the same
place everywhere: there the rolling metrics prove, before the load, that Spark's executors can read
it. An agent that traces single messages proves before it touches the broker that it can write them.

Where the driver listens for its agents, and by what name they call it, are two Spark settings,
because a cluster's administrator knows them and spark-submit carries them:
`spark.benchspark.collector.host` (unset: `spark.driver.host`) and `spark.benchspark.collector.port`
(unset or 0: any free one). It listens where `spark.driver.bindAddress` says, else everywhere. On
Kubernetes `spark.driver.host` is the driver's headless service: its name stands for the pod's own
address, so every port of it can be reached.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark import BarrierTaskContext, InheritableThread
from pyspark.sql import SparkSession

from bench_spark.agent.agent import AgentResult, AgentTask, run_agent
from bench_spark.config.problems import shown_value
from bench_spark.errors import ConfigurationError, StoreNotReady
from bench_spark.process import watched
from bench_spark.spark.session import JVM_GONE
from bench_spark.trace.files import MessageDirectory

CLOSING_SECONDS = 10.0


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
    tasks: list[AgentTask], marker: StoreMarker | None, messages: MessageDirectory | None
) -> Callable[[Iterable[int]], Iterable[AgentResult]]:
    """The body of the stage: task n carries out the n-th of these. `messages` makes the writers of
    rows of single messages, where these are traced."""

    def preflight() -> None:
        if marker is not None:
            marker.prove_readable()
        if messages is not None:
            messages.prove_writable()

    def work(numbers: Iterable[int]) -> Iterable[AgentResult]:
        context = BarrierTaskContext.get()
        for number in numbers:
            yield run_agent(
                tasks[number],
                attempt=context.attemptNumber(),
                executor=context.getTaskInfos()[number].address,
                preflight=preflight,
                message_writer=messages,
            )

    return work


class AgentsJob:
    """Started when made. Its outcome is complete once `end` has returned."""

    def __init__(
        self,
        spark: SparkSession,
        run_id: str,
        tasks: list[AgentTask],
        marker: StoreMarker | None,
        messages: MessageDirectory | None,
    ) -> None:
        self.results: list[AgentResult] = []
        self.error: Exception | None = None
        self._context = spark.sparkContext
        self._run_id = run_id
        # Credentials travel in the closure of the tasks: never in a conf value or a description.
        stage = self._context.parallelize(range(len(tasks)), len(tasks)).barrier()
        self._job = stage.mapPartitions(in_task(tasks, marker, messages))
        self._thread = InheritableThread(target=watched(self._collect), name="agents", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return bool(self._thread.is_alive())

    def cancel(self) -> None:
        with suppress(*JVM_GONE):
            self._context.cancelJobGroup(self._run_id)

    def end(self) -> None:
        """Wait for the tasks of agents whose links are closed; cancel those that do not end."""
        self._thread.join(CLOSING_SECONDS)
        if self.is_alive:
            self.cancel()
            self._thread.join(CLOSING_SECONDS)

    def _collect(self) -> None:
        run_id = self._run_id
        self._context.setJobGroup(run_id, f"bench-spark run {run_id}", interruptOnCancel=False)
        try:
            self.results = self._job.collect()
        except Exception as error:  # Spark's own errors have no common type here.
            self.error = error


HOST_SETTING = "spark.benchspark.collector.host"
PORT_SETTING = "spark.benchspark.collector.port"

_HERE = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 (executors are elsewhere)
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class CollectorAddress:
    listens_on: str
    port: int
    """0: any free one."""
    called: str
    """The name or address that agents connect to."""


def collector_address(master: str, setting: Callable[[str, str], str | None]) -> CollectorAddress:
    """`setting`: a Spark setting by its name, or else the value given."""
    port = _port(setting(PORT_SETTING, "0") or "0")
    if master.startswith("local"):
        return CollectorAddress(_HERE, port, _HERE)
    called = setting(HOST_SETTING, "") or setting("spark.driver.host", "") or ""
    # Only the user knows by which of the driver's addresses executors come.
    listens_on = setting("spark.driver.bindAddress", "") or _EVERYWHERE
    return CollectorAddress(listens_on, port, called)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise ConfigurationError(
            f"{PORT_SETTING}: {shown_value(text)} is no port; allowed: 0 (any free one) to "
            f"{_HIGHEST_PORT}"
        )
    return int(text)
