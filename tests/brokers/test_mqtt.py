"""What is particular to MQTT, on real brokers, and together with clients that are not ours."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import pytest
from agents import run_load
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    batch,
    collect,
    consuming,
    declared,
    eventually,
    exchanging,
    heads,
    joined,
    numbered,
    open_transport,
    producing,
    send_all,
)
from paho.mqtt.enums import CallbackAPIVersion
from proxy import Proxy, proxied
from tls_files import self_signed

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.brokers.base import free_ports
from bench_spark.brokers.mosquitto import installed_program
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    EnvironmentNotReady,
    LoginRefused,
)
from bench_spark.plan import make_plan
from bench_spark.scenario.broker import Broker, Tls
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import (
    Consumers,
    Destination,
    OutcomeKind,
    Producers,
    Signal,
    SignalKind,
)

VERSIONS = ("3.1.1", "5")
USER, PASSWORD = "anna", "opensesame"

_topics = itertools.count()


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic() -> str:
    return f"test/{time.time_ns()}/{next(_topics)}"


class OwnMosquitto:
    """A Mosquitto with settings of one test."""

    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        self._directory = directory
        [self.port] = free_ports(1)
        # Started by root it would become another user, who may not read the files of a test.
        user = f"user {getpass.getuser()}"
        lines = [user, f"listener {self.port} 127.0.0.1", "log_dest none", *settings]
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def broker(self) -> Broker:
        return Broker(name="own", kind="mqtt", uri=f"mqtt://127.0.0.1:{self.port}")

    def start(self) -> None:
        try:
            program = installed_program()
        except EnvironmentNotReady as missing:
            pytest.skip(str(missing))
        self._process = subprocess.Popen([program, "-c", self._directory / "mosquitto.conf"])
        assert eventually(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def mosquitto_with(directory: Path, *settings: str) -> Iterator[OwnMosquitto]:
    own = OwnMosquitto(directory, settings)
    own.start()
    try:
        yield own
    finally:
        own.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


# -- quality of service ----------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_message_arrives_once_and_is_confirmed_from_qos_1_on(
    mosquitto_broker: Broker, version: str, qos: int
) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"version": version, "qos": qos})
    assert transport.confirms is (qos > 0)
    made = heads(3000)
    with exchanging(transport) as (producers, consumers):
        outcomes = 3000 if qos else 0
        settled = send_all(producers, batch(made, body_bytes=200), expected_outcomes=outcomes)
        parts = collect(consumers, 3000)
        assert producers.in_flight() == 0
        assert producers.signals() == consumers.signals() == []
    assert settled.kinds == [OutcomeKind.CONFIRMED] * outcomes
    assert np.array_equal(joined(parts, "head"), made)
    assert not joined(parts, "redelivered").any()


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_are_used_again_and_again(mosquitto_broker: Broker, qos: int) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"qos": qos, "in_flight": 3})
    with exchanging(transport) as (producers, consumers):
        settled = send_all(producers, batch(heads(500)), expected_outcomes=500)
        collect(consumers, 500)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 500


@pytest.mark.parametrize("qos", [1, 2])
def test_more_messages_than_there_are_identifiers_arrive_once(
    mosquitto_broker: Broker, version: str, qos: int
) -> None:
    mqtt = {"version": version, "qos": qos, "in_flight": 1000}
    load = {"mode": "maximum", "messages": 70_000}
    scenario = Scenario.model_validate(
        {
            "mqtt": mqtt,
            "load": load,
            "message": {"bytes": 32},
            "phases": {"warmup_seconds": 0, "measure_seconds": 60},
        }
    )
    done = run_load(make_plan(scenario, f"many-{version}-{qos}"), mosquitto_broker)
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once, accounts.lost) == (70_000, 70_000, 0)
    assert done.total(PRODUCER, "confirmed") == 70_000
    assert done.total(CONSUMER, "acked") == 70_000
    assert done.total(CONSUMER, "duplicates") == 0


def test_what_a_consumer_has_not_acknowledged_comes_again_and_is_marked(
    mosquitto_broker: Broker, topic: str
) -> None:
    with proxied(mosquitto_broker) as (proxy, broker):
        mqtt = {"qos": 1, "clean_session": False, "topic": topic}
        transport = open_transport(broker, mqtt=mqtt)
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(heads(5)), expected_outcomes=5)
            collect(consumers, 5, acknowledge=False)
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers)
            parts = collect(consumers, 5)
    assert joined(parts, "redelivered").all()
    assert sorted(joined(parts, "head")["sequence"].tolist()) == list(range(5))


def test_exactly_once_is_kept_when_a_connection_is_lost_between_message_and_acknowledgement(
    mosquitto_broker: Broker, topic: str
) -> None:
    with proxied(mosquitto_broker) as (proxy, broker):
        transport = open_transport(
            broker, mqtt={"qos": 2, "clean_session": False, "topic": topic, "version": "5"}
        )
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(heads(5)), expected_outcomes=5)
            collect(consumers, 5, acknowledge=False)
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers, producers)
            send_all(producers, batch(heads(1, first=5)), expected_outcomes=1)
            parts = collect(consumers, 1)
    assert joined(parts, "head")["sequence"].tolist() == [5]


def test_a_session_keeps_messages_while_a_consumer_is_away_and_ends_with_the_run(
    mosquitto_broker: Broker, version: str, topic: str
) -> None:
    mqtt = {"version": version, "qos": 1, "clean_session": False, "topic": topic}
    run_id = f"session-{topic.replace('/', '-')}"
    with proxied(mosquitto_broker) as (proxy, broker):
        away = open_transport(broker, run_id, mqtt=mqtt)
        here = open_transport(mosquitto_broker, mqtt=mqtt)
        [made] = here.declare([Destination(0)])
        with consuming(away, [made]) as consumers, producing(here, [made]) as producers:
            proxy.shut()
            proxy.cut()
            assert eventually(lambda: consumers.signals())
            send_all(producers, batch(heads(7)), expected_outcomes=7)
            proxy.open()
            signals_until(SignalKind.REOPENED, consumers)
            parts = collect(consumers, 7)
    assert joined(parts, "head")["sequence"].tolist() == list(range(7))
    with producing(here, [made]) as producers:
        send_all(producers, batch(heads(1)), expected_outcomes=1)
    with consuming(open_transport(mosquitto_broker, run_id, mqtt=mqtt), [made]) as consumers:
        assert len(consumers.receive(0.3)) == 0


# -- topics ----------------------------------------------------------------------------------------


def test_a_retained_message_reaches_who_subscribes_later_and_is_removed_in_the_end(
    mosquitto_broker: Broker, version: str
) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"version": version, "retain": True})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(3)))
        with consuming(transport, made) as consumers:
            parts = collect(consumers, 1)
        assert joined(parts, "head")["sequence"].tolist() == [2]
    with consuming(transport, made) as consumers:
        assert len(consumers.receive(0.3)) == 0


def test_a_group_divides_what_others_get_in_full(
    mosquitto_broker: Broker, version: str, topic: str
) -> None:
    mqtt = {"version": version, "topic": topic, "shared_group": "team"}
    transport = open_transport(mosquitto_broker, mqtt=mqtt)
    with foreign_subscriber(mosquitto_broker, topic) as bodies:
        with exchanging(transport, consumer_lanes=2) as (producers, consumers):
            send_all(producers, batch(heads(100)))
            parts = collect(consumers, 100)
        assert eventually(lambda: len(bodies) == 100)
    assert set(joined(parts, "lane").tolist()) == {0, 1}


def test_filters_with_wildcards_tell_routes_apart(mosquitto_broker: Broker, topic: str) -> None:
    mqtt = {"topic": f"{topic}/%d/value", "topic_filter": f"{topic}/%d/+"}
    transport = open_transport(
        mosquitto_broker, producers=2, consumers=2, destinations=2, mqtt=mqtt
    )
    with declared(transport, 2) as made:
        routes = [0, 1, 1, 0]
        with consuming(transport, made) as consumers, producing(transport, made) as producers:
            send_all(producers, batch(heads(4, producer=routes), route=routes))
            parts = collect(consumers, 4)
    assert np.array_equal(joined(parts, "route"), joined(parts, "head")["producer"])


# -- clients that are not ours ---------------------------------------------------------------------


@contextmanager
def foreign_client(broker: Broker) -> Iterator[paho.Client]:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def foreign_subscriber(broker: Broker, topic: str, qos: int = 0) -> Iterator[list[bytes]]:
    """What a plain paho client is sent."""
    bodies: list[bytes] = []
    subscribed = threading.Event()
    with foreign_client(broker) as client:
        client.on_message = lambda client, data, message: bodies.append(message.payload)
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe(topic, qos)
        assert subscribed.wait(PATIENCE_SECONDS)
        yield bodies


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_reads_the_send_time_of_our_messages(
    mosquitto_broker: Broker, version: str, topic: str, qos: int
) -> None:
    transport = open_transport(
        mosquitto_broker, mqtt={"version": version, "qos": qos, "topic": topic}
    )
    made = heads(50)
    with (
        foreign_subscriber(mosquitto_broker, topic, qos) as bodies,
        producing(transport, transport.find([Destination(0)])) as producers,
    ):
        send_all(producers, batch(made, body_bytes=100), expected_outcomes=50 if qos else 0)
        assert eventually(lambda: len(bodies) == 50)
    assert [struct.unpack_from("<Q", body)[0] for body in bodies] == made["sent_ns"].tolist()
    assert {len(body) for body in bodies} == {100}


def test_mosquitto_sub_reads_the_send_time_of_our_messages(
    mosquitto_broker: Broker, topic: str
) -> None:
    program = shutil.which("mosquitto_sub")
    if program is None:
        pytest.skip("mosquitto_sub is not installed; install mosquitto-clients")
    address = ["-h", mosquitto_broker.host, "-p", str(mosquitto_broker.port)]
    transport = open_transport(mosquitto_broker, mqtt={"topic": topic, "retain": True})
    made = heads(1)
    with producing(transport, transport.find([Destination(0)])) as producers:
        send_all(producers, batch(made, body_bytes=40))
    command = [program, *address, "-t", topic, "-C", "1", "-W", "10", "-F", "%x"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    body = bytes.fromhex(printed.stdout.strip())
    assert struct.unpack_from("<Q", body)[0] == made["sent_ns"][0]
    assert len(body) == 40


def test_a_foreign_publishers_messages_are_measured_in_a_run_that_only_consumes(
    mosquitto_broker: Broker, topic: str
) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 0,
            "load": {"messages": 200},
            "message": {"timestamped": True},
            "phases": {"warmup_seconds": 0, "measure_seconds": 20, "drain_seconds": 2},
            "mqtt": {"topic": topic, "qos": 1},
        }
    )

    def publish(_load: Any) -> None:
        with foreign_client(mosquitto_broker) as client:
            for _ in range(200):
                sent = client.publish(topic, struct.pack("<Q", CLOCK.now_ns()), qos=1)
            sent.wait_for_publish(PATIENCE_SECONDS)

    done = run_load(make_plan(scenario, "foreign"), mosquitto_broker, meanwhile=publish)
    assert [result.failure for result in done.results] == [None]
    assert done.total(CONSUMER, "received") == 200
    latency = done.histogram("latency")
    assert latency.count == 200
    assert 0 < (latency.mean_us or 0) < PATIENCE_SECONDS * 1e6


# -- logging in ------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[OwnMosquitto]:
    """A broker that wants a password."""
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords = tmp_path / "passwords"
    subprocess.run([program, "-b", "-c", passwords, USER, PASSWORD], check=True)
    passwords.chmod(0o644)
    with mosquitto_with(tmp_path, "allow_anonymous false", f"password_file {passwords}") as own:
        yield own


def test_a_user_and_password_open_the_door(guarded: OwnMosquitto, version: str) -> None:
    uri = f"mqtt://{USER}:{PASSWORD}@127.0.0.1:{guarded.port}"
    transport = open_transport(Broker(kind="mqtt", uri=uri), mqtt={"version": version, "qos": 1})
    transport.probe()
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(3)), expected_outcomes=3)
        collect(consumers, 3)


RIGHTS = f"""
user {USER}
topic readwrite bench/#
topic read $SYS/broker/version
"""


def test_a_user_needs_no_more_rights_than_documented(tmp_path: Path, version: str) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert RIGHTS.partition(USER)[2] in documented
    rights = tmp_path / "rights"
    rights.write_text(RIGHTS)
    rights.chmod(0o644)
    with mosquitto_with(tmp_path, "allow_anonymous true", f"acl_file {rights}") as own:
        uri = f"mqtt://{USER}:any@127.0.0.1:{own.port}"
        keys = {"version": version, "qos": 1, "retain": True}
        transport = open_transport(Broker(kind="mqtt", uri=uri), consumers=2, mqtt=keys)
        assert transport.probe().version != "unknown"
        with exchanging(transport, consumer_lanes=2) as (producers, consumers):
            send_all(producers, batch(heads(20)), expected_outcomes=20)
            collect(consumers, 20)


@pytest.mark.parametrize("user", [f"{USER}:wrong-secret@", ""])
@pytest.mark.fault(case=5)
def test_a_wrong_password_is_named_with_host_and_port_and_not_shown(
    guarded: OwnMosquitto, version: str, user: str
) -> None:
    broker = Broker(kind="mqtt", uri=f"mqtt://{user}127.0.0.1:{guarded.port}")
    with pytest.raises(LoginRefused, match=f"127.0.0.1:{guarded.port}: user") as caught:
        open_transport(broker, mqtt={"version": version}).probe()
    assert "not authorized" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


def test_messages_travel_over_tls(
    tmp_path: Path, certificate: tuple[Path, Path], version: str
) -> None:
    made_by, key = certificate
    key.chmod(0o644)
    settings = ("allow_anonymous true", f"certfile {made_by}", f"keyfile {key}")
    with mosquitto_with(tmp_path, *settings) as own:
        uri = f"mqtts://127.0.0.1:{own.port}"
        with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{own.port}: TLS: certificate"):
            open_transport(Broker(kind="mqtt", uri=uri)).probe()
        open_transport(Broker(kind="mqtt", uri=uri, tls=Tls(insecure=True))).probe()
        trusting = Tls(ca_file=str(made_by), server_name="localhost")
        broker = Broker(kind="mqtt", uri=uri, tls=trusting)
        transport = open_transport(broker, mqtt={"version": version, "qos": 1})
        made = heads(300)
        with exchanging(transport) as (producers, consumers):
            settled = send_all(producers, batch(made, body_bytes=5000), expected_outcomes=300)
            parts = collect(consumers, 300)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 300
    assert np.array_equal(joined(parts, "head"), made)


# -- limits of brokers -----------------------------------------------------------------------------


def test_a_message_larger_than_the_brokers_limit_is_named_before_the_load(
    tmp_path: Path, version: str
) -> None:
    with mosquitto_with(tmp_path, "allow_anonymous true", "max_packet_size 2000") as own:
        mqtt = {"version": version}
        open_transport(own.broker, mqtt=mqtt, message={"bytes": 1000}).probe()
        too_large = open_transport(own.broker, mqtt=mqtt, message={"bytes": 3000})
        with pytest.raises(BrokerRefused, match=r"message\.bytes: .*3000") as caught:
            too_large.probe()
        assert f"127.0.0.1:{own.port}" in str(caught.value)
        if version == "5":
            assert "at most 2000" in str(caught.value)
            with pytest.raises(BrokerRefused, match="at most 2000"):
                too_large.open_producers(numbered([too_large.find([Destination(0)])]), CLOCK.now_ns)


def test_a_broker_of_version_5_that_allows_fewer_in_flight_has_its_way(tmp_path: Path) -> None:
    settings = ("allow_anonymous true", "max_inflight_messages 5")
    with mosquitto_with(tmp_path, *settings) as own:
        transport = open_transport(own.broker, mqtt={"version": "5", "qos": 2, "in_flight": 500})
        with exchanging(transport) as (producers, consumers):
            assert producers.send(batch(heads(100))) <= 5
            settled = send_all(producers, batch(heads(100, first=5)), expected_outcomes=105)
            collect(consumers, 105)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 105


@pytest.mark.parametrize(
    ("keys", "error", "problem"),
    [
        # It hangs up without a word.
        ({"mqtt": {"version": "5"}}, BrokerUnreachable, "wrong protocol version"),
        ({"mqtt": {"qos": 2}}, BrokerRefused, "mqtt.qos: the broker grants QoS 1"),
        ({"consumers": 2}, BrokerRefused, "mqtt.shared_group: the broker has no shared"),
    ],
)
def test_what_rabbitmq_lacks_is_named(
    rabbitmq_mqtt_broker: Broker, keys: dict[str, Any], error: type[BenchError], problem: str
) -> None:
    with pytest.raises(error, match=problem) as caught:
        open_transport(rabbitmq_mqtt_broker, **keys).probe()
    assert str(rabbitmq_mqtt_broker.port) in str(caught.value)


# -- lost connections ------------------------------------------------------------------------------


def signals_until(kind: SignalKind, *sides: Producers | Consumers) -> list[Signal]:
    """All signals of these until each has given one of this kind."""
    found: dict[int, list[Signal]] = {number: [] for number in range(len(sides))}

    def is_told() -> bool:
        for number, side in enumerate(sides):
            found[number] += side.signals()
        return all(any(one.kind is kind for one in told) for told in found.values())

    assert eventually(is_told), found
    return [one for told in found.values() for one in told]


@pytest.fixture
def way(mosquitto_broker: Broker) -> Iterator[tuple[Proxy, Broker]]:
    with proxied(mosquitto_broker) as found:
        yield found


def test_both_ends_come_back_as_a_new_generation_and_carry_messages(
    way: tuple[Proxy, Broker], version: str
) -> None:
    proxy, broker = way
    transport = open_transport(broker, mqtt={"version": version, "qos": 1})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(20)), expected_outcomes=20)
        collect(consumers, 20)
        proxy.cut()
        told = signals_until(SignalKind.REOPENED, producers, consumers)
        kinds = [(one.kind, one.generation, one.is_reopening) for one in told]
        assert kinds == [(SignalKind.LOST, 0, True), (SignalKind.REOPENED, 1, False)] * 2
        settled = send_all(producers, batch(heads(30, first=20)), expected_outcomes=30)
        assert settled.kinds == [OutcomeKind.CONFIRMED] * 30
        parts = collect(consumers, 30)
    assert joined(parts, "head")["sequence"].tolist() == list(range(20, 50))


def test_unacknowledged_messages_of_a_lost_connection_are_unknown(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, mqtt={"qos": 1})
    with exchanging(transport) as (producers, _):
        proxy.is_mute = True
        accepted = producers.send(batch(heads(10)))
        assert accepted == producers.in_flight() == 10
        proxy.cut()
        proxy.is_mute = False
        signals_until(SignalKind.REOPENED, producers)
        outcomes = producers.outcomes()
        assert set(outcomes.kind.tolist()) == {OutcomeKind.UNKNOWN}
        assert outcomes.head["sequence"].tolist() == list(range(10))
        assert producers.in_flight() == 0


def test_a_lane_that_stays_away_too_long_is_lost_for_good(way: tuple[Proxy, Broker]) -> None:
    proxy, broker = way
    transport = open_transport(broker, reconnect_seconds=0.5)
    with exchanging(transport) as (producers, _):
        proxy.shut()
        proxy.cut()
        told: list[Signal] = []

        def is_given_up() -> bool:
            told.extend(producers.signals())
            return any(not one.is_reopening for one in told)

        assert eventually(is_given_up)
        assert "not reopened within 0.5 s" in told[-1].reason


def test_a_connection_without_traffic_is_kept_alive(mosquitto_broker: Broker, version: str) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"version": version, "keep_alive_seconds": 1})
    with exchanging(transport) as (producers, consumers):
        # Mosquitto hangs up on a client it has not heard for one and a half times that long.
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert len(consumers.receive(0.1)) == 0
            assert consumers.signals() == []
            assert producers.signals() == []
        send_all(producers, batch(heads(1)))
        collect(consumers, 1)


def test_a_broker_that_answers_no_ping_is_lost(way: tuple[Proxy, Broker]) -> None:
    proxy, broker = way
    transport = open_transport(broker, reconnect_seconds=0, mqtt={"keep_alive_seconds": 1})
    with exchanging(transport) as (producers, consumers):
        proxy.is_mute = True
        sequence = itertools.count()
        reasons: dict[str, str] = {}

        def are_lost() -> bool:
            # Whoever only publishes hears nothing unless it asks.
            producers.send(batch(heads(1, first=next(sequence))))
            for side, of in (("producer", producers), ("consumer", consumers)):
                for one in of.signals():
                    reasons[side] = one.reason
            return len(reasons) == 2

        assert eventually(are_lost)
        assert all("no sign of life" in reason for reason in reasons.values()), reasons
        proxy.is_mute = False


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.fault(case=1)
def test_a_load_survives_a_broker_that_is_killed_and_comes_back(tmp_path: Path, qos: int) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 2,
            "consumers": 2,
            "destinations": 2,
            "load": {"rate_per_second": 500},
            "phases": {"warmup_seconds": 0, "measure_seconds": 2, "drain_seconds": 1},
            "mqtt": {"qos": qos},
        }
    )
    with mosquitto_with(tmp_path, "allow_anonymous true") as own:

        def interrupt(_load: Any) -> None:
            time.sleep(0.5)
            own.kill()
            time.sleep(0.3)
            own.start()

        done = run_load(make_plan(scenario, f"killed-{qos}"), own.broker, meanwhile=interrupt)
    assert [result.failure for result in done.results] == [None]
    assert done.total(PRODUCER, "reconnects") == done.total(CONSUMER, "reconnects") == 2
    accounts = done.accounts()
    assert accounts.sent == 1000
    assert accounts.received_once > 500


# -- many lanes ------------------------------------------------------------------------------------


def test_one_agent_drives_a_thousand_connections(mosquitto_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 500,
            "consumers": 500,
            "destinations": 500,
            "load": {"rate_per_second": 1000},
            "phases": {"warmup_seconds": 0, "measure_seconds": 2},
            "mqtt": {"qos": 1},
        }
    )
    before = threading.active_count()
    most = before

    def watch(_load: Any) -> None:
        nonlocal most
        most = threading.active_count()

    done = run_load(make_plan(scenario, "thousand"), mosquitto_broker, meanwhile=watch)
    assert most < before + 20, "a thread per connection?"
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once, accounts.lost) == (2000, 2000, 0)
    assert done.total(PRODUCER, "confirmed") == 2000


def test_slow_consumers_take_their_time(mosquitto_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {
            "load": {"rate_per_second": 200, "messages": 200},
            "consumer": {"rate_per_second": 100},
            "phases": {"warmup_seconds": 0, "drain_seconds": 5},
            "mqtt": {"qos": 1},
        }
    )
    done = run_load(make_plan(scenario, "slow"), mosquitto_broker)
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once) == (200, 200)
    assert (done.histogram("latency").mean_us or 0) > 200_000
