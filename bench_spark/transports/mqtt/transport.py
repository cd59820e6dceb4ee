"""The MQTT transport, made of access, topics and what sends and receives; and what is asked on a
connection of its own: what a broker is and can do, and what killed runs have left in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerRefused
from bench_spark.transports.base import (
    BrokerFacts,
    Consumers,
    Destination,
    Lane,
    Producers,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.leftovers import (
    WATCHED_SECONDS,
    KnownRun,
    Leftover,
    Wanted,
    with_their_runs,
)
from bench_spark.transports.mqtt import KIND, codec, packets, topics
from bench_spark.transports.mqtt.connection import (
    BrokerLimits,
    MqttAccess,
    MqttConnection,
    MqttProtocol,
    access_for,
    login_for,
)
from bench_spark.transports.mqtt.consumers import MqttReceiver, PublishReader, Routes
from bench_spark.transports.mqtt.packets import Login
from bench_spark.transports.mqtt.producers import MqttSender, PublishPackets
from bench_spark.transports.mqtt.topics import TopicNames, message_headers
from bench_spark.transports.sockets.buffers import Arrivals
from bench_spark.transports.sockets.lanes import SocketConsumers, SocketProducers
from bench_spark.transports.sockets.loop import Gathering, Loop, is_gathered
from bench_spark.transports.sockets.opening import ReopeningRule, close_gracefully, open_connections

VERSION_TOPIC = "$SYS/broker/version"
VERSION_SECONDS = 0.3
"""How long to wait for a broker to publish its version; many publish none."""
ECHO_SECONDS = 2.0
CLIENT_LIBRARY = "bench-spark's own MQTT"

_ROOT = "bench"
_IDENTIFIER = 1


@dataclass(frozen=True)
class PublishedMessage:
    topic: bytes
    is_retained: bool
    body: bytes


class _AnyTopic(Routes):
    """Takes messages of all topics, and says of which the last one was."""

    def __init__(self) -> None:
        super().__init__(())
        self.last = b""

    def of(self, topic: bytes) -> int | None:
        self.last = topic
        return 0


class _MessageKeeper(PublishReader):
    """Keeps messages of QoS 0 as they come."""

    def __init__(self, version: str, messages: list[PublishedMessage]) -> None:
        self._topic = _AnyTopic()
        self._kept = Arrivals(frozenset({Part.BODY}))
        super().__init__(version, 0, self._topic, self._kept)
        self._messages = messages

    def _collect(self, raw: bytearray, found: int, before: int) -> None:
        super()._collect(raw, found, before)
        # At most one: no topic is in the table, so the decoder stops at every message.
        for body in self._kept.take().bodies or ():
            is_retained = bool(self._numbers[codec.FIRST_BYTE] & packets.RETAIN)
            self._messages.append(PublishedMessage(self._topic.last, is_retained, body))


class MqttControl:
    def __init__(self, access: MqttAccess, login: Login) -> None:
        self._access = access
        self._version = login.version
        self._protocol = MqttProtocol(access, [login])
        self._loop = Loop()
        self._connection: MqttConnection | None = None
        self._answers: list[tuple[int, bytes]] = []
        self.messages: list[PublishedMessage] = []
        """What has arrived."""

    def __enter__(self) -> MqttControl:
        try:
            [self._connection] = open_connections(self._protocol, 1, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._connection.on_packet = lambda kind, body: self._answers.append((kind, body))
        self._connection.begin(_MessageKeeper(self._version, self.messages))
        return self

    def __exit__(self, *_: object) -> None:
        close_gracefully(self._loop, [self.connection])
        self._loop.close()

    @property
    def connection(self) -> MqttConnection:
        assert self._connection is not None
        return self._connection

    @property
    def limits(self) -> BrokerLimits:
        return self.connection.limits

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """The QoS granted, or the reason for none."""
        request = packets.subscribe(self._version, _IDENTIFIER, [topic_filter], qos)
        self._ask(request, f"subscription to {topic_filter!r}", lambda: self._answers)
        _, codes = packets.read_suback(self._version, self._answers.pop()[1])
        # What is neither a QoS nor a reason is as good as a refusal.
        return codes[0] if codes and not 2 < codes[0] < packets.FAILED else packets.FAILED

    def publish(self, message: bytes, what: str) -> None:
        """Send a message without an identifier, and wait until the broker has dealt with it."""
        before = self.connection.pings_answered
        self._ask(message + packets.PINGREQ, what, lambda: self.connection.pings_answered > before)

    def wait_for_message(self, timeout_seconds: float) -> bool:
        return self._loop.run_until(lambda: self.messages or self._has_ended, timeout_seconds) and (
            not self._has_ended
        )

    def listen(self, seconds: float) -> None:
        """Take what arrives in that time."""
        self._loop.run_until(lambda: self._has_ended, seconds)

    @property
    def _has_ended(self) -> bool:
        return self.connection.failure is not None

    def _ask(self, request: bytes, what: str, is_answered: Callable[[], object]) -> None:
        self.connection.send(request)
        self._loop.run_until(lambda: is_answered() or self._has_ended, self._access.timeout_seconds)
        if not is_answered():
            raise self.refusal(what)

    def refusal(self, what: str) -> BenchError:
        return self._protocol.refusal(self.connection, self.connection.failure, what)


def probe(
    access: MqttAccess, login: Login, scenario: Scenario, topic: str, group: str | None
) -> BrokerFacts:
    """What the broker is and can do; raises where it cannot do what the scenario asks.

    `login` and `topic` are nobody else's: other agents try the same at the same time.
    """
    with MqttControl(access, login) as control:
        _refuse_what_is_not_allowed(access, scenario, control.limits, group)
        product, version = _told_version(control)
    if scenario.producers:
        _try_size(access, login, scenario, topic)
    if scenario.consumers and scenario.mqtt.qos:
        _try_qos(access, login, scenario, topic)
    capabilities = {"confirms"} if scenario.mqtt.qos else set()
    if scenario.has_both_ends and group is not None:
        _try_group(access, login, topic)
        capabilities.add("shared_subscriptions")
    return BrokerFacts(
        product=product,
        version=version,
        platform=f"MQTT {login.version}",
        capabilities=frozenset(capabilities),
        client_library=CLIENT_LIBRARY,
    )


def _refuse_what_is_not_allowed(
    access: MqttAccess, scenario: Scenario, limits: BrokerLimits, group: str | None
) -> None:
    mqtt = scenario.mqtt
    wanted = mqtt.topic_filter or ""
    for key, is_missing, what in (
        ("qos", mqtt.qos > limits.qos, f"{mqtt.qos} is more than the broker has: {limits.qos}"),
        ("retain", mqtt.retain and not limits.has_retain, "the broker retains no messages"),
        (
            "shared_group",
            group is not None and limits.has_shared is False,
            "the broker has no shared subscriptions",
        ),
        (
            "topic_filter",
            not limits.has_wildcards and any(mark in wanted for mark in "+#"),
            "the broker has no wildcards in subscriptions",
        ),
    ):
        if is_missing:
            raise BrokerRefused(f"{access.address}: mqtt.{key}: {what}")


def _told_version(control: MqttControl) -> tuple[str, str]:
    """Product and version, as Mosquitto and others publish them in a topic."""
    if control.subscribe(VERSION_TOPIC) < packets.FAILED and control.wait_for_message(
        VERSION_SECONDS
    ):
        words = control.messages[0].body.decode("utf-8", "replace").split()
        if words:
            return words[0].capitalize(), words[-1]
    return "MQTT broker", "unknown"


def _try_size(access: MqttAccess, login: Login, scenario: Scenario, topic: str) -> None:
    """Publish a message as large as those of the load, which nobody gets: a broker for which it is
    too large closes the connection, and version 3.1.1 has no packet that names the reason."""
    size = scenario.largest_body_bytes
    headers = message_headers(scenario.mqtt)
    publish = PublishPackets(login.version, topic, qos=0, retain=False, headers=headers)
    message = publish.message(bytes(size))
    with MqttControl(access, login) as control:
        limit = control.limits.packet_bytes
        if limit is not None and len(message) > limit:
            raise BrokerRefused(
                f"{access.address}: message.bytes: {size} makes packets of {len(message)} bytes, "
                f"and the broker takes at most {limit}"
            )
        try:
            control.publish(message, f"a message of {size} bytes")
        except BenchError as error:
            raise BrokerRefused(
                f"message.bytes: {error}; is that more than the broker takes, or may nobody "
                f"publish to {topic!r}?"
            ) from error


def _try_qos(access: MqttAccess, login: Login, scenario: Scenario, topic: str) -> None:
    qos = scenario.mqtt.qos
    with MqttControl(access, login) as control:
        granted = control.subscribe(topic, qos)
    # Whoever may not subscribe here may still be allowed to where the load goes.
    if granted < qos:
        raise BrokerRefused(
            f"{access.address}: mqtt.qos: the broker grants QoS {granted} where {qos} is asked for"
        )


def _try_group(access: MqttAccess, login: Login, topic: str) -> None:
    """A broker that does not know groups may take `$share/...` for a topic like any other, and
    nothing would ever arrive."""
    with MqttControl(access, login) as control:
        granted = control.subscribe(f"$share/bench-probe/{topic}")
        if granted >= packets.FAILED:
            raise BrokerRefused(
                f"{access.address}: mqtt.shared_group: the broker refuses shared subscriptions: "
                f"{packets.reason(granted)}"
            )
        message = PublishPackets(login.version, topic, qos=0, retain=False).message(b"probe")
        control.publish(message, "a message to a shared subscription")
        if not control.wait_for_message(ECHO_SECONDS):
            raise BrokerRefused(
                f"{access.address}: mqtt.shared_group: the broker has no shared subscriptions: it "
                "accepts $share/..., and delivers nothing; several consumers of one destination "
                "need them"
            )


class MqttSweeper:
    """Finds retained messages and sessions that killed runs have left behind.

    A broker sends its retained messages to any subscriber. It lists sessions to no client, and
    asking for one by its client's name would take it over from whoever has it: so only sessions of
    runs that somebody has named are looked for.
    """

    def __init__(self, context: TransportContext) -> None:
        self._mqtt = context.scenario.mqtt
        self._access = access_for(context)

    def find(self, wanted: Wanted) -> list[Leftover]:
        """The first message of a topic is the retained one; what else comes, somebody publishes."""
        with MqttControl(self._access, self._login()) as control:
            control.subscribe(f"{_ROOT}/#")
            control.listen(WATCHED_SECONDS)
        retained: dict[str, int] = {}
        busy: set[str] = set()
        for message in control.messages:
            topic = message.topic.decode(errors="replace")
            if message.is_retained:
                retained[topic] = len(message.body)
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
        with MqttControl(self._access, self._login()) as control:
            for one in leftovers:
                if one.kind == "retained":
                    # An empty message takes the place of the one that is there.
                    empty = PublishPackets(self._mqtt.version, one.name, qos=0, retain=True)
                    control.publish(empty.message(b""), f"removing what {one.name!r} retains")
        for one in leftovers:
            if one.kind == "session":
                with MqttControl(self._access, self._login(one.name)):
                    pass  # a clean one, which ends with this connection, has taken its place

    def _login(self, client_id: str | None = None) -> Login:
        own = client_id or f"bench-cleanup-{secrets.token_hex(4)}"
        return login_for(self._access, self._mqtt, own)


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
                topics.client_id(mqtt, run.run_id, "consumer", member),
                run.run_id,
                "if the broker still has it",
                "somebody who publishes to it" if run.run_id in busy else "",
            )


class MqttTransport:
    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
        self._scenario = context.scenario
        self._mqtt = context.scenario.mqtt
        self._run_id = context.run_id
        self._attempt = context.attempt
        self._access = access_for(context)
        self._names = TopicNames(context.scenario, context.run_id)
        seconds = context.scenario.reconnect_seconds
        self._rule = ReopeningRule(seconds) if seconds else None

    def probe(self) -> BrokerFacts:
        own = f"probe-{secrets.token_hex(4)}"
        topic = f"bench/{self._run_id}/{own}"
        return probe(self._access, self._login(own, 0), self._scenario, topic, self._names.group)

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Topics need no making. Those of the run's own are its own to tidy up."""
        is_own = self._mqtt.topic is None
        return tuple(replace(one, declared=is_own) for one in self.find(destinations))

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Topics need no declaration, and MQTT cannot list them: all count as there."""
        return tuple(replace(one, name=self._names.topic(one.index)) for one in destinations)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        sender = MqttSender(self._mqtt, self._scenario.largest_body_bytes)
        logins = [self._login("producer", lane.member) for lane in lanes]
        protocol = MqttProtocol(self._access, logins)
        return SocketProducers(sender, protocol, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> Consumers:
        receiver = MqttReceiver(
            self._mqtt,
            self._names.subscription,
            Arrivals(want, self._scenario.most_arriving_bytes),
            empties_queue=not self._scenario.consumer.is_slow,
            forgetting=self._forgetting(lanes),
        )
        is_flowing = is_gathered(self._scenario, acknowledges=self._mqtt.qos > 0)
        logins = [self._consumer_login(lane.member) for lane in lanes]
        protocol = MqttProtocol(self._access, logins, Gathering() if is_flowing else None)
        own = self._names.consumer_lanes(lanes)
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
        with MqttControl(self._access, self._login("tidy", own[0].index)) as control:
            for one in own:
                packets = PublishPackets(self._mqtt.version, one.name or "", qos=0, retain=True)
                control.publish(packets.message(b""), f"removing what {one.name!r} retains")

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _login(self, role: str, member: int) -> Login:
        client_id = topics.client_id(self._mqtt, self._run_id, role, member, self._attempt)
        return login_for(self._access, self._mqtt, client_id)

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
