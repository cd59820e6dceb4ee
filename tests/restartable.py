"""A real broker that can be killed, stopped, frozen and started again, with its data and ports."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench_spark.brokers.base import (
    BrokerStatus,
    Recipe,
    StartedProcess,
    end,
    free_ports,
    last_lines,
    spawn,
)
from bench_spark.config.broker import Broker
from bench_spark.errors import EnvironmentNotReady

START_SECONDS = 90.0


def kill(status: BrokerStatus) -> None:
    """End an embedded broker that nothing is wanted of any more. What its own way of ending takes,
    up to ten seconds, is tested elsewhere."""
    for pid in status.node_pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Restartable:
    """The programs of one recipe. `nodes` are those of the broker itself, in their order."""

    def __init__(self, recipe: Recipe, directory: Path, nodes: int = 1) -> None:
        self._recipe = recipe
        self._directory = directory
        self._log = directory / "log"
        self.ports = dict(zip(recipe.ports, free_ports(len(recipe.ports)), strict=True))
        self._commands = recipe.prepare(directory, self.ports, say=lambda _: None)
        self._processes: list[StartedProcess | None] = [None] * len(self._commands)
        self._first_node = len(self._commands) - nodes
        self.start()

    def start(self) -> float:
        """Start what does not run; returns the moment at which the broker was seen to answer."""
        for number, command in enumerate(self._commands):
            process = self._processes[number]
            if process is None or not process.is_alive:
                self._processes[number] = spawn(command, self._directory, self._log)
                if command.is_ready is not None:
                    self._wait_until(command.is_ready)
        self._wait_until(lambda: self._recipe.answers(self.ports))
        return time.monotonic()

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_true():
            assert time.monotonic() < deadline, last_lines(self._log)
            time.sleep(0.05)

    @property
    def nodes(self) -> Sequence[StartedProcess]:
        return [one for one in self._processes[self._first_node :] if one is not None]

    def kill(self, node: int = 0) -> None:
        self.signal(signal.SIGKILL, node)
        end(self.nodes[node], patience_seconds=5)

    def stop(self, node: int = 0) -> None:
        """As an administrator would."""
        end(self.nodes[node], patience_seconds=20)

    def signal(self, number: signal.Signals, node: int = 0) -> None:
        if self.nodes[node].is_alive:
            os.kill(self.nodes[node].pid, number)

    def close(self) -> None:
        for process in reversed(self._processes):
            if process is not None:
                end(process, patience_seconds=5)

    @property
    def broker(self) -> Broker:
        return Broker(name=self._recipe.name, **self._recipe.address(self.ports, self._directory))


@contextmanager
def restartable(recipe: Recipe, directory: Path, nodes: int = 1) -> Iterator[Restartable]:
    """A broker of one's own; the test is skipped where it is not installed."""
    try:
        made = Restartable(recipe, directory, nodes)
    except EnvironmentNotReady as missing:
        pytest.skip(str(missing))
    try:
        yield made
    finally:
        made.close()
