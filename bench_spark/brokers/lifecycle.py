"""Starting, stopping and finding the embedded brokers, and the tools that come with them.

All that a broker has is in one private directory, `<state>/<name>/`: its files, its log, and
state.json with its ports and processes. The directory is there while the broker runs and gone after
a stop; it is also the lock, so two commands at once do not start two brokers.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_spark.brokers.base import (
    HOST,
    POLL_SECONDS,
    BrokerStatus,
    Clusterable,
    Command,
    Recipe,
    Say,
    StartedProcess,
    end,
    free_ports,
    is_free,
    last_lines,
    spawn,
)
from bench_spark.brokers.kafka import KafkaRecipe
from bench_spark.brokers.mosquitto import MosquittoRecipe
from bench_spark.brokers.qpid import QpidRecipe
from bench_spark.brokers.rabbitmq import RabbitMQRecipe
from bench_spark.cache import cache_directory
from bench_spark.config.broker import Broker, ResourceSource
from bench_spark.errors import ConfigurationError, EnvironmentNotReady

START_SECONDS = 90.0
"""A JVM or an Erlang node on a busy small machine; the usual time is under ten seconds."""
STOP_SECONDS = 10.0
MOST_NODES = 9

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (KafkaRecipe(), QpidRecipe(), RabbitMQRecipe(), MosquittoRecipe())
}
NAMES = tuple(RECIPES)


@dataclass(frozen=True)
class State:
    """What state.json holds."""

    ports: Mapping[str, int]
    processes: tuple[StartedProcess, ...]
    """In the order they were started; the last is the broker, or its last node."""
    nodes: int = 1

    @property
    def is_running(self) -> bool:
        return bool(self.processes) and self.processes[-1].is_alive


def start(
    name: str,
    say: Say | None = None,
    *,
    port: int | None = None,
    state: Path | None = None,
    nodes: int | None = None,
) -> BrokerStatus:
    """Start a broker and return when clients can use it; one that runs already is left alone.

    `nodes` is how many of them form a cluster on this machine; one by default.
    `port` wins over $BENCH_SPARK_PORT_<NAME>, which wins over the port in the shipped broker file.
    `state` is the directory that holds the brokers' directories.
    """
    asked_nodes = 1 if nodes is None else nodes
    recipe, say = _recipe(name, asked_nodes), say or _silent
    directory = _state_directory(state) / name
    with _locked(directory):
        known = _read_state(directory)
        if known and known.is_running:
            return _already_running(recipe, directory, known, port, nodes, say)
        _end_and_clear(directory, known)
        try:
            ports = _choose_ports(recipe, port or _configured_port(recipe))
            say(f"starting {name} at {HOST}:{_client_port(ports)}")
            _launch(recipe, directory, ports, asked_nodes, say)
        except BaseException:
            _end_and_clear(directory, _read_state(directory))
            directory.rmdir()
            raise
        return _status(recipe, directory)


def stop(name: str, *, state: Path | None = None) -> BrokerStatus:
    """End a broker and all it started, and remove its directory. Stopping twice is no error."""
    recipe = _recipe(name)
    directory = _state_directory(state) / name
    if directory.exists():
        with _locked(directory):
            _end_and_clear(directory, _read_state(directory))
            directory.rmdir()
    return _status(recipe, directory)


def status(name: str, *, state: Path | None = None) -> BrokerStatus:
    return _status(_recipe(name), _state_directory(state) / name)


@contextmanager
def embedded(
    *names: str, say: Say | None = None, nodes: int | None = None
) -> Iterator[Mapping[str, BrokerStatus]]:
    """Brokers for the length of a `with`, side by side, on free ports, in a directory of their own.

    They never meet the ones that `start` keeps for the user.
    """
    root = Path(tempfile.mkdtemp(prefix="bench-spark-brokers-"))
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with _guarded(root):
        try:
            with ThreadPoolExecutor(max(1, len(names))) as pool:
                started = {
                    name: pool.submit(start, name, say, port=ports[name], state=root, nodes=nodes)
                    for name in names
                }
            yield {name: broker.result() for name, broker in started.items()}
        finally:
            stop_all(root)


def stop_all(state: Path) -> None:
    """Stop whatever runs below a directory, and remove it."""
    for name in NAMES:
        stop(name, state=state)
    if state.exists():
        shutil.rmtree(state)


GUARD = """
import sys
if not sys.stdin.buffer.read():
    from pathlib import Path
    from bench_spark.brokers.lifecycle import stop_all
    stop_all(Path(sys.argv[1]))
"""


@contextmanager
def _guarded(root: Path) -> Iterator[None]:
    """A process that stops the brokers below `root` if this one is killed before it can.

    It reads from a pipe. A word on it means that all is well; its mere end, that we are no more.
    """
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, str(root)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate(b"well")


def _recipe(name: str, nodes: int = 1) -> Recipe:
    if name not in RECIPES:
        raise ConfigurationError(f"unknown broker {name}; known are {', '.join(NAMES)}")
    recipe = RECIPES[name]
    if nodes == 1:
        return recipe
    if not isinstance(recipe, Clusterable):
        able = [other for other, one in RECIPES.items() if isinstance(one, Clusterable)]
        raise ConfigurationError(
            f"nodes: {name} is started as one node only; several nodes: "
            + (", ".join(able) or "none of the brokers")
        )
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigurationError(f"nodes: {nodes} is not allowed; allowed: 1 to {MOST_NODES}")
    return recipe.with_nodes(nodes)


def _state_directory(given: Path | None) -> Path:
    if given:
        return given.absolute()
    if own := os.environ.get("BENCH_SPARK_STATE"):
        return Path(own).expanduser().absolute()
    return cache_directory() / "brokers"


def _configured_port(recipe: Recipe) -> int:
    variable = f"BENCH_SPARK_PORT_{recipe.name.upper()}"
    text = os.environ.get(variable)
    if text is None:
        return _client_port(recipe.ports)
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ConfigurationError(f"{variable} must be a port number, not {text!r}")
    return int(text)


def _choose_ports(recipe: Recipe, client_port: int) -> dict[str, int]:
    """The recipe's ports, or, next to a client port of one's own choice, free ones."""
    wanted = dict(recipe.ports)
    if client_port != _client_port(recipe.ports):
        wanted = dict.fromkeys(wanted, 0) | {next(iter(wanted)): client_port}
    for port in filter(None, wanted.values()):
        if not is_free(port):
            raise EnvironmentNotReady(
                f"{recipe.name} cannot start: {HOST}:{port} is in use by another program; end that "
                f"one or set BENCH_SPARK_PORT_{recipe.name.upper()} to a free port"
            )
    missing = [purpose for purpose, port in wanted.items() if port == 0]
    return wanted | dict(zip(missing, free_ports(len(missing)), strict=True))


def _client_port(ports: Mapping[str, int]) -> int:
    return next(iter(ports.values()))


def _already_running(
    recipe: Recipe, directory: Path, known: State, port: int | None, nodes: int | None, say: Say
) -> BrokerStatus:
    running = _client_port(known.ports)
    if nodes not in (None, known.nodes):
        raise EnvironmentNotReady(
            f"{recipe.name} runs already, with {known.nodes} node{'s' * (known.nodes > 1)}; "
            f"stop it before starting it with {nodes}"
        )
    if port not in (None, running):
        raise EnvironmentNotReady(
            f"{recipe.name} runs at {HOST}:{running} already; stop it before starting it at {port}"
        )
    say(f"{recipe.name} runs already")
    return _status(recipe, directory)


def _launch(
    recipe: Recipe, directory: Path, ports: Mapping[str, int], nodes: int, say: Say
) -> None:
    log = directory / "log"
    processes: list[StartedProcess] = []
    for command in recipe.prepare(directory, ports, say):
        processes.append(_spawn(recipe, command, directory, log))
        # After each one: whatever happens next, a later stop finds what was started.
        _write_state(directory, State(ports, tuple(processes), nodes))
        if command.is_ready is not None:
            _wait_until(command.is_ready, recipe, ports, processes[-1], log)
    _wait_until(lambda: recipe.answers(ports), recipe, ports, processes[-1], log)


def _spawn(recipe: Recipe, command: Command, directory: Path, log: Path) -> StartedProcess:
    try:
        return spawn(command, directory, log)
    except OSError as error:
        raise EnvironmentNotReady(
            f"{recipe.name} cannot start: {command.arguments[0]}: {error.strerror}"
        ) from error


def _wait_until(
    answers: Callable[[], bool],
    recipe: Recipe,
    ports: Mapping[str, int],
    process: StartedProcess,
    log: Path,
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if not process.is_alive:
            raise EnvironmentNotReady(
                f"{recipe.name} ended while it started; its last words:\n{last_lines(log)}"
            )
        if time.monotonic() > deadline:
            raise EnvironmentNotReady(
                f"{recipe.name} did not answer at {HOST}:{_client_port(ports)} within "
                f"{START_SECONDS:.0f} s; its last words:\n{last_lines(log)}"
            )
        time.sleep(POLL_SECONDS)


def _end_and_clear(directory: Path, known: State | None) -> None:
    """End what is left of a broker, the broker first, and empty its directory."""
    for process in reversed(known.processes if known else ()):
        end(process, STOP_SECONDS)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make the directory and hold it; whoever held it before may have removed it meanwhile."""
    while True:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # removed between the two calls
        except OSError as error:
            raise EnvironmentNotReady(
                f"cannot keep a broker in {directory}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same(descriptor, directory):
                yield
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False


def _read_state(directory: Path) -> State | None:
    try:
        stored = json.loads((directory / "state.json").read_text())
    except FileNotFoundError:
        return None
    return State(
        ports=stored["ports"],
        processes=tuple(StartedProcess(**process) for process in stored["processes"]),
        nodes=stored.get("nodes", 1),
    )


def _write_state(directory: Path, state: State) -> None:
    fresh = directory / "state.json.new"
    fresh.write_text(json.dumps(asdict(state)))
    fresh.rename(directory / "state.json")


def _status(recipe: Recipe, directory: Path) -> BrokerStatus:
    known = _read_state(directory)
    running = known if known and known.is_running else None
    ports = running.ports if running else dict(recipe.ports)
    if not running:
        ports = {**ports, next(iter(ports)): _configured_port(recipe)}
    # What nodes share, such as a port mapper, is started before them.
    nodes = running.processes[-running.nodes :] if running else ()
    node_pids = tuple(process.pid for process in nodes)
    return BrokerStatus(
        name=recipe.name,
        state="running" if running else "stopped",
        port=_client_port(ports),
        ports=ports,
        pid=node_pids[-1] if node_pids else None,
        directory=directory,
        broker=Broker(
            name=recipe.name,
            resources=[ResourceSource(pid=pid) for pid in node_pids],
            **recipe.address(ports, directory),
        ),
        nodes=running.nodes if running else 1,
        node_pids=node_pids,
    )


def _silent(_: str) -> None:
    pass


RABBITMQCTL, RABBITMQ_PLUGINS = "rabbitmqctl", "rabbitmq-plugins"


def rabbitmqctl_of(broker: Broker) -> list[str] | None:
    """The command that the broker file names, else that of the broker which runs embedded; None
    where neither knows one."""
    if broker.rabbitmqctl:
        return list(broker.rabbitmqctl)
    for source in broker.resources:
        if source.embedded is not None and (found := status(source.embedded).broker.rabbitmqctl):
            return list(found)
    return None


def tools_environment(broker: Broker) -> dict[str, str]:
    """Variables that name the tools, quoted for a shell; none where the broker has none."""
    command = rabbitmqctl_of(broker)
    if command is None:
        return {}
    named = {"RABBITMQCTL": shlex.join(command)}
    if plugins := _beside(command):
        named["RABBITMQ_PLUGINS"] = shlex.join(plugins)
    return named


def _beside(command: Sequence[str]) -> list[str] | None:
    """The same command for rabbitmq-plugins, which is installed beside rabbitmqctl."""
    if not command[-1].endswith(RABBITMQCTL):
        return None
    return [*command[:-1], command[-1].removesuffix(RABBITMQCTL) + RABBITMQ_PLUGINS]
