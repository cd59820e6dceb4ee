"""What an embedded broker is: how to start one program, and how to know that it answers.

Processes that outlive the command that started them: begin, recognise, end. A process id alone
proves nothing, since the kernel hands it out again; together with the time the process began it is
unique. Both are written down, so that a later command never signals a stranger. Linux only (/proc),
as the agents are.

Nodes of a cluster that an embedded broker is started as: their ports and directories. Pure. The
first node's ports are named by their purpose alone, and its files are the broker's own: a single
node is a cluster of one.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar, runtime_checkable

import pika
import psutil
from pika.exceptions import AMQPError

from bench_spark.config.broker import Broker
from bench_spark.errors import EnvironmentNotReady
from bench_spark.java import require_java
from bench_spark.process import MOST_FOR_A_BROKER, raise_limit

POLL_SECONDS = 0.05

NodeT = TypeVar("NodeT")


@dataclass(frozen=True)
class Command:
    """A program to start."""

    arguments: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to PATH, LANG and HOME, which are all that it inherits: no secret of the user's shell,
    and no variable that changes how a JVM or an Erlang node starts."""
    is_ready: Callable[[], bool] | None = None
    """What must hold before the next program is started."""


@dataclass(frozen=True)
class StartedProcess:
    pid: int
    birth_ticks: int
    """When it began, in clock ticks since the machine did."""

    @property
    def is_alive(self) -> bool:
        if child := _children.get(self.pid):
            child.poll()
        return _birth_ticks(self.pid) == self.birth_ticks


# Children of this very interpreter have to be waited for, or they stay as zombies when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


def run_to_end(command: Command, directory: Path, log: Path) -> int:
    """For a preparing step; returns its exit code."""
    with log.open("ab") as output:
        return subprocess.run(**_call(command, directory, output), check=False).returncode


def spawn(command: Command, directory: Path, log: Path) -> StartedProcess:
    """Start it in a session of its own: neither Ctrl-C nor the end of this command reaches it.

    It may open as many files as the system allows it, within reason: a broker refuses connections
    beyond that, or leaves them waiting.
    """
    raise_limit(MOST_FOR_A_BROKER)
    with log.open("ab") as output:
        child = subprocess.Popen(**_call(command, directory, output), start_new_session=True)
    _children[child.pid] = child
    # Unreaped until somebody polls it, so it has an entry in /proc even if it ended at once.
    return StartedProcess(child.pid, _birth_ticks(child.pid, even_if_ended=True) or 0)


def end(process: StartedProcess, patience_seconds: float) -> None:
    """Ask it to end, insist if it does not, and return when it and all it started are gone."""
    if not process.is_alive:
        _reap(process)
        return
    descendants = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    if not _ended_within(process, patience_seconds):
        os.kill(process.pid, signal.SIGKILL)
        _ended_within(process, patience_seconds)
    # Helpers of a program usually end with it; psutil knows a process id that was handed out again.
    _, left = psutil.wait_procs(descendants, timeout=1)
    for helper in left:
        helper.kill()
    psutil.wait_procs(left, timeout=patience_seconds)
    _reap(process)


def last_lines(log: Path, count: int = 12) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-count:])
    except FileNotFoundError:
        return ""


def _call(command: Command, directory: Path, output: IO[bytes]) -> dict[str, Any]:
    """How a program is called, as subprocess takes it."""
    return {
        "args": list(command.arguments),
        "env": _environment(command, directory),
        "cwd": directory,
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": subprocess.STDOUT,
    }


def _environment(command: Command, directory: Path) -> dict[str, str]:
    inherited = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    return inherited | {"HOME": str(directory)} | dict(command.environment)


def _ended_within(process: StartedProcess, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reap(process: StartedProcess) -> None:
    if child := _children.pop(process.pid, None):
        child.wait()


def _birth_ticks(pid: int, even_if_ended: bool = False) -> int | None:
    """From /proc/PID/stat; None if there is no such process or (a zombie) it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the program's name, may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    state, threads, birth_ticks = fields[0], int(fields[17]), int(fields[19])
    # A killed JVM's first thread is a zombie while the others still hold its ports.
    has_ended = state in "ZX" and threads <= 1
    return None if has_ended and not even_if_ended else birth_ticks


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

    @property
    def line_with_ports(self) -> str:
        """The line, and every port by its purpose; without those that are chosen at the start."""
        named = ", ".join(f"{purpose} {port}" for purpose, port in self.ports.items() if port)
        return f"{self.line} ({named})"


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different.

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
    """Whether the server on the port answers `request` in that protocol."""
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


def ports_of_nodes(first: Mapping[str, int], nodes: int) -> dict[str, int]:
    """Ports of all nodes by name; those of further nodes are free ones (0)."""
    further = {f"{purpose}-{node}": 0 for node in range(2, nodes + 1) for purpose in first}
    return {**first, **further}


def nodes_at(
    make: Callable[[int, Mapping[str, int]], NodeT],
    count: int,
    purposes: Iterable[str],
    ports: Mapping[str, int],
) -> list[NodeT]:
    """The nodes, each made of its number and its ports by their purpose."""
    first = {purpose: ports[purpose] for purpose in purposes}
    return [
        make(node, {name: ports[f"{name}-{node}"] for name in first} if node > 1 else first)
        for node in range(1, count + 1)
    ]


def directory_of_node(node: int, directory: Path) -> Path:
    """Where its files are; made if it is not there."""
    own = directory if node == 1 else directory / f"node-{node}"
    own.mkdir(exist_ok=True)
    return own


def java_command(jars: Iterable[Path], directory: Path, options: Iterable[str]) -> list[str | Path]:
    """`java` with its class path; everything it may write stays in `directory`."""
    class_path = ":".join(str(jar) for jar in jars)
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    return [
        require_java(),
        "-XX:-UsePerfData",  # else a file in the system's temporary directory
        f"-XX:ErrorFile={directory}/crash.log",
        "-XX:+ExitOnOutOfMemoryError",  # a broker that limps on would spoil a measurement
        f"-Djava.io.tmpdir={scratch}",
        *options,
        "-cp",
        class_path,
    ]


PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME_ON_CHANNEL_0 = b"\x01\x00\x00"


# Loggers are shared by all threads: brokers that start side by side take turns to quieten pika's.
_one_at_a_time = threading.Lock()


def accepts_login(port: int) -> bool:
    if not exchange(port, PROTOCOL_HEADER, METHOD_FRAME_ON_CHANNEL_0):
        return False
    parameters = pika.ConnectionParameters(
        host=HOST,
        port=port,
        credentials=pika.PlainCredentials(USER, PASSWORD),
        socket_timeout=ANSWER_TIMEOUT_SECONDS,
        stack_timeout=2 * ANSWER_TIMEOUT_SECONDS,
    )
    try:
        with _one_at_a_time, _quiet("pika"):
            pika.BlockingConnection(parameters).close()
    except (AMQPError, OSError):
        return False
    return True


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """pika logs each failed attempt as an error; here a failure only means: not yet."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
