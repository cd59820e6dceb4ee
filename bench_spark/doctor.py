"""Whether this machine and these brokers are ready for a run, and how to mend what is not.

Looks at what bench-spark itself needs, the computer, the store and brokers, side by side and at
none for long. Nothing is fetched, made or changed. A broker is connected to and logged in to, and
no more.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import psutil
from packaging.requirements import Requirement
from rich.text import Text

from bench_spark import brokers, jars, java
from bench_spark.agent.host import SLICE_NS, short_time_slice
from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.loader import load_broker
from bench_spark.config.models import Scenario
from bench_spark.core import kernel_cache, kernels
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    EnvironmentNotReady,
    LoginRefused,
    WrongProtocol,
)
from bench_spark.report import blocks
from bench_spark.report.formats import Report, Sheet
from bench_spark.report.formatting import one_line
from bench_spark.report.page import Charts, Page
from bench_spark.report.terminal import console_for, print_block
from bench_spark.transports.base import TransportContext
from bench_spark.transports.peer import probed
from bench_spark.transports.registry import kind_of
from bench_spark.transports.sockets.listening import listen_at


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """A run works, but something will be slower or less certain than it could be."""
    FAILING = "failing"
    """A run that needs this does not work."""


class Finding(NamedTuple):
    level: Level
    text: str
    """What is so."""
    mend: str = ""
    """What to do about it; empty where all is well."""


ok = partial(Finding, Level.OK)
warning = partial(Finding, Level.WARNING)
failing = partial(Finding, Level.FAILING)

Checks = Mapping[str, Callable[[], Finding]]
"""By name: what is looked at."""


def examine(checks: Checks, timeout_seconds: float) -> dict[str, Finding]:
    """What each check has found, in their order; what takes too long has failed.

    The threads are daemons: one that hangs in a system call does not keep the program from ending.
    """
    found: dict[str, Finding] = {}

    def look(name: str) -> None:
        try:
            found[name] = checks[name]()
        except BenchError as error:
            found[name] = failing(str(error), "see above")
        except Exception as error:  # a check that breaks must not hide what the others found
            text = f"could not be checked: {type(error).__name__}"
            found[name] = failing(text, "this is a bug in bench-spark: report it")

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in checks]
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = failing(
        f"no answer within {timeout_seconds:g} s",
        "try it by hand: something on the way neither answers nor refuses; or give --timeout",
    )
    return {name: found.get(name, silent) for name in checks}


_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILING: "red"}
_MARKS = {Level.OK: "pass", Level.WARNING: "warn", Level.FAILING: "fail"}
_LEVEL_WIDTH = max(map(len, Level))


class FindingsReport(Report):
    """A line per check, and what to do under each that is not well."""

    def __init__(self, findings: Mapping[str, Finding]) -> None:
        self._findings = findings
        self.is_ready = all(one.level is not Level.FAILING for one in findings.values())
        rows = [
            {"check": name, "level": str(level), "text": text, "mend": mend or None}
            for name, (level, text, mend) in findings.items()
        ]
        self._rows = rows
        super().__init__({"ready": self.is_ready, "checks": rows})

    @property
    def sheet(self) -> Sheet:
        return Sheet(("check", "level", "text", "mend"), self._rows, {})

    def page(self) -> Page:
        rows = [
            (blocks.Mark(level, _MARKS[level]), name, text, mend)
            for name, (level, text, mend) in self._findings.items()
        ]
        table = blocks.Table("What was looked at", ["", "check", "", "what to do"], rows, words=4)
        title = "Ready" if self.is_ready else "Not ready"
        return Page(
            blocks.Heading(title), [blocks.PageSection("checks", "Checks", [table])], Charts()
        )

    def write_terminal(self, writer: TextIO) -> None:
        name_width = max(map(len, self._findings), default=0)
        console = console_for(writer)
        for name, finding in self._findings.items():
            level = (f"{finding.level:<{_LEVEL_WIDTH}}", _STYLES[finding.level])
            text = f"  {name:<{name_width}}  {one_line(finding.text)}"
            print_block(console, Text.assemble(level, text))
            if finding.mend:
                writer.write(f"{'':{_LEVEL_WIDTH + name_width + 4}}-> {one_line(finding.mend)}\n")


FEWEST_CORES = 2
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 1_500_000_000, 3_000_000_000
"""A local session's JVM has a heap of up to 2 GB, and agents have some 100 MB each."""
FEW_FILES = 4096
GOOD_CLOCK_SOURCES = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"}
MOST_CLOCK_ERROR_US = 100_000

_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_UNSYNCHRONISED = 0x40  # STA_UNSYNC


def machine_checks() -> Checks:
    return {
        "cores": lambda: cores_finding(len(os.sched_getaffinity(0))),
        "memory": lambda: memory_finding(psutil.virtual_memory().available),
        "open files": lambda: files_finding(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        "clock": lambda: clock_finding(read_clock_state()),
        "clock source": lambda: clock_source_finding(_clock_source()),
        "time slice": _time_slice,
    }


def cores_finding(cores: int) -> Finding:
    if cores < FEWEST_CORES:
        return warning(
            f"{cores} core: Spark and the load compete for it",
            f"use a machine with {FEWEST_CORES} or more, or agents on a cluster (docs/cluster.md)",
        )
    return ok(f"{cores} cores")


def memory_finding(available_bytes: int) -> Finding:
    text = f"{available_bytes / 1e9:.1f} GB available"
    if available_bytes < LEAST_MEMORY_BYTES:
        return failing(text, "end what uses it: Spark here needs some 2 GB")
    if available_bytes < GOOD_MEMORY_BYTES:
        return warning(text, "end what uses it: 3 GB leave room for a broker beside it")
    return ok(text)


def files_finding(hard_limit: int) -> Finding:
    """Processes raise their soft limit as they need; the hard one is the system's."""
    if hard_limit == resource.RLIM_INFINITY:
        return ok("as many as wanted")
    text = f"a process may open up to {hard_limit}"
    if hard_limit < FEW_FILES:
        return warning(
            f"{text}: enough for some {max(0, hard_limit - 200)} connections per agent",
            "raise the hard limit: `nofile` in /etc/security/limits.conf, or LimitNOFILE= of the "
            "service",
        )
    return ok(text)


class ClockState(NamedTuple):
    """What the kernel says of its clock; offsets as NTP keeps them."""

    is_synchronised: bool
    most_error_us: int
    frequency_ppm: float


class _Timex(ctypes.Structure):
    """The head of struct timex; the kernel fills all 208 bytes of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def read_clock_state() -> ClockState | None:
    """None where the system does not report it. Reading needs no privilege."""
    if not sys.platform.startswith("linux"):
        return None
    asked = _Timex(modes=0)
    if ctypes.CDLL(None).adjtimex(ctypes.byref(asked)) < 0:
        return None
    return ClockState(
        is_synchronised=not asked.status & _UNSYNCHRONISED,
        most_error_us=asked.maxerror,
        frequency_ppm=asked.freq / 65536,
    )


def clock_finding(state: ClockState | None) -> Finding:
    mend = "start chrony or systemd-timesyncd; matters where agents run on several machines"
    if state is None:
        return warning("the system does not say whether it is synchronised", mend)
    if not state.is_synchronised:
        return warning("nobody keeps it synchronised (NTP)", mend)
    text = f"synchronised, off by at most {state.most_error_us / 1000:g} ms"
    drift = f"{text}; corrected by {state.frequency_ppm:+.1f} ppm"
    if state.most_error_us > MOST_CLOCK_ERROR_US:
        return warning(drift, "look whether its time server is reachable and near")
    return ok(drift)


def _clock_source() -> str | None:
    try:
        return _CLOCK_SOURCE.read_text().strip()
    except OSError:
        return None


def clock_source_finding(source: str | None) -> Finding:
    if source is None:
        return ok("the system does not name it")
    if source not in GOOD_CLOCK_SOURCES:
        return warning(
            f"{source}: reading it takes long, and every message is stamped",
            "boot with clocksource=tsc if the processor's counter is stable",
        )
    return ok(source)


def _time_slice() -> Finding:
    with short_time_slice() as granted_ns:
        return time_slice_finding(granted_ns)


def time_slice_finding(granted_ns: int | None) -> Finding:
    if granted_ns is None:
        return warning(
            "this kernel does not grant short ones: on a busy machine agents wake up late",
            "use Linux 6.12 or newer, or keep the machine's cores idle beside the load",
        )
    if granted_ns > SLICE_NS:
        return warning(
            f"{granted_ns / 1e6:g} ms granted, {SLICE_NS / 1e6:g} ms asked for",
            "on a busy machine agents wake up late; keep its cores idle beside the load",
        )
    return ok(f"agents are granted {granted_ns / 1e6:g} ms")


LEAST_DISK_BYTES, GOOD_DISK_BYTES = 200_000_000, 5_000_000_000
"""A run writes some 100 kB per agent and second."""

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def place_checks(store: str, references: Sequence[str]) -> Checks:
    brokers_named = {f"broker {name}": partial(_broker, name) for name in references}
    return {"store": lambda: _store(store), **brokers_named}


def _store(store: str) -> Finding:
    if _URI.match(store) and not store.startswith("file://"):
        text = f"{store} is elsewhere; a run proves that every executor sees it"
        if store.startswith("s3"):
            text += f", and needs --packages {jars.delta_set().hadoop_aws}"
        return ok(text)
    path = Path(store.removeprefix("file://")).absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return failing(f"{path} cannot be written", "give --store or BENCH_SPARK_STORE")
    return store_finding(path, shutil.disk_usage(there).free)


def store_finding(path: Path, free_bytes: int) -> Finding:
    text = f"{path}: {free_bytes / 1e9:.1f} GB free"
    mend = "make room, or choose another place with --store or BENCH_SPARK_STORE"
    if free_bytes < LEAST_DISK_BYTES:
        return failing(text, mend)
    return warning(text, mend) if free_bytes < GOOD_DISK_BYTES else ok(text)


def _broker(reference: str) -> Finding:
    try:
        broker = load_broker(reference)
        credentials = resolve_credentials(broker)
        # Kinds whose addresses may be our own consumers'.
        may_listen = kind_of(broker).capabilities(Scenario()).listens
        if may_listen and _can_listen(broker):
            host, port = broker.address()
            where = f"port {port}" if port else "a free port"
            return ok(f"consumers can listen at {where} of {host}, where nobody does yet")
        # What listens there already is a system that producers send to.
        scenario = Scenario(consumers=0) if may_listen else Scenario()
        facts = probed(TransportContext("doctor", scenario, broker, credentials))
    except BenchError as error:
        return failing(str(error), remedy(error, reference))
    host, port = broker.address()
    where = f"at {host}:{port}" if port else "in memory"
    return ok(f"{facts.product} {facts.version} {where} can be used")


def _can_listen(broker: Broker) -> bool:
    try:
        listen_at(*broker.address()).close()
    except BrokerRefused:
        return False
    return True


def remedy(error: BenchError, broker: str) -> str:
    """What to do about a broker, by the name of its file, that cannot be used."""
    if isinstance(error, LoginRefused):
        return "check username, password_env, the vhost and the user's rights (docs/brokers.md)"
    if isinstance(error, WrongProtocol):
        return "mend kind, port, scheme or tls in the broker file"
    if isinstance(error, BrokerUnreachable):
        if "certificate" in str(error):
            return "see tls in the broker file: ca_file, server_name, insecure (docs/brokers.md)"
        if broker in brokers.NAMES:
            return f"to start the one of this machine: bench-spark broker start {broker}"
        return "start it, mend its address in the broker file, or open the way to it (firewall)"
    if isinstance(error, ConfigurationError):
        return "mend the broker file, or set the variable that it names (docs/brokers.md)"
    return "docs/brokers.md says what a broker must allow"


OLDEST_PYTHON = (3, 11)
DISTRIBUTION = "bench-spark"
SETUP = "run `make setup` once with access to the network"


def program_checks() -> Checks:
    return {
        "python": lambda: python_finding(sys.version_info[:3]),
        "packages": _packages,
        "kafka client": _kafka_client,
        "spark": _spark,
        "java": _java,
        **{f"jars {name}": partial(_jars, name) for name in _jar_sets()},
        "class archive": _class_archive,
        "kernels": _kernels,
    }


def python_finding(version: tuple[int, int, int]) -> Finding:
    text = "Python " + ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return failing(text, f"install Python {oldest} or newer")
    return ok(f"{text} ({sys.executable})")


def _packages() -> Finding:
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return warning(
            f"{DISTRIBUTION} is not installed, so nothing says which packages it needs", SETUP
        )
    return packages_finding(required)


def packages_finding(required: Iterable[str]) -> Finding:
    """Whether what is required is installed, in a version of the range that was tried."""
    missing, others = [], []
    for wanted in map(Requirement, required):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(wanted.name)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            others.append(f"{wanted.name} {version}, not {wanted.specifier}")
    if missing:
        return failing(f"missing: {', '.join(missing)}", SETUP)
    if others:
        return warning(f"outside the range that was tried: {'; '.join(others)}", SETUP)
    return ok("all in the ranges that were tried")


def _kafka_client() -> Finding:
    """Messages of Kafka go through librdkafka's C interface, which must be the one we know."""
    try:
        from bench_spark.transports.kafka.librdkafka import client_library, require_interface
    except ImportError as error:
        return failing(f"cannot be imported: {error}", SETUP)
    try:
        require_interface()
    except EnvironmentNotReady as error:
        return failing(str(error), SETUP)
    return ok(f"{client_library()}, with the C interface that runs use")


def _spark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
        return ok(f"Spark {version}, which {jars.delta_set(version).title} fits")
    except importlib.metadata.PackageNotFoundError:
        return failing("pyspark is not installed", SETUP)
    except EnvironmentNotReady as error:
        return failing(str(error), "pip install 'pyspark==4.2.*'")


def _java() -> Finding:
    try:
        command = java.require_java()
    except EnvironmentNotReady as error:
        return failing(str(error), java.HOW_TO_INSTALL)
    version = java.java_version_text(command).splitlines()[:1]
    return ok(f"{version[0] if version else 'Java'} ({command})")


def _jar_sets() -> list[str]:
    try:
        return jars.everyday_sets()
    except (EnvironmentNotReady, importlib.metadata.PackageNotFoundError):
        return []  # the check of Spark says why


def _jars(name: str) -> Finding:
    """Spark's are needed by every run, those of the brokers only to start them here."""
    title = jars.known_sets()[name].title
    try:
        found = jars.jar_set(name, fetch=False)
    except EnvironmentNotReady as error:
        if jars.known_sets()[name].spark:
            return failing(str(error), SETUP)
        return warning(str(error), f"{SETUP}; only `bench-spark broker start` needs them")
    return ok(f"{title}: {len(found)} files")


def _class_archive() -> Finding:
    try:
        jars.jar_set(jars.delta_set().name, fetch=False)  # its path is part of the archive's name
        archive = jars.class_data_archive()
    except EnvironmentNotReady:
        return warning("cannot be there without Java and the jars", "see java and jars")
    if archive is None:
        return warning(
            "there is none: Spark starts some seconds later than it could",
            "run `make setup`, or `python -m bench_spark.spark.class_archive`",
        )
    return ok(str(archive))


def _kernels() -> Finding:
    return kernels_finding(
        kernels.are_compiled(), kernel_cache.compiled_count(), str(kernels.kernels_directory())
    )


def kernels_finding(are_compiled: bool, files: int, directory: str) -> Finding:
    """Whether the agents' inner loops are compiled, and where the files are."""
    if not are_compiled:
        return warning(
            "not compiled: NUMBA_DISABLE_JIT is set, so agents are some hundred times slower",
            "unset NUMBA_DISABLE_JIT",
        )
    if not files:
        return warning(
            f"none are compiled in {directory}: the first agents compile them, which takes seconds",
            "run `make setup`, or `python -m bench_spark.core.kernel_cache`",
        )
    return ok(f"{files} compiled ({directory})")
