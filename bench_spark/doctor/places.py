"""Where results go, and the brokers that were named."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench_spark import brokers
from bench_spark.doctor.examining import Check
from bench_spark.doctor.finding import Finding, failing, ok, warning
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
    WrongProtocol,
)
from bench_spark.scenario.broker import Broker, resolve_credentials
from bench_spark.scenario.loader import load_broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import TransportContext
from bench_spark.transports.peer import probed
from bench_spark.transports.sockets.listening import listen_at

LEAST_DISK_BYTES, GOOD_DISK_BYTES = 200_000_000, 5_000_000_000
"""A run writes some 100 kB per agent and second."""

_MAY_LISTEN = ("http", "tcp")
"""Kinds whose addresses may be our own consumers'."""
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def place_checks(store: str, references: Sequence[str]) -> list[Check]:
    return [
        Check("store", lambda: _store(store)),
        *(
            Check(f"broker {reference}", lambda reference=reference: _broker(reference))  # type: ignore[misc]
            for reference in references
        ),
    ]


def _store(store: str) -> Finding:
    if _URI.match(store) and not store.startswith("file://"):
        return ok("store", f"{store} is elsewhere; a run proves that every executor sees it")
    path = Path(store.removeprefix("file://")).absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return failing("store", f"{path} cannot be written", "give --store or BENCH_SPARK_STORE")
    return store_finding(path, shutil.disk_usage(there).free)


def store_finding(path: Path, free_bytes: int) -> Finding:
    text = f"{path}: {free_bytes / 1e9:.1f} GB free"
    mend = "make room, or choose another place with --store or BENCH_SPARK_STORE"
    if free_bytes < LEAST_DISK_BYTES:
        return failing("store", text, mend)
    return warning("store", text, mend) if free_bytes < GOOD_DISK_BYTES else ok("store", text)


def _broker(reference: str) -> Finding:
    check = f"broker {reference}"
    try:
        broker = load_broker(reference)
        credentials = resolve_credentials(broker)
        if broker.kind in _MAY_LISTEN and _can_listen(broker):
            host, port = broker.address()
            where = f"port {port}" if port else "a free port"
            return ok(check, f"consumers can listen at {where} of {host}, where nobody does yet")
        # Whoever is there already is a system that producers send to.
        scenario = Scenario(consumers=0) if broker.kind in _MAY_LISTEN else Scenario()
        facts = probed(TransportContext("doctor", scenario, broker, credentials))
    except BenchError as error:
        return failing(check, str(error), remedy(error, reference))
    host, port = broker.address()
    where = f"at {host}:{port}" if port else "in memory"
    return ok(check, f"{facts.product} {facts.version} {where} lets us in")


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
