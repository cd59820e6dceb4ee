"""A Kafka that asks for a login over TLS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import batch, collect, envelopes, exchanging, free_port, open_transport, send_all
from tls_files import self_signed

from bench_spark.brokers.base import end, last_lines, spawn
from bench_spark.brokers.kafka import KafkaRecipe
from bench_spark.config.broker import Broker, Tls
from bench_spark.errors import BrokerUnreachable, LoginRefused

START_SECONDS = 60.0


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka that asks for a login over TLS, with a certificate of its own making."""
    directory = tmp_path_factory.mktemp("guarded")
    certificate, key = self_signed(directory, "127.0.0.1", "IP:127.0.0.1")
    (directory / "server.pem").write_text(key.read_text() + certificate.read_text())
    ports = {name: free_port() for name in ("client", "controller", "guarded")}
    (command,) = KafkaRecipe().prepare(directory, ports, say=lambda _: None)
    with (directory / "server.properties").open("a") as settings:
        settings.write(guarded_listener(directory, ports))
    process = spawn(command, directory, directory / "log")
    try:
        started = time.monotonic()
        while not KafkaRecipe().answers(ports):
            assert time.monotonic() - started < START_SECONDS, last_lines(directory / "log")
            time.sleep(0.1)
        yield Broker(
            name="guarded",
            kind="kafka",
            bootstrap_servers=f"127.0.0.1:{ports['guarded']}",
            username="anna",
            password_env="KAFKA_TEST_PASSWORD",
            tls=Tls(ca_file=str(certificate)),
        )
    finally:
        end(process, patience_seconds=5)


def guarded_listener(directory: Path, ports: dict[str, int]) -> str:
    plain = f"PLAINTEXT://127.0.0.1:{ports['client']}"
    guarded = f"SASL_SSL://127.0.0.1:{ports['guarded']}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return (
        f"listeners={plain},{guarded},CONTROLLER://127.0.0.1:{ports['controller']}\n"
        f"advertised.listeners={plain},{guarded}\n"
        "listener.security.protocol.map="
        "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN\n"
        f'listener.name.sasl_ssl.plain.sasl.jaas.config={login} user_anna="opensesame";\n'
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={directory / 'server.pem'}\n"
    )


def test_a_login_over_tls_carries_the_load(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "opensesame")
    transport = open_transport(guarded_broker)
    assert transport.probe().version != "unknown"
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(100)), expected_outcomes=100)
        collect(consumers, 100)


@pytest.mark.fault(case=5)
def test_a_wrong_password_names_the_user_and_stays_secret(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "swordfish")
    with pytest.raises(LoginRefused, match=f"127.0.0.1:{guarded_broker.port}: user anna") as raised:
        open_transport(guarded_broker).probe()
    captured = capfd.readouterr()
    assert "swordfish" not in f"{raised.value!r}{captured.out}{captured.err}"
    assert captured.err == ""


def test_a_certificate_nobody_vouches_for_is_refused_unless_told_otherwise(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "opensesame")
    with pytest.raises(BrokerUnreachable, match="certificate"):
        open_transport(guarded_broker.model_copy(update={"tls": Tls()})).probe()
    careless = guarded_broker.model_copy(update={"tls": Tls(insecure=True)})
    assert open_transport(careless).probe().product == "Apache Kafka"
