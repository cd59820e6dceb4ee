"""What all tests share: one broker of each kind and one Spark session, started when first needed.

Brokers that the collected tests ask for start side by side, so the session waits for the slowest
only. Where several processes share the tests (`make test`), a broker starts when the first test
asks for it. They share those in Java, whose start takes most; names of queues and topics keep tests
apart. Of the others each process has its own, so that a test that stops, limits or counts something
disturbs no other. What needs Spark is done by two of them. A broker that is not installed
(RabbitMQ, Mosquitto) skips its tests and says why.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from restartable import kill

from bench_spark import brokers
from bench_spark.brokers import BrokerStatus, base, lifecycle
from bench_spark.brokers.mosquitto import installed_program
from bench_spark.brokers.rabbitmq import installed_programs
from bench_spark.config.broker import Broker
from bench_spark.errors import EnvironmentNotReady
from bench_spark.store.delta import Store

pytest_plugins = ["fault_records"]

KINDS = ("rabbitmq", "qpid", "kafka")
CONNECT_SECONDS = 60.0
"""For which a broker is waited for: on a busy machine the usual five seconds are too few."""
_INSTALLED = {"rabbitmq": installed_programs, "mosquitto": installed_program}
"""Brokers of packages, and how to know whether they are there."""

# Several processes take one file after the other: what takes longest goes first, what is left at
# the end is quick.
LONGEST_FIRST = (
    "tests/cli/test_runs_on_real_brokers.py",
    "tests/cli/test_reports_of_runs.py",
    "tests/cluster",
    "tests/brokers/test_transport_contract.py",
    "tests/brokers/test_embedded_brokers.py",
    "tests/brokers/test_kafka_outage.py",
    "tests/brokers/test_one_end.py",
    "tests/brokers/test_many_lanes.py",
    "tests/brokers/test_mqtt",
    "tests/brokers/test_reconnection",
    "tests/cli/test_run_ids.py",
    "tests/faults/test_fuzzing.py",
)
QUICK = "tests/unit"

# Starting Spark and warming it up takes longer than most of these files: two processes take them,
# so that there are two sessions. The first has what needs brokers, too, so that the second starts
# none for them.
ON_ONE_SESSION = (
    (
        "tests/cli/test_runs_on_real_brokers.py",
        "tests/cli/test_bridge.py",
        "tests/cli/test_search_command.py",
        "tests/cli/test_search_rate_command.py",
        "tests/cli/test_suites.py",
        "tests/faults/test_broker_faults.py",
        "tests/faults/test_executor_faults.py",
        "tests/faults/test_store_faults.py",
        "tests/faults/test_verdicts.py",
    ),
    (
        "tests/cli/test_reports_of_runs.py",
        "tests/cli/test_documentation.py",
        "tests/cli/test_dashboard_in_a_browser.py",
        "tests/cli/test_traced_run.py",
        "tests/faults/test_clock_steps.py",
        "tests/faults/test_dead_threads.py",
        "tests/spark/",
    ),
)

# Packing an environment takes a minute.
WITH_ONE_ARCHIVE = (
    "tests/cluster/test_packed_environment.py",
    "tests/cluster/test_readme_command.py",
)

SHARED_OUT = "PYTEST_XDIST_WORKER" in os.environ

SHARED_BROKERS = ("qpid", "kafka")
SHARED_STATE = "BENCH_SPARK_SHARED_BROKERS"
"""The environment variable with their directory."""

_wanted = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if not SHARED_OUT and getattr(config.option, "numprocesses", None):
        stack = ExitStack()
        stack.enter_context(state_of_shared_brokers())
        config.add_cleanup(stack.close)
    # A shell ignores Ctrl-C for what it starts in the background, and programs that tests start and
    # interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def state_of_shared_brokers() -> Iterator[None]:
    """A directory for brokers that several processes share; those in it end with the session, even
    if it is killed."""
    state = Path(tempfile.mkdtemp(prefix="bench-spark-brokers-"))
    os.environ[SHARED_STATE] = str(state)
    with lifecycle._guarded(state):
        try:
            yield
        finally:
            for name in SHARED_BROKERS:
                kill(brokers.status(name, state=state))
            lifecycle.stop_all(state)


def shared_broker(name: str) -> BrokerStatus:
    """Started by the process that asks first; the others wait for it."""
    state = Path(os.environ[SHARED_STATE])
    try:
        return brokers.start(name, port=base.free_ports(1)[0], state=state)
    except EnvironmentNotReady:
        started = brokers.status(name, state=state)
        if started.is_running:
            return started
        raise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SHARED_OUT:
        items.sort(key=_place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A file that is forgotten in the list would start one more session, and that takes long."""
    if "spark" not in _asked_for(item) or item.get_closest_marker("faults_slow"):
        return
    listed = tuple(start for files in ON_ONE_SESSION for start in files)
    if not item.nodeid.startswith(listed):
        pytest.fail(f"{item.nodeid} asks for Spark: name its file in ON_ONE_SESSION")


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(QUICK):
        return len(LONGEST_FIRST) + 1
    places = (n for n, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start))
    return next(places, len(LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class FilesAndSessions(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = (*ON_ONE_SESSION, WITH_ONE_ARCHIVE)
            firsts = (files[0] for files in together if nodeid.startswith(files))
            return next(firsts, super()._split_scope(nodeid))

    return FilesAndSessions(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    asked = {name for item in session.items for name in _asked_for(item)}
    session.config.stash[_wanted] = [
        kind for kind in KINDS if asked & {kind, f"{kind}_broker", "amqp_broker", "each_broker"}
    ]


def _asked_for(item: pytest.Item) -> Iterator[str]:
    """Fixtures of a test by name, and those it names in a parameter."""
    yield from getattr(item, "fixturenames", ())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    yield from (value for value in parameters.values() if isinstance(value, str))


class RunningBrokers:
    """Brokers by name; one that could not be started raises its reason when asked for."""

    def __init__(self, names: list[str]) -> None:
        self._stack = ExitStack()
        self._missing: dict[str, str] = {}
        for name, find in _INSTALLED.items():
            try:
                find()
            except EnvironmentNotReady as error:
                self._missing[name] = str(error)
        installed = [name for name in names if name not in self._missing]
        self._running = dict(self._stack.enter_context(brokers.embedded(*installed)))

    def __getitem__(self, name: str) -> BrokerStatus:
        if name in self._missing:
            pytest.skip(self._missing[name])
        if name not in self._running and SHARED_OUT and name in SHARED_BROKERS:
            return shared_broker(name)
        if name not in self._running:
            self._running |= self._stack.enter_context(brokers.embedded(name))
        return self._running[name]

    def patient(self, name: str) -> Broker:
        """The broker, waited for as long as a busy machine may need to take a connection."""
        return self[name].broker.model_copy(update={"connect_timeout_seconds": CONNECT_SECONDS})

    def close(self) -> None:
        for status in self._running.values():
            kill(status)
        self._stack.close()


@pytest.fixture(scope="session", autouse=True)
def thrifty_brokers() -> Iterator[None]:
    """Brokers in Java do without its optimising compiler: those of tests do not live long enough to
    gain from it, and it takes as much of the two cores as all the rest of them."""
    usual = base._environment

    def thrifty(command: base.Command, directory: Path) -> dict[str, str]:
        options = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        return options | usual(command, directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_environment", thrifty)
        yield


@pytest.fixture(scope="session")
def running_brokers(request: pytest.FixtureRequest) -> Iterator[RunningBrokers]:
    running = RunningBrokers([] if SHARED_OUT else request.config.stash[_wanted])
    yield running
    running.close()


@pytest.fixture(scope="session")
def rabbitmq(running_brokers: RunningBrokers) -> BrokerStatus:
    return running_brokers["rabbitmq"]


@pytest.fixture(scope="session")
def rabbitmq_broker(running_brokers: RunningBrokers) -> Broker:
    return running_brokers.patient("rabbitmq")


@pytest.fixture(scope="session")
def qpid_broker(running_brokers: RunningBrokers) -> Broker:
    return running_brokers.patient("qpid")


@pytest.fixture(scope="session")
def kafka_broker(running_brokers: RunningBrokers) -> Broker:
    return running_brokers.patient("kafka")


@pytest.fixture(scope="session")
def mosquitto(running_brokers: RunningBrokers) -> BrokerStatus:
    return running_brokers["mosquitto"]


@pytest.fixture(scope="session")
def mosquitto_broker(running_brokers: RunningBrokers) -> Broker:
    return running_brokers.patient("mosquitto")


@pytest.fixture(scope="session")
def rabbitmq_mqtt_broker(rabbitmq: BrokerStatus) -> Broker:
    """The same node as `rabbitmq`, by its MQTT plugin."""
    uri = f"mqtt://guest:guest@{rabbitmq.host}:{rabbitmq.ports['mqtt']}"
    return Broker(
        name="rabbitmq-mqtt", kind="mqtt", uri=uri, connect_timeout_seconds=CONNECT_SECONDS
    )


@pytest.fixture(scope="session")
def loopback_broker() -> Broker:
    return Broker(name="loopback", kind="loopback")


@pytest.fixture(scope="session", params=(*KINDS, "mosquitto"))
def each_broker(request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(f"{request.param}_broker")
    return broker


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of the test session; commands run in-process find and reuse it."""
    from bench_spark.spark.session import build_session, local_session_master

    session = build_session(local_session_master(agents=3), "bench-spark tests")
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()
