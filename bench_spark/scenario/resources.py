"""Where a broker's own use of its machine can be read: the section `resources` of a broker file.

Each entry of the list is one source and names exactly one kind of place to read from. Tokens come
from the environment or from a file, as passwords do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.fields import Conflict, Name, Section, refuse
from bench_spark.scenario.pattern import Pattern
from bench_spark.scenario.secrets import (
    MASK,
    environment_name,
    is_secret_key,
    mask_uri,
    uri_problem,
)

KINDS = (
    "pid",
    "process",
    "cgroup",
    "docker",
    "prometheus",
    "command",
    "remote",
    "listen",
    "embedded",
)
WITH_TOKEN = ("remote", "listen")
"""Kinds that are refused without a token; `prometheus` may have one."""

SHORTEST_TOKEN = 16
MOST_METRICS = 200

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
METRIC = re.compile(
    r"(?:(?P<alias>[A-Za-z_][A-Za-z0-9_.:-]*)=)?"
    r"(?P<metric>[A-Za-z_:][A-Za-z0-9_:]*)"
    r"(?:\{(?P<labels>[^{}]*)\})?"
)
LABEL = re.compile(r'\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*"(?P<value>[^"\\]*)"\s*')


def host_and_port(text: str) -> tuple[str, int]:
    """HOST:PORT in its two parts; ValueError says what is allowed."""
    match = _HOST_PORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise ValueError("allowed: HOST:PORT")
    return match[1].strip("[]"), int(match["port"])


def _address(text: str) -> str:
    host_and_port(text)
    return text


def checked_pattern(text: str) -> str:
    try:
        Pattern(text)
    except ValueError as error:
        raise ValueError(f"allowed: a regular expression; this one {error}") from None
    return text


def _container(text: str) -> str:
    if not _CONTAINER.fullmatch(text):
        raise ValueError("allowed: the name or id of a container")
    return text


def _metric(text: str) -> str:
    match = METRIC.fullmatch(text)
    labels = (match["labels"] or "").strip() if match else ""
    if match is None or (labels and not all(map(LABEL.fullmatch, labels.split(",")))):
        raise ValueError('allowed: METRIC, ALIAS=METRIC or ALIAS=METRIC{label="value",...}')
    return text


class ResourceSource(Section):
    """One place to read the broker's resources from; exactly one of `pid` to `embedded`."""

    name: Name | None = None
    """What results call this source; unset: its kind."""
    pid: int | None = Field(None, ge=1, le=2**22)
    """A process of the driver's machine, with all it started."""
    process: (
        Annotated[str, Field(min_length=1, max_length=500), AfterValidator(checked_pattern)] | None
    ) = None
    """Processes of the driver's machine whose name or command line this regular expression is
    found in, with all they started; the driver itself and what it started are left out."""
    cgroup: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """A control group (version 2) of the driver's machine: a directory, or its path below
    /sys/fs/cgroup."""
    docker: Annotated[str, AfterValidator(_container)] | None = None
    """A container of the driver's machine, asked for at `docker_socket`."""
    docker_socket: str = "/var/run/docker.sock"
    """The Docker daemon's socket."""
    prometheus: str | None = None
    """URL of metrics in Prometheus' text format: a node exporter, RabbitMQ's plugin, a JMX
    exporter. `metrics` says which to keep."""
    metrics: list[Annotated[str, AfterValidator(_metric)]] = Field(
        default_factory=list, max_length=MOST_METRICS
    )
    """With `prometheus`: METRIC, ALIAS=METRIC or ALIAS=METRIC{label="value"}; the values of all
    series that match are added."""
    command: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default_factory=list, max_length=1000
    )
    """A program and its arguments, without a shell, run once a second or as often as it ends; each
    line `name=value` that it prints is kept."""
    remote: Annotated[str, AfterValidator(_address)] | None = None
    """HOST:PORT of a `bench-spark sample --listen` on the broker's machine."""
    listen: Annotated[str, AfterValidator(_address)] | None = None
    """HOST:PORT of the driver, where a `bench-spark sample --to` of the broker's machine calls."""
    embedded: Literal["kafka", "qpid", "rabbitmq", "mosquitto"] | None = None
    """The broker of that name that `bench-spark broker start` has started."""
    token_env: Annotated[str, AfterValidator(environment_name)] | None = None
    """Name of the environment variable that holds the token of `remote`, `listen` or
    `prometheus` (there a bearer token)."""
    token_file: str | None = None
    """File whose first line is that token."""
    timeout_seconds: float = Field(5.0, gt=0, le=60, allow_inf_nan=False)
    """How long one reading may take."""

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind))

    @model_validator(mode="after")
    def _keys_agree(self) -> ResourceSource:
        refuse(list(self._conflicts()))
        return self

    def _conflicts(self) -> Iterable[Conflict]:
        given = [kind for kind in KINDS if getattr(self, kind)]
        if not given:
            yield Conflict(("pid",), f"nothing to read; give one of {', '.join(KINDS)}")
            return
        if len(given) > 1:
            yield Conflict((given[1], given[0]), f"excludes {given[0]}; write two sources")
        kind = given[0]
        if self.prometheus is not None:
            if problem := uri_problem(self.prometheus, ("http", "https"), allows_query=True):
                yield Conflict(("prometheus",), problem)
            if not self.metrics:
                yield Conflict(("metrics", "prometheus"), "missing; name the metrics to keep")
        elif self.metrics:
            yield Conflict(("metrics",), f"does not go with {kind}")
        yield from self._token_conflicts(kind)

    def _token_conflicts(self, kind: str) -> Iterable[Conflict]:
        if self.token_env and self.token_file:
            yield Conflict(("token_env", "token_file"), "excludes token_file")
        has_token = self.token_env or self.token_file
        if kind in WITH_TOKEN and not has_token:
            yield Conflict(("token_file", kind), f"missing; {kind} needs it, or token_env")
        if has_token and kind not in (*WITH_TOKEN, "prometheus"):
            key = "token_env" if self.token_env else "token_file"
            yield Conflict((key,), f"does not go with {kind}")

    def token(self) -> str | None:
        """The token from where the file says it is; None where none is asked for."""
        where = f"resources: {self.kind}"
        if self.token_env:
            token = os.environ.get(self.token_env)
            if token is None:
                raise ConfigurationError(
                    f"{where}: token_env: the environment has no {self.token_env}"
                )
        elif self.token_file:
            token = read_token(self.token_file, f"{where}: token_file")
        else:
            return None
        if self.kind in WITH_TOKEN:
            refuse_weak_token(token, where)
        return token

    def masked(self) -> dict[str, Any]:
        """For printing and storing: without passwords in URLs and arguments."""
        shown = self.model_dump(mode="json", exclude_defaults=True)
        if self.prometheus is not None:
            base, mark, query = mask_uri(self.prometheus).partition("?")
            shown["prometheus"] = f"{base}{mark}{MASK if is_secret_key(query) else query}"
        if self.command:
            shown["command"] = masked_arguments(self.command)
        return shown


def read_token(path: str, where: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{where}: cannot read a token from {path} ({type(error).__name__})"
        ) from None
    return lines[0].strip() if lines else ""


def refuse_weak_token(token: str, where: str) -> None:
    if len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{where}: the token is too short; allowed: at least {SHORTEST_TOKEN} characters"
        )


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without what looks like a secret: `--password x`, `token=x`, URIs."""
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if is_secret:
            shown.append(MASK)
            is_secret = False
        elif equals and is_secret_key(flag):
            shown.append(f"{flag}={MASK}")
        else:
            shown.append(mask_uri(argument))
            is_secret = argument.startswith("-") and is_secret_key(argument)
    return shown


def named_sources(sources: Sequence[ResourceSource]) -> Mapping[str, ResourceSource]:
    """Every source under a name of its own: as given, else its kind, numbered where taken."""
    taken = {source.name for source in sources if source.name is not None}
    named: dict[str, ResourceSource] = {}
    for source in sources:
        name, number = source.name or source.kind, 1
        while source.name is None and name in taken:
            number += 1
            name = f"{source.kind}-{number}"
        taken.add(name)
        named[name] = source
    return named
