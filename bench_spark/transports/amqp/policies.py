"""A policy of RabbitMQ for the queues of a run, set and removed by the management API.

Mirrors of classic queues can be asked for in no other way. The policy is there before the queues,
so that they are made with it, and goes when they have gone; it also holds, for that time, for
queues of those names that were there before.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from bench_spark.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, LoginRefused
from bench_spark.scenario.amqp_section import Amqp
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.amqp.naming import NUMBER_MARK
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.base import TransportContext

_NOT_FOUND = 404
_LOGIN_REFUSED = (401, 403)
_LONGEST_REASON = 300


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

    def __init__(self, context: TransportContext, access: Access) -> None:
        assert context.broker.management_uri is not None
        amqp = context.scenario.amqp
        assert amqp.policy is not None
        parts = urllib.parse.urlsplit(context.broker.management_uri)
        self._host = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        vhost, name = (
            urllib.parse.quote(text, safe="")
            for text in (access.virtual_host, f"bench-{context.run_id}")
        )
        api = f"{parts.scheme}://{self._host}{parts.path.rstrip('/')}/api"
        self._url = f"{api}/policies/{vhost}/{name}"
        self._nodes_url = f"{api}/nodes?columns=running"
        self._authorization = _basic(parts, access)
        self._timeout_seconds = access.timeout_seconds
        self._tls_context = access.tls_context or ssl.create_default_context()
        self._body: dict[str, Any] = {
            "pattern": pattern_of(amqp, context.run_id),
            "definition": dict(amqp.policy.definition),
            "priority": amqp.policy.priority,
            "apply-to": "queues",
        }
        self._is_set = False

    def __repr__(self) -> str:
        return f"RunPolicy({self._body['pattern']} at {self._host})"

    def set(self) -> None:
        self._refuse_too_many_copies()
        self._is_set = True
        self._ask("PUT", self._url, json.dumps(self._body).encode())

    def remove(self) -> None:
        """Only what this agent has set; another agent may have removed it already."""
        if self._is_set:
            self._is_set = False
            self._ask("DELETE", self._url, may_be_missing=True)

    def _refuse_too_many_copies(self) -> None:
        """RabbitMQ would make as many copies as it has nodes, and say nothing."""
        definition = self._body["definition"]
        copies = definition.get("ha-params")
        if definition.get("ha-mode") != "exactly" or not isinstance(copies, int) or copies < 2:
            return
        try:
            nodes = json.loads(self._ask("GET", self._nodes_url))
        except LoginRefused:
            return  # a user may set policies and not be allowed to see the nodes
        running = sum(bool(node.get("running")) for node in nodes)
        if copies > running:
            raise BrokerRefused(
                f"{self._host}: amqp.policy.definition.ha-params: {copies} copies of a queue need "
                f"as many nodes, and {running} of this cluster {'is' if running == 1 else 'are'} "
                "running"
            )

    def _ask(
        self, method: str, url: str, body: bytes | None = None, may_be_missing: bool = False
    ) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the broker file allows http and https only
            url,
            data=body,
            method=method,
            headers={"Authorization": self._authorization, "Content-Type": "application/json"},
        )
        # Brokers are spoken to directly, whatever proxy the shell has for the web.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=self._tls_context),
        )
        where = f"{self._host}: amqp.policy"
        try:
            with opener.open(request, timeout=self._timeout_seconds) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND and may_be_missing:
                return b""
            kind = LoginRefused if error.code in _LOGIN_REFUSED else BrokerRefused
            raise kind(f"{where}: {error.code} {_reason(error)}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise BrokerUnreachable(f"{where}: {reason}") from None


def _basic(parts: urllib.parse.SplitResult, access: Access) -> str:
    """The login in management_uri, if there is one, else the broker's own."""
    user, password = parts.username, parts.password
    if user is None:
        credentials: Any = access.parameters.credentials
        user, password = credentials.username, credentials.password
    else:
        user, password = urllib.parse.unquote(user), urllib.parse.unquote(password or "")
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def _reason(error: urllib.error.HTTPError) -> str:
    """RabbitMQ's own words for a refusal, which name what is wrong with a definition."""
    text = error.read(4096).decode(errors="replace")
    try:
        text = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        text = error.reason
    return " ".join(str(text).split())[:_LONGEST_REASON]
