"""What every command has: help with examples, completion, variables, quiet and verbose."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from growing_run import GrowingRun

from bench_spark import errors
from bench_spark.cli import app as commands
from bench_spark.cli import main
from bench_spark.cli.app import EXAMPLES, EXIT_CODES, ProgramOptions, app
from bench_spark.cli.options import verbosity_of
from bench_spark.errors import BrokerUnreachable, ConfigurationError
from bench_spark.store.delta import Store

ROOT = Path(__file__).parents[2]
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
        return
    for name, child in children.items():
        yield from leaves(child, (*path, name))


PROGRAM: Any = typer.main.get_command(app)
COMMANDS = dict(leaves(PROGRAM))
GROUPS = {name for name, command in PROGRAM.commands.items() if hasattr(command, "commands")}


def test_every_command_and_group_has_examples_and_there_are_no_others() -> None:
    assert set(EXAMPLES) == set(COMMANDS) | GROUPS


def test_the_help_of_the_program_begins_the_help_of_each_command() -> None:
    for name, (_, summary) in commands.COMMANDS.items():
        own = PROGRAM.commands[name].help.replace("\n", " ")
        assert own == summary or own.startswith((f"{summary} ", f"{summary[:-1]}. ")), name


def test_the_help_of_the_program_lists_every_command_and_loads_none() -> None:
    code = (
        "import sys; from bench_spark.cli import main; code = main(['--help']); "
        "heavy = {'numpy', 'pydantic', 'pyarrow', 'numba', 'bench_spark.cli.run'}; "
        "sys.stderr.write(' '.join(heavy & sys.modules.keys())); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    listed = re.findall(r"^ {2}(\S+) {2,}\S", done.stdout, re.MULTILINE)
    assert [name for name in listed if name in commands.COMMANDS] == [*commands.COMMANDS]


VARIABLES = {"--store": "STORE", "--master": "MASTER"}
GIVEN_A_BROKER = ("run", "plan", "search-window", "search-rate", "suite run")


def test_the_help_of_a_command_shows_its_examples_and_variables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (*COMMANDS, *sorted(GROUPS)):
        assert main([*name.split(), "--help"]) == 0, name
        shown = capsys.readouterr().out
        for example in EXAMPLES[name]:
            assert f"\n    bench-spark {example}\n" in shown
        read = VARIABLES | ({"--broker": "BROKER"} if name in GIVEN_A_BROKER else {})
        parameters = COMMANDS[name].params if name in COMMANDS else ()
        options = {option for parameter in parameters for option in parameter.opts}
        for option in options & read.keys():
            assert f"env var: BENCH_SPARK_{read[option]}" in " ".join(shown.split()), name


def test_every_example_parses() -> None:
    parser = typer.main.get_command(app)
    called: list[Any] = []
    for _, leaf in leaves(parser):
        leaf.callback = lambda **parameters: called.append(parameters)
    for name, example in [(name, line) for name, lines in EXAMPLES.items() for line in lines]:
        words = shlex.split(example)
        end = next((place for place, word in enumerate(words) if word in ("<", ">")), len(words))
        assert " ".join(words[:end]).startswith(name)
        called.clear()
        parser.main(words[:end], standalone_mode=False, obj=ProgramOptions())
        assert len(called) == 1, example


def test_every_command_is_in_the_documents() -> None:
    assert [name for name in COMMANDS if f"`{name}`" not in COMMAND_LINE] == []


def test_exit_codes_are_told_in_full() -> None:
    codes = {value for key, value in vars(errors).items() if key.startswith("EXIT_")}
    for text in (EXIT_CODES, COMMAND_LINE.partition("## Exit codes")[2]):
        told = {int(code) for code in re.findall(r"(?:^\W+|, |\()(\d+)\b", text, re.MULTILINE)}
        assert codes <= told


def test_every_variable_that_is_read_is_documented() -> None:
    read = {
        name
        for path in (ROOT / "bench_spark").rglob("*.py")
        for name in re.findall(r"BENCH_SPARK_[A-Z]+(?:_(?=\{))?", path.read_text())
    }
    documents = COMMAND_LINE + (ROOT / "docs" / "suites.md").read_text()
    assert read >= {"BENCH_SPARK_STORE", "BENCH_SPARK_BROKER", "BENCH_SPARK_MASTER"}
    assert [name for name in sorted(read) if name not in documents] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bench-spark sear", "search-window"),
        ("bench-spark run stea", "steady"),
        ("bench-spark run steady --broker ka", "kafka"),
        ("bench-spark suite plan rabbitmq-latency-ra", "rabbitmq-latency-rate"),
        ("bench-spark run mi", "mine.yaml"),
    ],
)
def test_the_shell_completes_commands_and_names(
    words: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_BENCH_SPARK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert main([]) == 0
    assert expected in capsys.readouterr().out.split()


def test_the_master_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_SPARK_MASTER", "lokal[2]")
    assert main(["run", "steady", "--broker", "loopback"]) == 2
    assert "no Spark master" in capsys.readouterr().err


def test_the_store_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_SPARK_STORE", str(tmp_path / "theirs"))
    assert main(["runs"]) == 3
    assert f"there is no store at {tmp_path / 'theirs'};" in capsys.readouterr().err
    assert main(["runs", "--store", str(tmp_path / "mine")]) == 3
    assert f"there is no store at {tmp_path / 'mine'};" in capsys.readouterr().err


SPEAKS = {"run", "watch", "search-window", "search-rate", "suite run", "sql", "metrics rebuild"}
"""Commands that tell their progress."""


def test_a_command_that_tells_its_progress_can_be_quiet_and_verbose() -> None:
    for name in SPEAKS:
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {"--quiet", "-q", "--verbose", "-v"} <= options, name


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
"""Bold is none: NO_COLOR is about colours (https://no-color.org)."""


def shown_on_a_terminal(*command: str) -> str:
    """What a command writes when standard output is a real terminal."""
    controller, terminal = os.openpty()
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            open(terminal, "w", closefd=False) as stream,
        ):
            patch.setattr("sys.stdout", stream)
            assert main(command) == 0
        return os.read(controller, 1 << 16).decode()
    finally:
        os.close(terminal)
        os.close(controller)


@pytest.fixture
def failed_run(tmp_path: Path) -> tuple[str, ...]:
    """The command that shows a run which failed."""
    run = GrowingRun(Store(tmp_path / "store").open())
    run.fail(BrokerUnreachable("nobody there"))
    return ("show", "r1", "--store", run.store.uri)


def test_colours_are_for_terminals(
    failed_run: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert COLOUR.search(shown_on_a_terminal(*failed_run))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown_on_a_terminal(*failed_run)
    assert "FAILED" in plain
    assert not COLOUR.search(plain)


def test_pipes_get_no_colours(
    failed_run: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(failed_run) == 0
    assert not COLOUR.search(capsys.readouterr().out)


def test_quiet_and_verbose_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="one of them"):
        verbosity_of(quiet=True, verbose=True)
