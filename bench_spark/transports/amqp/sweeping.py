"""Queues, exchanges and policies that killed runs have left behind.

AMQP itself cannot list them: the management API can, where the broker file names it; else the names
are those that the runs of a store must have used. How a queue fares is asked by AMQP either way,
because the API's numbers are seconds old.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pika import spec

from bench_spark.transports.amqp.connection import access_for
from bench_spark.transports.amqp.control import NOT_FOUND, PRECONDITION_FAILED, Control, Refused
from bench_spark.transports.amqp.layout import layout_for
from bench_spark.transports.amqp.management import Management, quoted
from bench_spark.transports.base import Destination, TransportContext
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
        with Control(self._access) as control:
            found = _queues(control, names.queues)
            found += [
                Leftover("exchange", name, run_id)
                for name, run_id in names.exchanges.items()
                if _exists(control, spec.Exchange.Declare(exchange=name), name) is not None
            ]
        found += [Leftover("policy", name, run_id) for name, run_id in names.policies.items()]
        return with_their_runs(one for one in found if wanted.takes(one.run_id))

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        with Control(self._access) as control:
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


def _queues(control: Control, names: dict[str, str]) -> list[Leftover]:
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
            used_by = f"{consumers} consumer" + ("s" if consumers > 1 else "")
        elif now != state:
            used_by = "somebody who publishes to it"
        holds = f"{messages:,} message" + ("" if messages == 1 else "s")
        found.append(Leftover("queue", name, names[name], holds, used_by))
    return found


def _state(control: Control, queue: str) -> tuple[int, int] | None:
    """Messages and consumers of a queue; None if it is not there."""
    answer = _exists(control, spec.Queue.Declare(queue=queue), queue)
    return None if answer is None else (int(answer.message_count), int(answer.consumer_count))


def _exists(control: Control, request: Any, name: str) -> Any | None:
    try:
        return control.exists(request, f"{request.NAME.lower()} {name!r}")
    except Refused as refused:
        raise refused.error from refused


def _delete_unused(control: Control, one: Leftover) -> None:
    request: Any = spec.Exchange.Delete(exchange=one.name, if_unused=True)
    if one.kind == "queue":
        request = spec.Queue.Delete(queue=one.name, if_unused=True)
    try:
        control.ask(request, f"{one.kind}.delete {one.name!r}")
    except Refused as refused:
        if refused.code not in (NOT_FOUND, PRECONDITION_FAILED):
            raise refused.error from refused
