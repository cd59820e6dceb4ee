"""Retained messages and sessions that killed runs have left behind.

A broker tells its retained messages to whoever subscribes. It tells nobody of sessions, and asking
for one by its client's name would take it over from whoever has it: so only sessions of runs that
somebody has named are looked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from bench_spark.transports.base import TransportContext
from bench_spark.transports.leftovers import (
    WATCHED_SECONDS,
    KnownRun,
    Leftover,
    Wanted,
    with_their_runs,
)
from bench_spark.transports.mqtt import naming
from bench_spark.transports.mqtt.control import Control
from bench_spark.transports.mqtt.packets import RETAIN, Login
from bench_spark.transports.mqtt.protocol import access_for
from bench_spark.transports.mqtt.publishing import PublishPackets

_ROOT = "bench"


class MqttSweeper:
    def __init__(self, context: TransportContext) -> None:
        self._mqtt = context.scenario.mqtt
        self._access = access_for(context)

    def find(self, wanted: Wanted) -> list[Leftover]:
        """The first message of a topic is the retained one; what else comes, somebody publishes."""
        with Control(self._access, self._login()) as control:
            control.subscribe(f"{_ROOT}/#")
            control.listen(WATCHED_SECONDS)
        retained: dict[str, int] = {}
        busy: set[str] = set()
        for message in control.messages:
            topic = message.topic.decode(errors="replace")
            if message.first_byte & RETAIN:
                retained[topic] = message.size
            else:
                busy.add(_run_of(topic))
        found = [
            Leftover(
                "retained",
                topic,
                _run_of(topic),
                f"{size:,} bytes",
                "somebody who publishes to it" if _run_of(topic) in busy else "",
            )
            for topic, size in retained.items()
        ]
        if wanted.is_narrow:
            found += _sessions(wanted.known, busy)
        return with_their_runs(one for one in found if one.run_id and wanted.takes(one.run_id))

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        with Control(self._access, self._login()) as control:
            for one in leftovers:
                if one.kind == "retained":
                    # An empty message takes the place of the one that is there.
                    packets = PublishPackets(self._mqtt.version, one.name, qos=0, retain=True)
                    control.publish(packets.message(b""), f"removing what {one.name!r} retains")
        for one in leftovers:
            if one.kind == "session":
                with Control(self._access, self._login(one.name)):
                    pass  # a clean one, which ends with this connection, has taken its place

    def _login(self, client_id: str | None = None) -> Login:
        return Login(
            version=self._mqtt.version,
            client_id=client_id or f"bench-cleanup-{secrets.token_hex(4)}",
            username=self._access.username,
            password=self._access.password,
            keep_alive_seconds=self._mqtt.keep_alive_seconds,
        )


def _run_of(topic: str) -> str:
    levels = topic.split("/")
    return levels[1] if len(levels) > 2 and levels[0] == _ROOT else ""


def _sessions(known: Sequence[KnownRun], busy: set[str]) -> Iterable[Leftover]:
    for run in known:
        mqtt = run.scenario.mqtt
        if mqtt.clean_session:
            continue
        for member in range(run.scenario.consumers):
            yield Leftover(
                "session",
                naming.client_id(mqtt, run.run_id, "consumer", member),
                run.run_id,
                "if the broker still has it",
                "somebody who publishes to it" if run.run_id in busy else "",
            )
