"""RabbitMQ's management API: policies of a run, and what killed runs have left behind.

Mirrors of classic queues can be asked for in no other way than by a policy. It is there before the
queues, so that they are made with it, and goes when they have gone; it also holds, for that time,
for queues of those names that were there before.

AMQP itself cannot list queues, exchanges and policies: the management API can, where the broker
file names it; else the names are those that the runs of a store must have used. How a queue fares
is asked by AMQP either way, because the API's numbers are seconds old.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pika import spec

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.problems import plural
from bench_spark.config.protocols import Amqp
from bench_spark.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, LoginRefused
from bench_spark.transports.amqp.connection import AmqpAccess, access_for
from bench_spark.transports.amqp.control import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    ControlConnection,
    Refused,
)
from bench_spark.transports.amqp.topology import NUMBER_MARK, layout_for
from bench_spark.transports.base import Destination, TransportContext
from bench_spark.transports.direct_http import DirectHttp, HttpRefusal, HttpUnreachable
from bench_spark.transports.leftovers import (
    PREFIX,
    WATCHED_SECONDS,
    KnownRun,
    Leftover,
    Wanted,
    run_of_numbered,
    run_of_whole,
    with_their_runs,
)

_NOT_FOUND = 404
_LOGIN_REFUSED = (401, 403)
_LONGEST_REASON = 300


def quoted(text: str) -> str:
    """A name as a part of a path."""
    return urllib.parse.quote(text, safe="")


class Management:
    """`purpose` is what errors name: the key that needs the API."""

    def __init__(self, broker: Broker, access: AmqpAccess, purpose: str) -> None:
        assert broker.management_uri is not None
        credentials: Any = access.credentials
        self._http = DirectHttp(
            broker.management_uri,
            access.timeout_seconds,
            login=(credentials.username, credentials.password or ""),
            tls_context=access.tls_context,
        )
        self.host = self._http.address
        self._purpose = purpose

    def __repr__(self) -> str:
        return f"Management({self.host})"

    def get(self, path: str) -> Any:
        return json.loads(self._ask("GET", path))

    def put(self, path: str, body: Any) -> None:
        self._ask("PUT", path, json.dumps(body).encode())

    def delete(self, path: str) -> None:
        """What is not there need not be deleted."""
        self._ask("DELETE", path, may_be_missing=True)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, may_be_missing: bool = False
    ) -> bytes:
        where = f"{self.host}: {self._purpose}"
        json_body = {"Content-Type": "application/json"}
        try:
            return self._http.ask(f"/api/{path}", method=method, body=body, headers=json_body)
        except HttpRefusal as error:
            if error.status == _NOT_FOUND and may_be_missing:
                return b""
            kind = LoginRefused if error.status in _LOGIN_REFUSED else BrokerRefused
            raise kind(f"{where}: {error.status} {_reason(error)}") from None
        except HttpUnreachable as error:
            raise BrokerUnreachable(f"{where}: {error.cause}") from None


def _reason(error: HttpRefusal) -> str:
    """RabbitMQ's own words for a refusal, which name what is wrong with a definition."""
    try:
        text = str(json.loads(error.body)["reason"])
    except (ValueError, KeyError, TypeError):
        text = error.reason
    return " ".join(text.split())[:_LONGEST_REASON]


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    """Raise where a policy cannot be set, from the files alone."""
    policy = scenario.amqp.policy
    if policy is None:
        return
    if broker.management_uri is None:
        raise ConfigurationError(
            f"amqp.policy: policies are set by the management API, and broker {broker.name} has no "
            "management_uri"
        )
    if scenario.only_consumes:
        raise ConfigurationError(
            "amqp.policy: a run without producers leaves the queues as they are; give it producers"
        )
    if scenario.amqp.queue.server_named and policy.pattern is None:
        raise ConfigurationError(
            "amqp.policy.pattern: missing; the broker chooses the names (amqp.queue.server_named)"
        )


def pattern_of(amqp: Amqp, run_id: str) -> str:
    """A regular expression for the names of exactly the run's queues, unless one was given."""
    if amqp.policy is not None and amqp.policy.pattern is not None:
        return amqp.policy.pattern
    name = amqp.queue.name or f"bench-{run_id}-{NUMBER_MARK}"
    return "^" + "[0-9]+".join(map(re.escape, name.split(NUMBER_MARK))) + "$"


class RunPolicy:
    """The policy of one run; the same for all its agents, whoever comes first."""

    def __init__(self, context: TransportContext, access: AmqpAccess) -> None:
        amqp = context.scenario.amqp
        assert amqp.policy is not None
        self._management = Management(context.broker, access, "amqp.policy")
        name = f"bench-{context.run_id}"
        self._path = f"policies/{quoted(access.virtual_host)}/{quoted(name)}"
        self._body: dict[str, Any] = {
            "pattern": pattern_of(amqp, context.run_id),
            "definition": dict(amqp.policy.definition),
            "priority": amqp.policy.priority,
            "apply-to": "queues",
        }
        self._is_set = False

    def __repr__(self) -> str:
        return f"RunPolicy({self._body['pattern']} at {self._management.host})"

    def set(self) -> None:
        self._refuse_too_many_copies()
        self._is_set = True
        self._management.put(self._path, self._body)

    def remove(self) -> None:
        """Only what this agent has set; another agent may have removed it already."""
        if self._is_set:
            self._is_set = False
            self._management.delete(self._path)

    def _refuse_too_many_copies(self) -> None:
        """RabbitMQ would make as many copies as it has nodes, and say nothing."""
        definition = self._body["definition"]
        copies = definition.get("ha-params")
        if definition.get("ha-mode") != "exactly" or not isinstance(copies, int) or copies < 2:
            return
        try:
            nodes = self._management.get("nodes?columns=running")
        except LoginRefused:
            return  # a user may set policies and not be allowed to see the nodes
        running = sum(bool(node.get("running")) for node in nodes)
        if copies > running:
            raise BrokerRefused(
                f"{self._management.host}: amqp.policy.definition.ha-params: {copies} copies of a "
                f"queue need as many nodes, and {running} of this cluster "
                f"{'is' if running == 1 else 'are'} running"
            )


@dataclass
class _Names:
    """What may be there, each with its run."""

    queues: dict[str, str] = field(default_factory=dict)
    exchanges: dict[str, str] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)


class AmqpSweeper:
    def __init__(self, context: TransportContext) -> None:
        self._access = access_for(context)
        self._management = (
            Management(context.broker, self._access, "cleanup")
            if context.broker.management_uri is not None
            else None
        )

    def find(self, wanted: Wanted) -> list[Leftover]:
        names = self._listed() if self._management else _derived(wanted.known)
        with ControlConnection(self._access) as control:
            found = _queues(control, names.queues)
            found += [
                Leftover("exchange", name, run_id)
                for name, run_id in names.exchanges.items()
                if _exists(control, spec.Exchange.Declare(exchange=name), name) is not None
            ]
        found += [Leftover("policy", name, run_id) for name, run_id in names.policies.items()]
        return with_their_runs(one for one in found if wanted.takes(one.run_id))

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        with ControlConnection(self._access) as control:
            for one in leftovers:
                if one.kind == "policy":
                    assert self._management is not None
                    self._management.delete(f"policies/{self._vhost}/{quoted(one.name)}")
                else:
                    _delete_unused(control, one)

    @property
    def _vhost(self) -> str:
        return quoted(self._access.virtual_host)

    def _listed(self) -> _Names:
        api = self._management
        assert api is not None

        def named(what: str, columns: str = "name") -> list[Any]:
            listed = api.get(f"{what}/{self._vhost}?columns={columns}")
            return [one for one in listed if str(one["name"]).startswith(PREFIX)]

        names = _Names()
        for one in named("queues", "name,exclusive"):
            run_id = run_of_numbered(one["name"])
            # An exclusive queue goes with its connection, and nobody else may look at it.
            if run_id is not None and not one.get("exclusive"):
                names.queues[one["name"]] = run_id
        runs = set(names.queues.values())
        for what, into in (("exchanges", names.exchanges), ("policies", names.policies)):
            for one in named(what):
                run_id = run_of_whole(one["name"], runs)
                if run_id is not None:
                    into[one["name"]] = run_id
        return names


def _derived(known: Sequence[KnownRun]) -> _Names:
    """The names that these runs have used, if they chose them by themselves."""
    names = _Names()
    for run in known:
        layout = layout_for(run.scenario, run.run_id)
        destinations = [Destination(index) for index in range(run.scenario.destinations)]
        for queue in layout.queues_behind(destinations):
            name = layout.queue(queue.index, is_declared=True).name or ""
            if run_of_numbered(name) == run.run_id:
                names.queues[name] = run.run_id
        if layout.amqp.exchange.name == PREFIX + run.run_id:
            names.exchanges[layout.amqp.exchange.name] = run.run_id
    return names


def _queues(control: ControlConnection, names: dict[str, str]) -> list[Leftover]:
    before = {name: _state(control, name) for name in names}
    if any(before.values()):
        time.sleep(WATCHED_SECONDS)
    found = []
    for name, state in before.items():
        now = _state(control, name) if state is not None else None
        if now is None:
            continue
        messages, consumers = now
        used_by = ""
        if consumers:
            used_by = plural(consumers, "consumer")
        elif now != state:
            used_by = "somebody who publishes to it"
        holds = plural(messages, "message")
        found.append(Leftover("queue", name, names[name], holds, used_by))
    return found


def _state(control: ControlConnection, queue: str) -> tuple[int, int] | None:
    """Messages and consumers of a queue; None if it is not there."""
    answer = _exists(control, spec.Queue.Declare(queue=queue), queue)
    return None if answer is None else (int(answer.message_count), int(answer.consumer_count))


def _exists(control: ControlConnection, request: Any, name: str) -> Any | None:
    try:
        return control.exists(request, f"{request.NAME.lower()} {name!r}")
    except Refused as refused:
        raise refused.error from refused


def _delete_unused(control: ControlConnection, one: Leftover) -> None:
    request: Any = spec.Exchange.Delete(exchange=one.name, if_unused=True)
    if one.kind == "queue":
        request = spec.Queue.Delete(queue=one.name, if_unused=True)
    try:
        control.ask(request, f"{one.kind}.delete {one.name!r}")
    except Refused as refused:
        if refused.code not in (NOT_FOUND, PRECONDITION_FAILED):
            raise refused.error from refused
