"""Commands that README and docs/ show parse and work, and files that they show load.

Everything is read from the Markdown itself, so an example cannot fall behind the program without
failing here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import COMMANDS, Command, arguments_of, blocks

from bench_spark.cli import main
from bench_spark.cli.app import ProgramOptions, app
from bench_spark.config.broker import Broker
from bench_spark.config.loader import load_broker, load_scenario
from bench_spark.config.models import Scenario
from bench_spark.config.suite import Suite
from bench_spark.config.suite_loader import load_suite

EXECUTED = {"validate", "plan", "schema", "scenarios", "brokers", "--version", "--help"}
"""Commands that start nothing and change nothing: run for real wherever they are shown."""

LOADS = {"run", "search-window", "search-rate"}
"""Commands that are given a scenario and run it."""

_NAMED_FILE = re.compile(r"# (?P<name>[\w.-]+\.yaml)\n")


def is_executed(command: Command) -> bool:
    return command.arguments[0] in EXECUTED or command.arguments[:2] == ("broker", "status")


def test_every_kind_of_example_is_found() -> None:
    assert {command.arguments[0] for command in COMMANDS} >= {
        *("run", "plan", "validate", "broker", "runs", "show", "sql", "metrics"),
        *("search-window", "search-rate"),
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bench-spark run steady  # comment", ("run", "steady")),
        (".venv/bin/bench-spark runs | head", ("runs",)),
        ("spark-submit --master yarn jobs/run_scenario.py steady", ("run", "steady")),
        ("spark-submit jobs/search_window.py window", ("search-window", "window")),
        ("spark-submit jobs/search_rate.py steady", ("search-rate", "steady")),
        ("spark-submit jobs/run_suite.py acks --quick", ("suite", "run", "acks", "--quick")),
        ("docker run --rm bench-spark bench-spark --help", ("--help",)),
        ("docker build -t bench-spark .", None),
        ("make demo", None),
    ],
)
def test_calls_are_recognised_in_a_line_of_shell(
    line: str, expected: tuple[str, ...] | None
) -> None:
    assert arguments_of(shlex.split(line, comments=True)) == expected


def test_every_command_shown_parses_and_asks_for_a_load_that_exists(
    readers_directory: Path,
) -> None:
    for command in COMMANDS:
        asked = parsed(command)
        assert asked or command.arguments[-1] in ("--help", "--version"), command
        if command.arguments[0] in LOADS:
            load_scenario(asked[0]["scenario"], asked[0]["overrides"] or [])


def parsed(command: Command) -> list[dict[str, Any]]:
    """The parameters as the real parser reads them, for a command that does nothing."""
    # This one acts while it is parsed, on the start-up file of whoever runs the tests.
    assert "--install-completion" not in command.arguments
    parser = typer.main.get_command(app)
    called: list[dict[str, Any]] = []
    for leaf in leaves(parser):
        leaf.callback = lambda **parameters: called.append(parameters)
    parser.main(list(command.arguments), standalone_mode=False, obj=ProgramOptions())
    return called


def leaves(command: object) -> Iterator[typer.core.TyperCommand]:
    children = getattr(command, "commands", None)
    if children is None:
        assert isinstance(command, typer.core.TyperCommand)
        yield command
        return
    for child in children.values():
        yield from leaves(child)


@pytest.fixture
def readers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader has saved the files that the documents show, and set the variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_SPARK_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("BENCH_SPARK_BROKER", raising=False)
    monkeypatch.delenv("BENCH_SPARK_STORE", raising=False)
    for block in blocks("yaml"):
        named = _NAMED_FILE.match(block.text)
        assert named is not None, f"{block.document.name}: begin the file with '# NAME.yaml'"
        text = block.text.replace("/run/secrets", str(tmp_path))
        (tmp_path / named["name"]).write_text(text)
        for variable in re.findall(r"(?:password|token)_env: (\w+)", text):
            monkeypatch.setenv(variable, "secret")
        for file in re.findall(r"(?:password|token)_file: (\S+)", text):
            Path(file).write_text("secret\n")
    return tmp_path


@pytest.mark.parametrize("command", [c for c in COMMANDS if is_executed(c)], ids=str)
def test_commands_that_start_nothing_work_as_shown(
    command: Command, readers_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_every_scenario_broker_and_suite_file_shown_is_valid(readers_directory: Path) -> None:
    files = sorted(readers_directory.glob("*.yaml"))
    assert files
    for file in files:
        load: Callable[[str], Broker | Scenario | Suite] = load_scenario
        if re.search(r"^kind:", file.read_text(), re.MULTILINE):
            load = load_broker
        elif re.search(r"^axes:", file.read_text(), re.MULTILINE):
            load = load_suite
        assert load(str(file)).name == file.stem
