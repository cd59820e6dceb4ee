"""A password that must be found nowhere, whatever is printed, stored, shown or listed."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from fault_records import Seen
from restartable import restartable

from bench_spark.brokers import BrokerStatus
from bench_spark.brokers.base import Command, Say
from bench_spark.brokers.kafka import KafkaRecipe
from bench_spark.store.arrow import SCHEMAS
from benchmarks.standalone import Job, Submitter, free_port

USER = "canary-user"
PASSWORD = "k4n4r1envogel/!x"
FORMS = (
    PASSWORD,
    urllib.parse.quote(PASSWORD, safe=""),
    base64.b64encode(PASSWORD.encode()).decode(),
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
    base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode(),
)
"""As it is, in a URI, and as logins carry it."""

PAGES = (
    *("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"),
    *("executors/threadDump/?executorId=driver", "api/v1/applications"),
)
OF_APPLICATION = ("environment", "jobs", "stages?details=true", "allexecutors", "sql?length=100")


class GuardedKafka(KafkaRecipe):
    """One more listener, which asks for the canary."""

    @property
    def ports(self) -> Mapping[str, int]:
        return {**super().ports, "guarded": 0}

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        commands = super().prepare(directory, ports, say)
        plain = f"PLAINTEXT://127.0.0.1:{ports['client']}"
        guarded = f"SASL_PLAINTEXT://127.0.0.1:{ports['guarded']}"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        with (directory / "server.properties").open("a") as settings:
            settings.write(
                f"listeners={plain},{guarded},CONTROLLER://127.0.0.1:{ports['controller']}\n"
                f"advertised.listeners={plain},{guarded}\n"
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SASL_PLAINTEXT:SASL_PLAINTEXT\n"
                "sasl.enabled.mechanisms=PLAIN\n"
                f"listener.name.sasl_plaintext.plain.sasl.jaas.config={login} "
                f'user_{USER}="{PASSWORD}";\n'
            )
        return commands


@pytest.fixture(scope="module")
def rabbitmq_with_canary(rabbitmq: BrokerStatus) -> BrokerStatus:
    def control(*arguments: str) -> None:
        subprocess.run(
            [*rabbitmq.broker.rabbitmqctl, "-q", *arguments], check=True, capture_output=True
        )

    control("add_user", USER, PASSWORD)
    control("set_user_tags", USER, "monitoring")
    control("set_permissions", "-p", "/", USER, ".*", ".*", ".*")
    return rabbitmq


@pytest.fixture
def broker_keys(
    protocol: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A broker file for each protocol, and for each a password that comes in another way."""
    if protocol == "kafka":
        monkeypatch.setenv("CANARY", PASSWORD)
        directory = tmp_path / "kafka"
        directory.mkdir()
        with restartable(GuardedKafka(), directory) as kafka:
            yield {
                "kind": "kafka",
                "bootstrap_servers": f"127.0.0.1:{kafka.ports['guarded']}",
                "username": USER,
                "password_env": "CANARY",
            }
        return
    node: BrokerStatus = request.getfixturevalue("rabbitmq_with_canary")
    quoted = urllib.parse.quote(PASSWORD, safe="")
    if protocol == "amqp":
        yield {
            "kind": "amqp",
            "uri": f"amqp://{USER}:{quoted}@127.0.0.1:{node.port}/",
            "management_uri": f"http://{USER}:{quoted}@127.0.0.1:{node.ports['management']}",
        }
        return
    (tmp_path / "password").write_text(PASSWORD + "\n")
    yield {
        "kind": "mqtt",
        "uri": f"mqtt://127.0.0.1:{node.ports['mqtt']}",
        "username": USER,
        "password_file": str(tmp_path / "password"),
    }


@dataclass
class Watched:
    """What others on the machine, and visitors of Spark's pages, could see of a run."""

    ui_port: int
    command_lines: set[str] = field(default_factory=set)
    pages: dict[str, str] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watched:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(20)

    def _work(self) -> None:
        while not self._ended.wait(0.2):
            self.command_lines.update(command_lines())
            for page in itertools.chain(PAGES, self._of_application()):
                self._fetch(page)

    def _of_application(self) -> Iterator[str]:
        try:
            applications = json.loads(self.pages.get("api/v1/applications", "[]"))
        except ValueError:
            return  # a page that says that Spark is starting
        for application in applications:
            for page in OF_APPLICATION:
                yield f"api/v1/applications/{application['id']}/{page}"

    def _fetch(self, page: str) -> None:
        try:
            url = f"http://127.0.0.1:{self.ui_port}/{page}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                self.pages[page] = answer.read().decode(errors="replace")
        except OSError:
            return  # not there yet, or not there any more


def command_lines() -> Iterator[str]:
    """As `ps` shows them to everybody."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile


def places_of(pages: Mapping[str, str], end: str) -> str:
    return "".join(text for name, text in pages.items() if name.endswith(end))


def places_with_the_canary(places: Mapping[str, str]) -> list[str]:
    return [name for name, text in places.items() if any(form in text for form in FORMS)]


def files_below(directory: Path) -> dict[str, str]:
    return {
        str(path): path.read_bytes().decode(errors="replace")
        for path in directory.rglob("*")
        if path.is_file()
    }


def rows_of(store: Path) -> dict[str, str]:
    """Compressed in the files, so read as a reader would."""
    return {
        name: DeltaTable(str(store / name)).to_pandas().to_csv()
        for name in SCHEMAS
        if (store / name).is_dir()
    }


@pytest.mark.fault(case=18)
@pytest.mark.faults_slow
@pytest.mark.parametrize("protocol", ["amqp", "kafka", "mqtt"])
def test_a_password_is_found_nowhere(
    protocol: str, broker_keys: dict[str, Any], tmp_path: Path, seen: Seen
) -> None:
    out = tmp_path / "out"
    for name in ("events", "store"):
        (out / name).mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(broker_keys))
    ui_port = free_port()
    job = Job(
        "run_scenario.py",
        [
            *("steady", "--broker", str(tmp_path / "mine.yaml"), "--store", str(out / "store")),
            *("--format", f"json={out / 'result.json'}", "--format", f"html={out / 'report.html'}"),
            *("--format", f"csv={out / 'result.csv'}", "--verbose"),
            *("--set", "load.rate_per_second=500", "--set", "phases.warmup_seconds=1"),
            *("--set", "phases.measure_seconds=6"),
        ],
        {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(ui_port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file:{out / 'events'}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        },
    )
    with Watched(ui_port) as watched:
        done = Submitter("local[4]").submit(job)
    assert done.returncode in (0, 4), done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((out / "result.json").read_text())
    assert result["counts"]["received_once"] == 3000
    places = {
        "standard output": done.stdout,
        "standard error": done.stderr,
        "ps": "\n".join(watched.command_lines),
        **{f"Spark's page {page}": text for page, text in watched.pages.items()},
        **files_below(out),
        **rows_of(out / "store"),
    }
    logs = [name for name in places if name.startswith(str(out / "events"))]
    assert logs
    assert "SparkListenerJobStart" in places[logs[0]]
    assert len(watched.pages) == len(PAGES) + len(OF_APPLICATION), watched.pages.keys()
    assert "spark.eventLog.dir" in watched.pages["environment/"]
    assert "org.apache.spark" in watched.pages["executors/threadDump/?executorId=driver"]
    assert "spark.redaction.regex" in places_of(watched.pages, "/environment")
    assert USER in places["runs"] or protocol != "amqp", "the login itself was used"
    assert places_with_the_canary(places) == []
    seen(f"{protocol}: {len(places)} places, {len(watched.pages)} of them Spark's pages")


@pytest.mark.fault(case=18)
@pytest.mark.parametrize("kind", ["amqp", "kafka", "mqtt"])
def test_no_traceback_tells_a_password(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench_spark.cli import main

    monkeypatch.setenv("CANARY", PASSWORD)
    address = f"127.0.0.1:{free_port()}"
    keys: dict[str, Any] = {"kind": kind, "username": USER, "password_env": "CANARY"}
    keys |= {"bootstrap_servers": address} if kind == "kafka" else {"uri": f"{kind}://{address}"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    code = main(["--debug", "cleanup", "--broker", str(tmp_path / "mine.yaml")])
    said = capfd.readouterr()
    assert code == 3
    assert "Traceback" in said.err
    assert places_with_the_canary({"said": said.out + said.err}) == []


@pytest.mark.fault(case=18)
def test_an_unforeseen_error_tells_no_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that puts a URI, or what it was given, into its words."""
    from bench_spark.cli import broker, main

    quoted = urllib.parse.quote(PASSWORD, safe="")
    uri = f"amqp://{USER}:{quoted}@127.0.0.1:5672/"

    def fail(*_: object) -> None:
        raise RuntimeError(f"cannot connect to {uri}")

    monkeypatch.setattr(broker, "sweeper_of", fail)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"kind": "amqp", "uri": uri}))
    code = main(["--debug", "cleanup", "--broker", str(tmp_path / "mine.yaml")])
    said = capfd.readouterr()
    assert code == 70
    assert places_with_the_canary({"said": said.out + said.err}) == []
