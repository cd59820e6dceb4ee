"""The transport of examples/ and the carrier that docs/data.md shows do their work."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from agents import run_load
from documents import ROOT, blocks

from bench_spark import brokers
from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.data.checking import with_records
from bench_spark.errors import EnvironmentNotReady
from bench_spark.plan import make_plan
from bench_spark.transports.base import TransportContext
from bench_spark.transports.registry import make_transport


def test_the_example_transport_carries_a_load_when_installed_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [block for language in ("toml", "yaml") for block in blocks(language)]
    shown = {block.file: block.text for block in named if block.file}
    project = tomllib.loads(shown["pyproject.toml"])["project"]
    shutil.copy(ROOT / "examples" / "mqtt_qos0.py", tmp_path)
    install(tmp_path, project)
    monkeypatch.syspath_prepend(tmp_path)
    scenario = Scenario.model_validate(
        {
            "producers": 2,
            "consumers": 2,
            "destinations": 1,
            "load": {"rate_per_second": 500, "messages": 500},
            "phases": {"warmup_seconds": 0.2},
        }
    )
    try:
        with brokers.embedded("mosquitto") as running:
            shown_broker = yaml.safe_load(shown["qos0.yaml"])
            uri = running["mosquitto"].broker.uri
            broker = Broker.model_validate(shown_broker | {"uri": uri})
            context = TransportContext("example", scenario, broker, Credentials())
            assert type(make_transport(context)).__name__ == "MqttTransport"
            load = run_load(make_plan(scenario, "example"), broker)
    except EnvironmentNotReady as missing:
        pytest.skip(str(missing))
    assert [result.failure for result in load.results] == [None]
    accounts = load.accounts()
    assert (accounts.sent, accounts.received_once, accounts.lost) == (500, 500, 0)
    assert load.histogram("latency").count == 500


def test_the_example_carrier_carries_ids_when_installed_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {block.file: block.text for name in ("python", "toml") for block in blocks(name)}
    (tmp_path / "last_line.py").write_text(shown["last_line.py"])
    install(tmp_path, tomllib.loads(shown["last_line.toml"])["project"])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "records.txt").write_text("one\ntwo\n")
    scenario = Scenario.model_validate(
        {
            "dataset": {"path": str(tmp_path / "records.txt")},
            "identity": {"carrier": "last-line", "content_hash": True},
            "load": {"rate_per_second": 1000, "messages": 100},
            "phases": {"warmup_seconds": 0},
        }
    )
    broker = Broker(kind="loopback")
    load = run_load(make_plan(with_records(scenario, broker), "example-carrier"), broker)
    assert [result.failure for result in load.results] == [None]
    assert load.accounts().received_once == 100
    assert load.total("consumer", "corrupted") == 0
    assert load.total("consumer", "bytes") == 100 * (3 + 3 + 32)


def install(directory: Path, project: dict[str, object]) -> None:
    """What pip would write of such a project: enough for entry points to be found."""
    info = directory / f"{str(project['name']).replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    assert isinstance(groups, dict)
    lines = (
        line
        for group, offered in groups.items()
        for line in (f"[{group}]", *(f"{kind} = {target}" for kind, target in offered.items()))
    )
    (info / "entry_points.txt").write_text("\n".join(lines))
