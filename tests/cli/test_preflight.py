"""What brokers are asked before Spark starts: who cannot be used is refused within seconds.

All commands are called one after the other in one process that has no Java: one that gets past the
brokers ends by naming Java, and PySpark tells by being loaded that it was wanted.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tls_endpoints import Authority, tls_endpoint

from bench_spark.brokers import BrokerStatus
from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_PREFLIGHT

TIMEOUT_SECONDS = 600
CANARY = "canary-77b"

CALLS = """
import contextlib, io, json, sys
from bench_spark.api import run
from bench_spark.cli import main
from bench_spark.errors import BenchError
ended = {}
for name, arguments in json.load(sys.stdin).items():
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        if arguments[0] == "api":
            try:
                run("steady", arguments[1], store=arguments[2])
            except BenchError as error:
                code = error.exit_code
                print(error)
        else:
            code = main(arguments)
    ended[name] = [code, said.getvalue(), "pyspark" in sys.modules]
print(json.dumps(ended))
"""


class Ended(NamedTuple):
    code: int
    said: str
    has_loaded_spark: bool


class Case(NamedTuple):
    broker: Mapping[str, Any]
    said: tuple[str, ...]
    """What must be among the words: what is wrong, and what to do about it."""
    arguments: tuple[str, ...] = ("run", "steady")
    end: str = "--broker"


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def amqp(port: int, login: str = "guest:guest", vhost: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "amqp", "uri": f"amqp://{login}@127.0.0.1:{port}/{vhost}", **more}


def kafka(*ports: int, **more: Any) -> dict[str, Any]:
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return {"kind": "kafka", "bootstrap_servers": servers, **more}


def mqtt(port: int, **more: Any) -> dict[str, Any]:
    return {"kind": "mqtt", "uri": f"mqtt://127.0.0.1:{port}", **more}


MEND = "mend kind, port, scheme or tls"
START = "start it, mend its address"
SILENT = "no answer within 2 s; connect_timeout_seconds in the broker file sets how long to wait"
"""The bound of the question before Spark, where the broker file does not give one."""


@pytest.fixture(scope="module")
def ended(
    rabbitmq: BrokerStatus,
    kafka_broker: Broker,
    mosquitto_broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Case, Ended]]]:
    directory = tmp_path_factory.mktemp("preflight")
    rabbit, apache, mosquitto = rabbitmq.ports["amqp"], kafka_broker.port, mosquitto_broker.port
    management, down = rabbitmq.ports["management"], closed_port()
    certificate = Authority(tmp_path_factory.mktemp("authority")).issue("localhost")
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        mute = silent.getsockname()[1]
        encrypted = {
            port: stack.enter_context(tls_endpoint(certificate, ("127.0.0.1", port))).port
            for port in (rabbit, apache, mosquitto)
        }
        cases = {
            "down": Case(amqp(down), (f"127.0.0.1:{down}: Connection refused", START)),
            "kafka down": Case(kafka(down), (f"127.0.0.1:{down}: ", "refused", START)),
            "mqtt down": Case(mqtt(down), (f"127.0.0.1:{down}: Connection refused", START)),
            "one of ours": Case(
                amqp(down, name="rabbitmq"), ("bench-spark broker start rabbitmq",)
            ),
            "all servers down": Case(
                kafka(down, 1, 2),
                (f"127.0.0.1:{down}, 127.0.0.1:1, 127.0.0.1:2: no broker answers",),
            ),
            "silent": Case(amqp(mute), (f"127.0.0.1:{mute}: {SILENT}", START)),
            "silent, TLS": Case(amqp(mute, tls={}), (f"127.0.0.1:{mute}: {SILENT}", START)),
            "kafka silent": Case(kafka(mute, mute), (f"127.0.0.1:{mute}: {SILENT}", START)),
            "mqtt silent": Case(mqtt(mute), (f"127.0.0.1:{mute}: {SILENT}", START)),
            "silent for longer": Case(
                amqp(mute, connect_timeout_seconds=4), (f"127.0.0.1:{mute}: ", "4 s", START)
            ),
            "kafka, wrong host": Case(
                {"kind": "kafka", "bootstrap_servers": "nobody.invalid:9092"},
                ("nobody.invalid:9092", START),
            ),
            "wrong password": Case(
                amqp(rabbit, f"guest:{CANARY}"),
                (f"127.0.0.1:{rabbit}: user 'guest'", "403", "check username, password_env"),
            ),
            "wrong vhost": Case(
                amqp(rabbit, vhost="nowhere"), ("vhost 'nowhere'", "530", "check username")
            ),
            "wrong host": Case(
                {"kind": "mqtt", "uri": "mqtt://nobody.invalid:1883"},
                ("nobody.invalid:1883", START),
            ),
            "kafka on amqp": Case(
                kafka(rabbit), (f"127.0.0.1:{rabbit}: speaks AMQP, not Kafka's protocol", MEND)
            ),
            "kafka on mqtt": Case(kafka(mosquitto), ("speaks MQTT, not Kafka's protocol", MEND)),
            "kafka on http": Case(kafka(management), ("speaks HTTP, not Kafka's protocol", MEND)),
            "amqp on kafka": Case(amqp(apache), ("speaks Kafka's protocol, not AMQP", MEND)),
            "amqp on mqtt": Case(amqp(mosquitto), ("speaks MQTT, not AMQP", MEND)),
            "amqp on http": Case(amqp(management), ("speaks HTTP, not AMQP", MEND)),
            "mqtt on amqp": Case(mqtt(rabbit), ("speaks AMQP, not MQTT", MEND)),
            "mqtt on kafka": Case(mqtt(apache), ("speaks Kafka's protocol, not MQTT", MEND)),
            "amqp, TLS for none": Case(amqp(rabbit, tls={}), ("speaks AMQP without TLS", MEND)),
            "kafka, TLS for none": Case(kafka(apache, tls={}), ("protocol without TLS", MEND)),
            "mqtt, TLS for none": Case(mqtt(mosquitto, tls={}), ("speaks MQTT without TLS", MEND)),
            "amqp, no TLS": Case(amqp(encrypted[rabbit]), ("speaks AMQP over TLS only", MEND)),
            "kafka, no TLS": Case(kafka(encrypted[apache]), ("protocol over TLS only", MEND)),
            "mqtt, no TLS": Case(mqtt(encrypted[mosquitto]), ("speaks MQTT over TLS only", MEND)),
            "amqp, stranger": Case(amqp(encrypted[rabbit], tls={}), ("certificate", "ca_file")),
            "kafka, stranger": Case(kafka(encrypted[apache], tls={}), ("certificate", "ca_file")),
            "mqtt, stranger": Case(mqtt(encrypted[mosquitto], tls={}), ("certificate", "ca_file")),
            "immediate": Case(
                amqp(rabbit),
                ("amqp.immediate: not supported by RabbitMQ", "540"),
                ("run", "steady", "--set", "amqp.immediate=true"),
            ),
            "too many replicas": Case(
                kafka(apache),
                ("kafka.topic.replication_factor: 3", "the cluster has 1"),
                ("run", "steady", "--set", "kafka.topic.replication_factor=3"),
            ),
            "egress down": Case(
                amqp(down),
                (f"127.0.0.1:{down}: Connection refused", START),
                ("run", "bridge", "--ingress", "loopback"),
                "--egress",
            ),
            "search-rate": Case(
                amqp(down), ("Connection refused", START), ("search-rate", "steady")
            ),
            "search-window": Case(
                amqp(down), ("Connection refused", START), ("search-window", "amqp-throughput")
            ),
            "Python": Case(amqp(down), ("Connection refused", START), ("api",)),
            # These get past the brokers, and so to Spark.
            "one server of three": Case(kafka(1, apache, 2), ("Java",)),
            "elsewhere": Case(
                amqp(down),
                ("not reached from the driver", "Connection refused", "Java"),
                ("run", "steady", "--master", "spark://127.0.0.1:1"),
            ),
        }
        calls = {}
        for name, case in cases.items():
            file = directory / f"{name.replace(' ', '-').replace(',', '')}.yaml"
            file.write_text(yaml.safe_dump(dict(case.broker)))
            store = str(directory / "store")
            calls[name] = (
                ["api", str(file), store]
                if case.arguments == ("api",)
                else [*case.arguments, case.end, str(file), "--store", store]
            )
        yield {
            name: (cases[name], Ended(*answer)) for name, answer in called(calls, directory).items()
        }


def called(calls: dict[str, list[str]], directory: Path) -> dict[str, Any]:
    unset = ("JAVA_HOME", "BENCH_SPARK_BROKER", "BENCH_SPARK_STORE", "BENCH_SPARK_MASTER")
    environment = {key: text for key, text in os.environ.items() if key not in unset}
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=directory,
        env=environment | {"PATH": str(directory)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_brokers_that_cannot_be_used_are_refused_before_spark(
    ended: dict[str, tuple[Case, Ended]],
) -> None:
    refused = {name: found for name, found in ended.items() if "Java" not in found[0].said}
    assert len(refused) > 36
    for name, (case, answer) in refused.items():
        assert answer.code == EXIT_PREFLIGHT, (name, answer)
        assert not answer.has_loaded_spark, name
        for words in case.said:
            assert words in answer.said, (name, answer.said)
        assert CANARY not in answer.said


def test_nobody_is_told_to_increase_the_size_of_messages(
    ended: dict[str, tuple[Case, Ended]],
) -> None:
    assert all("message.max.bytes" not in answer.said for _, answer in ended.values())


def test_one_bootstrap_server_that_answers_is_enough(ended: dict[str, tuple[Case, Ended]]) -> None:
    _, answer = ended["one server of three"]
    assert "Java 17 or newer is needed" in answer.said


def test_agents_elsewhere_decide_whether_a_broker_can_be_reached(
    ended: dict[str, tuple[Case, Ended]],
) -> None:
    case, answer = ended["elsewhere"]
    for words in case.said:
        assert words in answer.said, answer.said
