"""MQTT connections: logins and TLS, what a broker allows, and connections that are lost."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import run_load
from contract import (
    CLOCK,
    batch,
    collect,
    envelopes,
    eventually,
    exchanging,
    joined,
    numbered,
    open_transport,
    send_all,
    signals_until,
)
from own_mosquitto import OwnMosquitto, mosquitto_with
from proxy import Proxy, proxied

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker, Tls
from bench_spark.config.models import Scenario
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    LoginRefused,
)
from bench_spark.plan import make_plan
from bench_spark.transports.base import Destination, Signal, SignalKind
from bench_spark.transports.batches import OutcomeKind

VERSIONS = ("3.1.1", "5")
USER, PASSWORD = "anna", "opensesame"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
        send_all(producers, batch(envelopes(3)), expected_outcomes=3)
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
            send_all(producers, batch(envelopes(20)), expected_outcomes=20)
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
        made = envelopes(300)
        with exchanging(transport) as (producers, consumers):
            settled = send_all(producers, batch(made, body_bytes=5000), expected_outcomes=300)
            parts = collect(consumers, 300)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 300
    assert np.array_equal(joined(parts, "envelope"), made)


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
            assert producers.send(batch(envelopes(100))) <= 5
            settled = send_all(producers, batch(envelopes(100, first=5)), expected_outcomes=105)
            collect(consumers, 105)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 105


@pytest.mark.parametrize(
    ("keys", "error", "problem"),
    [
        # It closes the connection without a reason.
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
        send_all(producers, batch(envelopes(20)), expected_outcomes=20)
        collect(consumers, 20)
        proxy.cut()
        told = signals_until(SignalKind.REOPENED, producers, consumers)
        kinds = [(one.kind, one.generation, one.is_reopening) for one in told]
        assert kinds == [(SignalKind.LOST, 0, True), (SignalKind.REOPENED, 1, False)] * 2
        settled = send_all(producers, batch(envelopes(30, first=20)), expected_outcomes=30)
        assert settled.kinds == [OutcomeKind.CONFIRMED] * 30
        parts = collect(consumers, 30)
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(20, 50))


def test_unacknowledged_messages_of_a_lost_connection_are_unknown(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, mqtt={"qos": 1})
    with exchanging(transport) as (producers, _):
        proxy.is_mute = True
        accepted = producers.send(batch(envelopes(10)))
        assert accepted == producers.in_flight() == 10
        proxy.cut()
        proxy.is_mute = False
        signals_until(SignalKind.REOPENED, producers)
        outcomes = producers.outcomes()
        assert set(outcomes.kind.tolist()) == {OutcomeKind.UNKNOWN}
        assert outcomes.envelope["sequence"].tolist() == list(range(10))
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
        # Mosquitto closes the connection of a client silent for one and a half times that long.
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert len(consumers.receive(0.1)) == 0
            assert consumers.signals() == []
            assert producers.signals() == []
        send_all(producers, batch(envelopes(1)))
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
            producers.send(batch(envelopes(1, first=next(sequence))))
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
    assert accounts.received_once > 100
