"""Which Java is taken, with stand-ins for the `java` command."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.errors import EnvironmentNotReady
from bench_spark.java import parse_major_version, require_java


def java_that_says(home: Path, text: str, exit_code: int = 0) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2"', 11),
        ("no such thing", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(text: str, major: int | None) -> None:
    assert parse_major_version(text) == major


def test_java_home_is_preferred_to_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home = java_that_says(tmp_path / "home", 'openjdk version "17.0.1"')
    on_path = java_that_says(tmp_path / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/bin")
    assert require_java() == at_home


def test_a_java_home_that_is_too_old_does_not_hide_a_newer_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_says(tmp_path / "home", 'java version "1.8.0_392"')
    on_path = java_that_says(tmp_path / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/bin")
    assert require_java() == on_path


def test_no_usable_java_is_one_sentence_with_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_says(tmp_path / "home", 'openjdk version "11.0.2"')
    broken = java_that_says(tmp_path / "path", "cannot run", exit_code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{broken.parent}:/bin")
    with pytest.raises(EnvironmentNotReady) as error:
        require_java()
    assert str(error.value) == (
        "Java 17 or newer is needed and JAVA_HOME has Java 11; PATH has no working Java; "
        "install one, for instance with `apt-get install openjdk-17-jre-headless`"
    )
    assert error.value.exit_code == 3


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentNotReady, match="there is none in JAVA_HOME or on PATH"):
        require_java()
