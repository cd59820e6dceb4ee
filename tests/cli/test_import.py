"""`bench-spark import`: files written, what was left out told, passwords nowhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from bench_spark.cli import main
from bench_spark.config.loader import load_broker, load_scenario

SECRET = "s3cr3t"
FLAGS = f"perf-test -h amqp://bob:{SECRET}@example.org -x 2 -y 2 -r 100 -z 10 --id night -jb\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_on_standard_input_become_files_that_load(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(FLAGS))
    assert main(["import", "perftest"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "night.yaml\nnight-broker.yaml\n"
    assert "no counterpart: --json-body" in shown.err
    assert "export NIGHT_PASSWORD" in shown.err
    assert load_scenario("night.yaml").producers == 2
    assert load_broker("night-broker.yaml").password_env == "NIGHT_PASSWORD"
    written = "".join(path.read_text() for path in here.iterdir())
    assert SECRET not in shown.out + shown.err + written
    monkeypatch.setenv("NIGHT_PASSWORD", SECRET)
    assert main(["plan", "night.yaml", "--broker", "night-broker.yaml"]) == 0


def test_what_is_there_is_written_over_only_when_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flags.txt").write_text(FLAGS)
    (here / "night-broker.yaml").write_text("precious")
    assert main(["import", "perftest", "flags.txt"]) == 2
    assert "night-broker.yaml: there already; --force" in capsys.readouterr().err
    assert not (here / "night.yaml").exists()
    assert (here / "night-broker.yaml").read_text() == "precious"
    assert main(["import", "perftest", "flags.txt", "--force"]) == 0
    assert load_broker("night-broker.yaml").kind == "amqp"


def test_a_workload_and_a_driver_become_files_that_load(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = {
        "name": "w",
        "topics": 1,
        "messageSize": 100,
        "producerRate": 10,
        "payloadFile": "p",
    }
    driver = {
        "driverClass": "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver",
        "commonConfig": "bootstrap.servers=localhost:9092",
        "producerConfig": "buffer.memory=1\nacks=1",
    }
    (here / "w.yaml").write_text(yaml.safe_dump(workload))
    (here / "d.yaml").write_text(yaml.safe_dump(driver))
    (here / "p").write_bytes(b"payload")
    command = ["import", "omb", "w.yaml", "d.yaml", "--name", "mine", "--directory", "new/place"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "note: payloadFile: give its path from here" in shown.err
    assert "no counterpart: producerConfig buffer.memory" in shown.err
    assert main(["plan", "new/place/mine.yaml", "--broker", "new/place/mine-broker.yaml"]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["import", "perftest", "nowhere.txt"], "nowhere.txt: there is no such file"),
        (["import", "perftest", "flags.txt", "--name", "a b"], "--name: 'a b' is not a plain name"),
        (["import", "omb", "flags.txt", "flags.txt"], "flags.txt"),
    ],
)
def test_bad_input_is_refused_by_name(
    arguments: list[str], problem: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flags.txt").write_text(FLAGS)
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err
