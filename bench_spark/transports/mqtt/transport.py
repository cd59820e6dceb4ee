"""The MQTT transport: puts access, topics and the data plane together."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import (
    BrokerFacts,
    Consumers,
    Destination,
    Lane,
    Producers,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import HEAD_ONLY, Part
from bench_spark.transports.mqtt import KIND, topics
from bench_spark.transports.mqtt.connection import MqttProtocol, access_for
from bench_spark.transports.mqtt.consumers import MqttReceiver
from bench_spark.transports.mqtt.control import Control, probe
from bench_spark.transports.mqtt.packets import Login
from bench_spark.transports.mqtt.producers import MqttSender, PublishPackets
from bench_spark.transports.mqtt.topics import Layout
from bench_spark.transports.sockets.buffers import Arrivals
from bench_spark.transports.sockets.lanes import SocketConsumers, SocketProducers
from bench_spark.transports.sockets.loop import Gathering, is_gathered
from bench_spark.transports.sockets.reopening import ReopeningRule


class MqttTransport:
    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
        self._scenario = context.scenario
        self._mqtt = context.scenario.mqtt
        self._run_id = context.run_id
        self._attempt = context.attempt
        self._access = access_for(context)
        self._layout = Layout(context.scenario, context.run_id)
        seconds = context.scenario.reconnect_seconds
        self._rule = ReopeningRule(seconds, _nothing_to_restore) if seconds else None

    def probe(self) -> BrokerFacts:
        own = f"probe-{secrets.token_hex(4)}"
        topic = f"bench/{self._run_id}/{own}"
        return probe(self._access, self._login(own, 0), self._scenario, topic, self._layout.group)

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Topics need no making. Those of the run's own are its own to tidy up."""
        is_own = self._mqtt.topic is None
        return tuple(replace(one, declared=is_own) for one in self.find(destinations))

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Topics need no declaration, and MQTT cannot list them: all count as there."""
        return tuple(replace(one, name=self._layout.topic(one.index)) for one in destinations)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        sender = MqttSender(self._mqtt, self._scenario.largest_body_bytes)
        logins = [self._login("producer", lane.member) for lane in lanes]
        protocol = MqttProtocol(self._access, logins)
        return SocketProducers(sender, protocol, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> Consumers:
        receiver = MqttReceiver(
            self._mqtt,
            self._layout.subscription,
            Arrivals(want, self._scenario.most_arriving_bytes),
            empties_queue=not self._scenario.consumer.is_slow,
            forgetting=self._forgetting(lanes),
        )
        is_flowing = is_gathered(self._scenario, acknowledges=self._mqtt.qos > 0)
        logins = [self._consumer_login(lane.member) for lane in lanes]
        protocol = MqttProtocol(self._access, logins, Gathering() if is_flowing else None)
        own = self._layout.consumer_lanes(lanes)
        return SocketConsumers(receiver, protocol, own, now_ns, self._rule)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """A topic keeps nothing, and what a broker had for a consumer was fetched when that one
        detached; unless it was slow on purpose, and then nobody knows."""
        is_unknown = self._mqtt.qos > 0 and self._scenario.consumer.is_slow
        return tuple(None if is_unknown else 0 for _ in subscriptions)

    def delete(self, destinations: Sequence[Destination]) -> None:
        """Only a retained message can be there: an empty one takes its place."""
        own = [one for one in destinations if one.declared]
        if not self._mqtt.retain or not own:
            return
        with Control(self._access, self._login("tidy", own[0].index)) as control:
            for one in own:
                packets = PublishPackets(self._mqtt.version, one.name or "", qos=0, retain=True)
                control.publish(packets.message(b""), f"removing what {one.name!r} retains")

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _login(self, role: str, member: int) -> Login:
        return Login(
            version=self._mqtt.version,
            client_id=topics.client_id(self._mqtt, self._run_id, role, member, self._attempt),
            username=self._access.username,
            password=self._access.password,
            keep_alive_seconds=self._mqtt.keep_alive_seconds,
        )

    def _forgetting(self, lanes: Sequence[Lane]) -> MqttProtocol | None:
        # In version 5 DISCONNECT itself ends the session.
        if self._mqtt.clean_session or self._mqtt.version == "5":
            return None
        return MqttProtocol(self._access, [self._login("consumer", lane.member) for lane in lanes])

    def _consumer_login(self, member: int) -> Login:
        login = replace(self._login("consumer", member), receive_maximum=self._mqtt.in_flight)
        if self._mqtt.clean_session:
            return login
        return replace(
            login,
            is_clean=False,
            session_expiry_seconds=self._mqtt.session_expiry_seconds,
        )


def _nothing_to_restore(destinations: Sequence[Destination]) -> None:
    """Topics cannot be forgotten."""
