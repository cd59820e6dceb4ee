"""What a broker file may say: where a broker is and how to log in, never how it is loaded.

Passwords come from the environment, from a file, or from a URI in the broker file itself; they live
in `SecretStr` and in nothing that is printed. `masked()` is the only form that leaves the driver's
memory other than inside a task's closure.

Where a broker's own use of its machine can be read: the section `resources` of a broker file. Each
entry of the list is one source and names exactly one kind of place to read from. Tokens come from
the environment or from a file, as passwords do.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr

from bench_spark.config.fields import (
    MASK,
    PORT_OUT_OF_RANGE,
    ClientProperties,
    Conflict,
    Name,
    Pattern,
    Section,
    checked,
    environment_name,
    is_secret_key,
    mask_uri,
    uri_problem,
)
from bench_spark.errors import ConfigurationError

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

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,9})")
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
    if match is None:
        raise ValueError("allowed: HOST:PORT")
    if not 1 <= int(match["port"]) <= 65535:
        raise ValueError("allowed: a port from 1 to 65535")
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


_container = checked(_CONTAINER.fullmatch, "the name or id of a container")


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
    timeout_seconds: float = Field(5.0, gt=0, le=60)
    """How long one reading may take."""

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind))

    def conflicts(self) -> Iterator[Conflict]:
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

    def _token_conflicts(self, kind: str) -> Iterator[Conflict]:
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
            token = _from_environment(self.token_env, f"{where}: token_env")
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


def _from_environment(variable: str, where: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise ConfigurationError(f"{where}: the environment has no {variable}")
    return value


def why_unreadable(error: Exception) -> str:
    """In words that hold nothing of the file."""
    return error.strerror if isinstance(error, OSError) and error.strerror else "it is empty"


def read_token(path: str, where: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{where}: cannot read a token from {path} ({why_unreadable(error)})"
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


DEFAULT_PORTS = {
    "amqp": 5672,
    "amqps": 5671,
    "mqtt": 1883,
    "mqtts": 8883,
    "http": 80,
    "https": 443,
    "loopback": 0,
}
_ENCRYPTED = ("amqps", "mqtts", "https", "tcps")
_LISTENING = ("http", "tcp")
"""Kinds whose consumers may listen, at any free port too."""

FLOW_SOURCE = "flow"
"""The source in `resources` that holds what the management API says."""

_BOOTSTRAP_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,9}))?")


def _bootstrap_problem(servers: str) -> str | None:
    for server in servers.split(","):
        match = _BOOTSTRAP_SERVER.fullmatch(server.strip())
        if match and not 1 <= int(match["port"] or 9092) <= 65535:
            return PORT_OUT_OF_RANGE
        if match is None:
            return "is not a list of servers; allowed: HOST:PORT, several separated by commas"
    return None


def _server(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else (text, 9092)


class Tls(Section):
    """Encryption; present means on, for schemes without an `s` too."""

    ca_file: str | None = None
    """Certificate authorities to trust, PEM; unset: the system's."""
    certificate_file: str | None = None
    """The client's own certificate, PEM, for brokers that ask for one."""
    key_file: str | None = None
    """The private key of `certificate_file`, PEM; unset: it is in the same file."""
    server_name: str | None = None
    """Name the server's certificate must carry; unset: the host connected to."""
    insecure: bool = False
    """Accept any certificate. Recorded in the result."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.key_file and not self.certificate_file:
            yield Conflict(("key_file", "certificate_file"), "needs certificate_file")


class Broker(Section):
    """Where a broker is, and how to log in."""

    name: Name = "unnamed"
    """What results call this broker; unset: the file's name."""
    kind: Literal["amqp", "kafka", "mqtt", "http", "tcp", "loopback", "other"]
    """The protocol to speak. `http` and `tcp` are for systems without a broker in front or behind.
    `loopback` is no broker: it measures the generator's own limit. `other` is spoken by somebody
    else's transport, which `transport` names."""
    transport: Name | None = None
    """Kind `other`: the entry point of a transport that is installed beside bench-spark."""
    uri: str | None = None
    """amqp://host:port/vhost, mqtt://host:port, http://host:port/path, tcp://host:port; with TLS
    amqps://, mqtts://, https://, tcps://. A password in it is accepted and masked."""
    bootstrap_servers: str | None = None
    """Kafka: host:port, several separated by commas."""
    username: str | None = None
    """User to log in as; unset: the one in `uri`."""
    password_env: Annotated[str, AfterValidator(environment_name)] | None = None
    """Name of the environment variable that holds the password."""
    password_file: str | None = None
    """File whose first line is the password."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """Kafka: how the user and password are presented."""
    tls: Tls | None = None
    """Encryption; unset: only where the URI's scheme says so."""
    properties: ClientProperties = Field(default_factory=dict)
    """Kafka: client properties common to producers, consumers and administration."""
    management_uri: str | None = None
    """RabbitMQ's management API: whether it holds producers back (`flow`), and where
    `amqp.policy` is set."""
    rabbitmqctl: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field(
        default_factory=list, max_length=1000
    )
    """RabbitMQ: the command that stands for `rabbitmqctl`, such as `[docker, exec, rabbit,
    rabbitmqctl]`, in hooks of a suite and in `resources`; unset: that of the broker which
    `bench-spark broker start` runs, else the one that the shell finds."""
    resources: list[ResourceSource] = Field(default_factory=list, max_length=100)
    """Where the broker's CPU, memory and disk use can be read while a run goes on."""
    connect_timeout_seconds: float = Field(5.0, gt=0, le=60)
    """How long a connection and its login may take."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from self._address_conflicts()
        yield from self._login_conflicts()
        yield from self._resource_conflicts()

    def _address_conflicts(self) -> Iterator[Conflict]:
        needed = {"kafka": "bootstrap_servers", "loopback": None}.get(self.kind, "uri")
        if needed and not getattr(self, needed):
            yield Conflict((needed, "kind"), f"missing; kind {self.kind} needs it")
        for key in ("uri", "bootstrap_servers"):
            if key != needed and getattr(self, key) is not None:
                yield Conflict((key, "kind"), f"does not go with kind {self.kind}")
        if (self.kind == "other") != (self.transport is not None):
            unsuited = f"does not go with kind {self.kind}"
            missing = "missing; kind other needs it"
            yield Conflict(("transport", "kind"), unsuited if self.transport else missing)
        if self.uri and needed == "uri":
            own_scheme = urllib.parse.urlsplit(self.uri).scheme
            schemes = (own_scheme,) if self.kind == "other" else (self.kind, self.kind + "s")
            problem = uri_problem(
                self.uri,
                schemes,
                allows_query=self.kind == "http",
                allows_port_0=self.kind in _LISTENING,
                needs_port=self.kind == "tcp",
            )
            if problem:
                yield Conflict(("uri",), problem)
        if self.bootstrap_servers and needed == "bootstrap_servers":
            problem = _bootstrap_problem(self.bootstrap_servers)
            if problem:
                yield Conflict(("bootstrap_servers",), problem)
        if self.management_uri is not None:
            problem = uri_problem(self.management_uri, ("http", "https"))
            if problem:
                yield Conflict(("management_uri",), problem)

    def _login_conflicts(self) -> Iterator[Conflict]:
        if self.password_env and self.password_file:
            yield Conflict(("password_env", "password_file"), "excludes password_file")
        if self.kind == "tcp":
            for key in ("username", "password_env", "password_file"):
                if getattr(self, key) is not None:
                    yield Conflict((key, "kind"), "does not go with kind tcp, which has no login")
        if self.kind != "kafka" and self.properties:
            yield Conflict(("properties", "kind"), f"does not go with kind {self.kind}")
        if self.kind != "amqp" and self.rabbitmqctl:
            yield Conflict(("rabbitmqctl", "kind"), f"does not go with kind {self.kind}")
        if self.kind != "kafka" and self.sasl_mechanism != "PLAIN":
            yield Conflict(("sasl_mechanism", "kind"), f"does not go with kind {self.kind}")

    def _resource_conflicts(self) -> Iterator[Conflict]:
        names = [source.name for source in self.resources if source.name is not None]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield Conflict(("resources",), f"two sources are called {name}")
        if FLOW_SOURCE in names:
            yield Conflict(("resources",), f"{FLOW_SOURCE} is the name of management_uri's rows")

    @property
    def host(self) -> str:
        return self.address()[0]

    @property
    def port(self) -> int:
        return self.address()[1]

    def address(self) -> tuple[str, int]:
        """The first host and port, for messages to people."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports; only Kafka has several."""
        if self.kind == "kafka":
            return [_server(text.strip()) for text in (self.bootstrap_servers or "").split(",")]
        if self.uri is None:
            return [("loopback", 0)]
        parts = urllib.parse.urlsplit(self.uri)
        return [(parts.hostname or "localhost", port_of(parts))]

    @property
    def uses_tls(self) -> bool:
        if self.kind == "kafka":
            protocol = str(self.properties.get("security.protocol", ""))
            return self.tls is not None or protocol.upper().endswith("SSL")
        return self.tls is not None or urllib.parse.urlsplit(self.uri or "").scheme in _ENCRYPTED

    @property
    def virtual_host(self) -> str:
        path = urllib.parse.urlsplit(self.uri or "").path
        return urllib.parse.unquote(path[1:]) if len(path) > 1 else "/"

    def masked(self) -> dict[str, Any]:
        """For printing and storing: no password, not even an encoded one."""
        shown = self.model_dump(mode="json", exclude_none=True)
        for key in ("uri", "management_uri"):
            if shown.get(key):
                shown[key] = mask_uri(shown[key])
        shown["rabbitmqctl"] = masked_arguments(self.rabbitmqctl)
        shown["resources"] = [source.masked() for source in self.resources]
        shown["properties"] = {
            key: MASK if is_secret_key(key) else value for key, value in self.properties.items()
        }
        return shown

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """`repr` and `str` end up in logs and in test reports."""
        yield from self.masked().items()


def port_of(uri: urllib.parse.SplitResult) -> int:
    """The port of an address, or that of its scheme."""
    return DEFAULT_PORTS.get(uri.scheme, 0) if uri.port is None else uri.port


class Credentials(Section):
    """User and password as resolved in the driver; travels to executors only inside the task."""

    username: str | None = None
    password: SecretStr | None = None


def resolve_credentials(broker: Broker) -> Credentials:
    """Find the password where the broker file says it is."""
    parts = urllib.parse.urlsplit(broker.uri or "")
    username = broker.username or (urllib.parse.unquote(parts.username) if parts.username else None)
    password = urllib.parse.unquote(parts.password) if parts.password else None
    if broker.password_env:
        password = _from_environment(broker.password_env, f"broker {broker.name}: password_env")
    elif broker.password_file:
        try:
            password = Path(broker.password_file).read_text().splitlines()[0]
        except (OSError, IndexError) as error:
            raise ConfigurationError(
                f"broker {broker.name}: password_file: cannot read a password from "
                f"{broker.password_file} ({why_unreadable(error)})"
            ) from None
    return Credentials(username=username, password=SecretStr(password) if password else None)
