"""Sources read over HTTP: metrics in Prometheus' text format, and RabbitMQ's management API."""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench_spark.config.broker import LABEL, METRIC, Broker, Credentials, Tls
from bench_spark.monitor.reading import Reading, ResourceSampler, SourceUnreadable, values_read
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable


class Endpoint:
    """Reads one URL; what goes wrong is SourceUnreadable."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        *,
        login: tuple[str, str] | None = None,
        bearer_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._http = DirectHttp(
            url,
            timeout_seconds,
            login=login,
            bearer_token=bearer_token,
            tls_context=_tls_context(tls),
        )
        self.host = self._http.host

    def get(self, path: str = "", accept: str = "*/*") -> bytes:
        try:
            return self._http.ask(path, headers={"Accept": accept})
        except HttpRefusal as error:
            raise SourceUnreadable(f"{self._http.address} answers {error}") from None
        except HttpUnreachable as error:
            raise SourceUnreadable(f"{self._http.address}: {type(error.cause).__name__}") from None


def _tls_context(tls: Tls | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
        if tls is not None and tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls is not None and tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as error:
        raise SourceUnreadable(f"TLS: {error.strerror}") from None
    return context


def parse_text(text: str, wanted: frozenset[str] | None = None) -> Iterator[Sample]:
    """The samples of a text; lines that are none are passed over, as are comments.

    `wanted` spares the work for all other metrics: exporters have thousands. Line by line, so that
    one that cannot be read costs no other.
    """
    for line in text.split("\n"):  # other separators may stand in a label's value
        if not line or line[0] == "#":
            continue
        if wanted is not None and re.split(r"[{ \t]", line, maxsplit=1)[0] not in wanted:
            continue
        with suppress(ValueError, IndexError, KeyError):
            for family in text_string_to_metric_families(line):
                yield from family.samples


@dataclass(frozen=True)
class Selector:
    """Which series to add up, and under which name."""

    alias: str
    metric: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Selector:
        match = METRIC.fullmatch(text)
        assert match is not None, "checked when the broker file was loaded"
        labels = {
            found["name"]: found["value"]
            for part in (match["labels"] or "").split(",")
            if (found := LABEL.fullmatch(part))
        }
        # Without an alias the labels belong to the name: two selectors may differ in them only.
        return cls(match["alias"] or text, match["metric"], labels)

    def takes(self, sample: Sample) -> bool:
        return sample.name == self.metric and all(
            sample.labels.get(name) == value for name, value in self.labels.items()
        )


def chosen_values(
    text: str, selectors: Sequence[Selector]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The sum of each selector's series, and the names of those that have none."""
    totals: dict[str, float] = {}
    for sample in parse_text(text, frozenset(selector.metric for selector in selectors)):
        for selector in selectors:
            if selector.takes(sample):
                totals[selector.alias] = totals.get(selector.alias, 0.0) + sample.value
    finite = {name: value for name, value in totals.items() if math.isfinite(value)}
    return finite, tuple(s.alias for s in selectors if s.alias not in finite)


class PrometheusSampler(ResourceSampler):
    """Metrics of others, chosen and added up."""

    def __init__(self, source: Endpoint, metrics: Sequence[str]) -> None:
        self._source = source
        self._selectors = [Selector.parse(text) for text in metrics]

    def read(self) -> Reading:
        body = self._source.get(accept="text/plain;version=0.0.4")
        values, missing = chosen_values(body.decode("utf-8", "replace"), self._selectors)
        return values_read(values, missing, self._source.host)


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


class FlowSampler(ResourceSampler):
    """Whether RabbitMQ holds this run's producers back, by its management API.

    A connection or channel is in flow when credit has run out somewhere behind it, and blocked when
    an alarm (memory, disk) stops publishers. RabbitMQ brings its statistics up to date every five
    seconds (`collect_statistics_interval`), so a poll a second sees each state several times.
    """

    def __init__(self, source: Endpoint, connection_name: str) -> None:
        self._source = source
        self._connection_name = connection_name

    def read(self) -> Reading:
        values = flow_values(self._list(_CONNECTIONS), self._list(_CHANNELS), self._connection_name)
        return values_read(values, host=self._source.host)

    def _list(self, path: str) -> list[Mapping[str, Any]]:
        try:
            found = json.loads(self._source.get(path))
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise SourceUnreadable(
                f"{self._source.host} does not answer like RabbitMQ's management API"
            )
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
