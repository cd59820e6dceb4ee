"""docs/systems.md: the bridge and the command beside it, run as they are shown."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from bench_spark.cli import main
from bench_spark.config.broker import Broker
from bench_spark.config.loader import load_broker

ROOT = Path(__file__).parents[2]


def lines_of_example() -> list[list[str]]:
    text = (ROOT / "docs" / "systems.md").read_text()
    found = re.search(r"<!-- example: bridge -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return [shlex.split(line) for line in found[1].splitlines()]


def broker_file(directory: Path, name: str, broker: Broker) -> str:
    path = directory / f"{name}.yaml"
    keys = broker.model_dump(exclude_none=True, exclude_defaults=True) | {"name": name}
    path.write_text(yaml.safe_dump(keys))
    return str(path)


@pytest.mark.deployment
@pytest.mark.usefixtures("spark")
def test_the_bridge_of_the_documentation_is_measured_as_shown(
    rabbitmq_broker: Broker,
    kafka_broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    start_rabbitmq, start_kafka, bridge_line, run_line, kill = lines_of_example()
    assert [start_rabbitmq[-1], start_kafka[-1], kill] == ["rabbitmq", "kafka", ["kill", "%1"]]
    python, *bridge, background = bridge_line
    assert (python, background) == ("python", "&")
    # Only the brokers' places differ: those of the tests have ports of their own.
    places = {
        str(load_broker("rabbitmq").uri): str(rabbitmq_broker.uri),
        str(load_broker("kafka").bootstrap_servers): str(kafka_broker.bootstrap_servers),
    }
    assert set(places) <= set(bridge)
    command = [sys.executable, *(places.get(word, word) for word in bridge)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "ready\n"
            capfd.readouterr()
            code = main(
                [
                    *run_line[1:],
                    *("--ingress", broker_file(tmp_path, "rabbitmq", rabbitmq_broker)),
                    *("--egress", broker_file(tmp_path, "kafka", kafka_broker)),
                    *("--store", str(tmp_path / "store"), "--run-id", "bridged"),
                    *("--no-live", "--format", "json"),
                ]
            )
        finally:
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate(timeout=60)
    said = capfd.readouterr()
    assert code == 5, said.err
    did, document = json.loads(told), json.loads(said.out)
    counts = document["counts"]
    assert counts["sent"] == did["consumed"] == 3000
    assert (counts["lost"], counts["duplicates"]) == (did["dropped"], did["duplicated"])
    assert (counts["out_of_order"], counts["received"]) == (did["reordered"], did["produced"])
    assert counts["left_in_broker"] == counts["indeterminate"] == 0
    assert document["broker"]["name"] == "rabbitmq-to-kafka"
    assert [(one["role"], one["name"], one["kind"]) for one in document["brokers"]] == [
        ("ingress", "rabbitmq", "amqp"),
        ("egress", "kafka", "kafka"),
    ]
    products = [one["product"] for one in document["environment"]["brokers"]]
    assert products == ["RabbitMQ", "Apache Kafka"]
    assert "guest" not in said.out.replace("guest:***@", "")
    (row,) = DeltaTable(str(tmp_path / "store" / "runs")).to_pandas().to_dict("records")
    assert row["broker"] == "rabbitmq-to-kafka"
    assert list(row["brokers"]) == ["rabbitmq", "kafka"]
    assert "guest" not in row["brokers_json"].replace("guest:***@", "")
    assert main(["show", "bridged", "--store", str(tmp_path / "store")]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "ingress rabbitmq (" in shown
    assert "egress kafka (" in shown
