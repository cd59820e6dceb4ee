"""What an embedded broker is: how to start one program, and how to know that it answers."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from bench_spark.brokers.process import Command
from bench_spark.errors import EnvironmentNotReady
from bench_spark.scenario.broker import Broker

HOST = "127.0.0.1"
USER = "guest"
PASSWORD = "guest"  # noqa: S105 - loopback only, and documented
ANSWER_TIMEOUT_SECONDS = 2.0
FIRST_PORT = 22_000
"""Above the ports of the shipped broker files."""
EPHEMERAL_BY_CUSTOM = 32_768


Say = Callable[[str], None]
"""Takes a line about progress, for people."""


class Recipe(Protocol):
    """One kind of broker. Knows nothing of process ids, locks or waiting."""

    @property
    def name(self) -> str: ...

    @property
    def ports(self) -> Mapping[str, int]:
        """Port by purpose, the clients' one first; 0 where any free one will do."""

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        """Write its files; the programs to start, the broker itself last.

        Raises EnvironmentNotReady if the broker is not installed.
        """

    def answers(self, ports: Mapping[str, int]) -> bool:
        """Whether a client could work now: asked in the broker's own protocol, with a login."""

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        """The fields of a broker file that points here."""


@runtime_checkable
class Clusterable(Protocol):
    """A kind of broker that can run as several nodes on this machine."""

    def with_nodes(self, nodes: int) -> Recipe:
        """The recipe for so many; its ports are those of one node, the first, and more."""


@dataclass(frozen=True)
class BrokerStatus:
    name: str
    state: Literal["running", "stopped"]
    port: int
    """Where clients connect, or would if it ran."""
    ports: Mapping[str, int]
    pid: int | None
    directory: Path
    broker: Broker
    """What a broker file for it says."""
    host: str = HOST
    nodes: int = 1
    node_pids: tuple[int, ...] = ()
    """Of a running broker: the server process of each node, `pid` the last of them."""

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def line(self) -> str:
        return f"{self.name} {self.state} {self.host}:{self.port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different.

    Taken by chance from those that the system gives to no connection of its own accord: between
    the question and the server's start any other might be gone, most of all on a machine with
    thousands of connections or several tests at once.
    """
    ports = range(FIRST_PORT, _first_ephemeral_port())
    candidates = random.sample(ports, k=len(ports))
    found = list(itertools.islice(filter(is_free, candidates), count))
    if len(found) < count:
        raise EnvironmentNotReady(f"no {count} free ports from {FIRST_PORT} on at {HOST}")
    return found


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return EPHEMERAL_BY_CUSTOM  # not Linux
    # A system that gives away nearly all ports leaves no better choice than any.
    return first if first > FIRST_PORT + 5_000 else EPHEMERAL_BY_CUSTOM


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def exchange(port: int, request: bytes, reply_starts_with: bytes) -> bool:
    """Whether whoever listens on the port answers `request` like a server of that protocol."""
    try:
        with socket.create_connection((HOST, port), ANSWER_TIMEOUT_SECONDS) as connection:
            connection.sendall(request)
            reply = b""
            while len(reply) < len(reply_starts_with):
                if not (received := connection.recv(64)):
                    return False
                reply += received
            return reply.startswith(reply_starts_with)
    except OSError:
        return False
