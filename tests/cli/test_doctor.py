"""`bench-spark doctor` on this machine, with brokers that answer, refuse and say nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_spark.cli import main

SECRET = "s3cr3t"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("BENCH_SPARK_STORE", "BENCH_SPARK_BROKER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    code = main(["doctor", "--format", "json", *arguments])
    document = json.loads(capsys.readouterr().out)
    levels = {check["check"]: check["level"] for check in document["checks"]}
    assert code == (0 if document["ready"] else 3)
    assert document["ready"] == ("failing" not in levels.values())
    assert all(check["mend"] or check["level"] == "ok" for check in document["checks"])
    return code, levels


def test_everything_is_looked_at(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, levels = examined(capsys, "loopback", "http", "tcp")
    assert [levels[f"broker {name}"] for name in ("loopback", "http", "tcp")] == ["ok"] * 3
    assert set(levels) >= {
        *("python", "packages", "spark", "java", "jars delta", "class archive", "cores"),
        *("memory", "open files", "clock", "clock source", "time slice", "store"),
    }
    assert list(here.iterdir()) == []


def test_brokers_that_are_not_ready_fail(
    here: Path, silent_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "silent.yaml").write_text(
        f"kind: amqp\nuri: amqp://bob:{SECRET}@127.0.0.1:{silent_port}/\n"
        "connect_timeout_seconds: 1\n"
    )
    (here / "secret.yaml").write_text("kind: amqp\nuri: amqp://h\npassword_env: NOT_SET_AT_ALL\n")
    (here / "mute.yaml").write_text(
        f"kind: http\nuri: http://127.0.0.1:{silent_port}/\nconnect_timeout_seconds: 1\n"
    )
    names = ("silent.yaml", "secret.yaml", "mute.yaml", "stedy")
    code, levels = examined(capsys, *names, "--timeout", "20")
    assert code == 3
    assert {name: level for name, level in levels.items() if name.startswith("broker")} == {
        "broker silent.yaml": "failing",
        "broker secret.yaml": "failing",
        "broker mute.yaml": "failing",
        "broker stedy": "failing",
    }


def test_what_is_failing_is_told_with_its_remedy_and_without_passwords(
    here: Path, silent_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "silent.yaml").write_text(
        f"kind: amqp\nuri: amqp://bob:{SECRET}@127.0.0.1:{silent_port}/\n"
        "connect_timeout_seconds: 1\n"
    )
    assert main(["doctor", "silent.yaml"]) == 3
    shown = capsys.readouterr()
    line, remedy = shown.out.splitlines()[-2:]
    assert line.startswith("failing")
    assert f"127.0.0.1:{silent_port}" in line
    assert "-> " in remedy
    assert SECRET not in shown.out + shown.err


def test_the_broker_of_the_environment_is_examined(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_SPARK_BROKER", "loopback")
    assert "broker loopback" in examined(capsys)[1]
