"""Whether RabbitMQ holds this run's producers back, by its management API.

A connection or channel is in flow when credit has run out somewhere behind it, and blocked when an
alarm (memory, disk) stops publishers. RabbitMQ brings its statistics up to date every five seconds
(`collect_statistics_interval`), so a poll a second sees each state several times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from bench_spark.config.broker import Broker, Credentials
from bench_spark.monitor.endpoint import Endpoint
from bench_spark.monitor.reading import Reading, Unreadable

PERMANENT_SHARE = 0.95

FlowState = Literal["never", "intermittent", "permanent", "unknown"]

_CONNECTIONS = "/api/connections?columns=name,state,user_provided_name"
_CHANNELS = "/api/channels?columns=state,connection_details.name"
_BLOCKED = ("blocked", "blocking")


def flow_state(share: float | None) -> FlowState:
    """`share`: of the polls that saw connections of the run; None if none did."""
    if share is None:
        return "unknown"
    if share == 0:
        return "never"
    return "permanent" if share >= PERMANENT_SHARE else "intermittent"


def is_held_back(values: Mapping[str, float]) -> bool | None:
    """What one poll says; None where the API did not know the run's connections (yet)."""
    if not values.get("connections"):
        return None
    return any(values.get(name, 0) for name in ("in_flow", "blocked"))


def flow_values(
    connections: Iterable[Mapping[str, Any]], channels: Iterable[Mapping[str, Any]], name: str
) -> dict[str, float]:
    """Counts over the connections of this name and their channels.

    A connection that was just opened has no state before its first statistics.
    """
    ours = [
        found
        for found in connections
        if found.get("user_provided_name") == name and "state" in found
    ]
    names = {found.get("name") for found in ours}
    theirs = [
        found
        for found in channels
        if isinstance(details := found.get("connection_details"), Mapping)
        and details.get("name") in names
    ]
    states = [found.get("state") for found in (*ours, *theirs)]
    return {
        "connections": len(ours),
        "channels": len(theirs),
        "in_flow": states.count("flow"),
        "blocked": sum(state in _BLOCKED for state in states),
    }


class FlowSampler:
    def __init__(self, source: Endpoint, connection_name: str) -> None:
        self._source = source
        self._connection_name = connection_name

    def read(self) -> Reading:
        values = flow_values(self._list(_CONNECTIONS), self._list(_CHANNELS), self._connection_name)
        return Reading(time.monotonic_ns(), self._source.host, cores=1, values=values)

    def close(self) -> None:
        pass

    def _list(self, path: str) -> list[Mapping[str, Any]]:
        try:
            found = json.loads(self._source.get(path))
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise Unreadable(f"{self._source.host} does not answer like RabbitMQ's management API")
        return found


def flow_sampler(
    broker: Broker, credentials: Credentials, run_id: str, timeout_seconds: float
) -> FlowSampler | None:
    """None where the broker file names no management API."""
    if broker.management_uri is None:
        return None
    login = None
    if credentials.username is not None and credentials.password is not None:
        login = (credentials.username, credentials.password.get_secret_value())
    tls = broker.tls if urlsplit(broker.management_uri).scheme == "https" else None
    source = Endpoint(broker.management_uri, timeout_seconds, login=login, tls=tls)
    return FlowSampler(source, f"bench-spark {run_id}")
