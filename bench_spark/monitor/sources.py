"""From a broker file to samplers; and the one that runs a command."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_spark.config.broker import (
    FLOW_SOURCE,
    Broker,
    Credentials,
    ResourceSource,
    host_and_port,
    named_sources,
)
from bench_spark.errors import ConfigurationError
from bench_spark.monitor.containers import CgroupSampler, DockerSampler
from bench_spark.monitor.endpoints import Endpoint, PrometheusSampler, flow_sampler
from bench_spark.monitor.processes import (
    FindRoots,
    Processes,
    ProcessSampler,
    matching,
    one_process,
)
from bench_spark.monitor.reading import (
    LONGEST_NAME,
    MOST_VALUES,
    Reading,
    ResourceSampler,
    SourceUnreadable,
    values_read,
)
from bench_spark.monitor.remote import CalledSampler, RemoteSampler
from bench_spark.process import output_of

MOST_OUTPUT_CHARACTERS = 1_000_000

_LINE = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_.:-]*)\s*=\s*(?P<value>\S+)\s*")


def parse_values(text: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """The values, and the names whose value is no number. Other lines are talk."""
    values: dict[str, float] = {}
    unreadable: dict[str, None] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or len(match["name"]) > LONGEST_NAME or len(values) >= MOST_VALUES:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            values[match["name"]] = value
        else:
            unreadable[match["name"]] = None
    return values, tuple(unreadable)


class CommandSampler(ResourceSampler):
    """A command of the user's that prints `name=value` lines."""

    def __init__(self, arguments: Sequence[str], timeout_seconds: float) -> None:
        self._arguments = list(arguments)
        self._timeout_seconds = timeout_seconds

    def read(self) -> Reading:
        text = self._output()
        values, unreadable = parse_values(text)
        if not values and not unreadable:
            raise SourceUnreadable(f"{self._program} printed no name=value line")
        return values_read(values, unreadable)

    @property
    def _program(self) -> str:
        return Path(self._arguments[0]).name

    def _output(self) -> str:
        try:
            exit_code, text = output_of(self._arguments, self._timeout_seconds)
        except OSError as error:
            raise SourceUnreadable(f"{self._program}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SourceUnreadable(
                f"{self._program} did not end within {self._timeout_seconds:g} s"
            ) from None
        if exit_code != 0:
            raise SourceUnreadable(f"{self._program} ended with exit code {exit_code}")
        return text[:MOST_OUTPUT_CHARACTERS]


FLOW_TIMEOUT_SECONDS = 5.0


def samplers_of(
    broker: Broker, credentials: Credentials, run_id: str
) -> dict[str, ResourceSampler]:
    """By the names that results call them. One that cannot even be set up says so when read."""
    makers: dict[str, Callable[[], ResourceSampler | None]] = {
        name: lambda source=source: make_sampler(source, broker)  # type: ignore[misc]
        for name, source in named_sources(broker.resources).items()
    }
    makers[FLOW_SOURCE] = lambda: flow_sampler(broker, credentials, run_id, FLOW_TIMEOUT_SECONDS)
    samplers: dict[str, ResourceSampler] = {}
    for name, make in makers.items():
        try:
            sampler = make()
        except (SourceUnreadable, ConfigurationError) as error:
            sampler = SilentSampler(str(error))
        if sampler is not None:
            samplers[name] = sampler
    return samplers


def make_sampler(source: ResourceSource, broker: Broker | None = None) -> ResourceSampler:
    """`broker`: the one that it is about, where that is known."""
    if source.pid is not None:
        return ProcessSampler(one_process(source.pid))
    if source.process is not None:
        return ProcessSampler(matching(source.process))
    if source.cgroup is not None:
        return CgroupSampler(source.cgroup)
    if source.docker is not None:
        return DockerSampler(source.docker, source.docker_socket, source.timeout_seconds)
    if source.prometheus is not None:
        http = Endpoint(source.prometheus, source.timeout_seconds, bearer_token=source.token())
        return PrometheusSampler(http, source.metrics)
    if source.command:
        return CommandSampler(_command(source.command, broker), source.timeout_seconds)
    if source.embedded is not None:
        return ProcessSampler(embedded_broker(source.embedded))
    address = host_and_port(source.remote or source.listen or "")
    waits = CalledSampler if source.listen else RemoteSampler
    return waits(address, source.token() or "", source.timeout_seconds)


def _command(arguments: Sequence[str], broker: Broker | None) -> list[str]:
    """A program called `rabbitmqctl` is the broker's own: on one machine there may be several."""
    program, *rest = arguments
    if broker is None or program != "rabbitmqctl":
        return [program, *rest]
    from bench_spark import brokers  # brings the client libraries along: only where asked for

    return [*(brokers.rabbitmqctl_of(broker) or [program]), *rest]


def embedded_broker(name: str) -> FindRoots:
    """The broker of that name, also after it was stopped and started again."""
    from bench_spark import brokers  # brings the client libraries along: only where asked for

    def find(processes: Processes) -> list[int]:
        pids = [pid for pid in brokers.status(name).node_pids if pid in processes]
        if not pids:
            raise SourceUnreadable(
                f"no {name} runs here that `bench-spark broker start` has started"
            )
        return pids

    return find


class SilentSampler(ResourceSampler):
    """A source that could not be set up."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def read(self) -> Reading:
        raise SourceUnreadable(self._problem)
