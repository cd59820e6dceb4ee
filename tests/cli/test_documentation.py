"""What README and docs/ say is true: commands parse, files load, SQL answers, links lead somewhere.

Everything is read from the Markdown itself, so an example cannot fall behind the program without
failing here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
import yaml
from agents import run_load
from pyspark.sql import SparkSession

from bench_spark import brokers
from bench_spark.cli import main
from bench_spark.cli.app import Settings, app
from bench_spark.errors import EnvironmentNotReady
from bench_spark.identity.preparing import with_records
from bench_spark.plan import make_plan
from bench_spark.report.measures import COUNTS
from bench_spark.scenario.broker import Broker, Credentials
from bench_spark.scenario.loader import load_broker, load_scenario
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.suite import Suite
from bench_spark.scenario.suite_loader import load_suite
from bench_spark.spark.sql import create_views, run_query, view_statements
from bench_spark.store import Store
from bench_spark.tables import TABLES
from bench_spark.transports.base import TransportContext
from bench_spark.transports.registry import make_transport

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

EXECUTED = {"validate", "plan", "schema", "scenarios", "brokers", "--version", "--help"}
"""Commands that start nothing and change nothing: run for real wherever they are shown."""

LOADS = {"run", "search-window", "search-rate"}
"""Commands that are given a scenario and run it."""

JOBS = {
    "jobs/run_scenario.py": ("run",),
    "jobs/search_window.py": ("search-window",),
    "jobs/search_rate.py": ("search-rate",),
    "jobs/run_suite.py": ("suite", "run"),
}
"""What spark-submit is given instead of the program, and the command that it stands for."""

_FENCE = re.compile(
    r"(?:^<!-- example: (?P<file>\S+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)
_NAMED_FILE = re.compile(r"# (?P<name>[\w.-]+\.yaml)\n")
_SHELL_OPERATORS = {"|", ">", "2>", "&&", "&", ";"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    language: str
    text: str
    file: str | None
    """Name given by an `example:` comment above it."""


@dataclass(frozen=True)
class Command:
    """Arguments of one call of bench-spark that a document shows."""

    document: Path
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.name}: {' '.join(self.arguments)}"


def blocks(language: str) -> list[Block]:
    return [
        Block(document, found["language"], found["text"], found["file"])
        for document in DOCUMENTS
        for found in _FENCE.finditer(document.read_text())
        if found["language"] == language
    ]


def commands() -> list[Command]:
    found = []
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            arguments = arguments_of(shlex.split(line, comments=True))
            if arguments is not None:
                found.append(Command(block.document, arguments))
    return found


def arguments_of(words: list[str]) -> tuple[str, ...] | None:
    """What bench-spark is called with in a line of shell; None where it is not called."""
    end = next((i for i, word in enumerate(words) if word in _SHELL_OPERATORS), len(words))
    words = words[:end]
    for place, word in enumerate(words):
        for job, command in JOBS.items():
            if word.endswith(job):
                return (*command, *words[place + 1 :])
    if words and Path(words[0]).name == "bench-spark":
        return tuple(words[1:])
    if words[:2] == ["docker", "run"]:
        # The image is called like the program in it.
        return tuple(words[len(words) - words[::-1].index("bench-spark") :])
    return None


COMMANDS = commands()
QUERIES = sorted({command.arguments[1] for command in COMMANDS if command.arguments[0] == "sql"})


def is_executed(command: Command) -> bool:
    return command.arguments[0] in EXECUTED or command.arguments[:2] == ("broker", "status")


# -- commands --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_shown_parses(command: Command) -> None:
    assert parsed(command) or command.arguments[-1] in ("--help", "--version")


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.arguments[0] in LOADS], ids=str)
def test_every_run_shown_asks_for_a_load_that_exists(
    command: Command, readers_directory: Path
) -> None:
    [asked] = parsed(command)
    load_scenario(asked["scenario"], asked["overrides"] or [])


def parsed(command: Command) -> list[dict[str, Any]]:
    """The parameters as the real parser reads them, for a command that does nothing."""
    # This one acts while it is parsed, on the start-up file of whoever runs the tests.
    assert "--install-completion" not in command.arguments
    parser = typer.main.get_command(app)
    called: list[dict[str, Any]] = []
    for leaf in leaves(parser):
        leaf.callback = lambda **parameters: called.append(parameters)
    parser.main(list(command.arguments), standalone_mode=False, obj=Settings())
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


# -- links and names -------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in _LINK.findall(_FENCE.sub("", document.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{document.name}: {target}"


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = _FENCE.sub("", document.read_text())
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_names_a_place_on_its_authors_machine(document: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|work|tmp)/\S*", document.read_text()) == []


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_table_is_documented(name: str) -> None:
    section = section_of(ROOT / "docs" / "tables.md", f"### {name}")
    rows = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))
    documented = set(re.findall(r"\w+", rows)) | percentile_names(rows)
    assert set(TABLES[name].names) <= documented


def percentile_names(rows: str) -> set[str]:
    """`p50_us ... p999_us` stands for all of them."""
    is_range = "p50_us` ... `p999_us" in rows
    return {"p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us"} if is_range else set()


def test_every_count_and_every_check_is_defined() -> None:
    text = (ROOT / "docs" / "measures.md").read_text()
    audit = (ROOT / "bench_spark" / "summary" / "audit.py").read_text()
    checks = set(re.findall(r'Check\(\s*"(\w+)"', audit))
    assert len(checks) > 5
    undefined = [name for name in (*COUNTS, *sorted(checks)) if f"`{name}`" not in text]
    assert undefined == []


def test_every_room_of_the_package_is_in_the_architecture() -> None:
    rooms = {path.stem for path in (ROOT / "bench_spark").iterdir() if path.suffix in ("", ".py")}
    rooms -= {"__init__", "__pycache__"}
    table = section_of(ROOT / "docs" / "architecture.md", "## Rooms")
    assert [room for room in sorted(rooms) if f"`{room}`" not in table] == []


def section_of(document: Path, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    level = heading.split()[0]
    text = document.read_text()
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{document.name} has no {heading}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


# -- the worked example of a transport -------------------------------------------------------------


def test_the_example_transport_carries_a_load_when_installed_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [block for language in ("python", "toml", "yaml") for block in blocks(language)]
    shown = {block.file: block.text for block in named if block.file}
    project = tomllib.loads(shown["pyproject.toml"])["project"]
    (tmp_path / "mqtt_qos0.py").write_text(shown["mqtt_qos0.py"])
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


# -- a short real run, and what can be asked of its store ------------------------------------------


@pytest.fixture(scope="module")
def readers_store(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """The README's first run on loopback, shortened, on the session that all tests share.

    With this process in place of a broker's, so that there are rows in `resources`.
    """
    shown = next(
        command.arguments
        for command in COMMANDS
        if command.arguments[0] == "run" and "loopback" in command.arguments
    )
    directory = tmp_path_factory.mktemp("reader")
    (directory / "loopback.yaml").write_text(f"kind: loopback\nresources: [pid: {os.getpid()}]\n")
    watched = ["loopback.yaml" if word == "loopback" else word for word in shown]
    shorter = ["--set", "phases.warmup_seconds=0.5", "--set", "phases.measure_seconds=2"]
    slower = ["--set", "load.rate_per_second=500", "--run-id", "RUN"]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as reader, contextlib.redirect_stdout(said):
        reader.chdir(directory)
        reader.setenv("BENCH_SPARK_STORE", str(directory / "bench-store"))
        # 4: a busy machine may not keep the rate, and the run says so; it is complete all the same.
        assert main([*watched, *shorter, *slower]) in (0, 4)
    assert "steady on loopback" in said.getvalue()
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.arguments[0] in ("runs", "show")], ids=str
)
def test_stored_results_are_shown_as_documented(
    command: Command,
    readers_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(readers_store)
    arguments = [word.replace("s3://bucket/bench", "bench-store") for word in command.arguments]
    assert main(arguments) in (0, 4), capsys.readouterr().err
    assert "RUN" in capsys.readouterr().out


@pytest.mark.slow
def test_every_key_of_the_json_document_is_explained(readers_store: Path) -> None:
    stored = Store(readers_store / "bench-store").read("runs", columns=["result_json"])
    document = json.loads(stored["result_json"][0].as_py())
    table = section_of(ROOT / "docs" / "measures.md", "## The JSON document")
    assert [key for key in document if f"`{key}`" not in table] == []


@pytest.mark.slow
def test_every_query_shown_is_answered(readers_store: Path, spark: SparkSession) -> None:
    assert QUERIES
    store = Store(readers_store / "bench-store")
    # The README's run takes no samples of its throughput, and loopback loses nothing and has no
    # machine of its own.
    missed = {"objective": "p99 < 1ms", "value": 2000.0, "met": False}
    sent = {"run_id": "RUN", "kind": "sent", "phase": "measure", "producer": 0, "sequence": 10**9}
    for table, row in {
        "runs": {"run_id": "SLOW", "slo": [missed]},
        "messages": sent | {"sent_ns": 10**18},
        "samples": {"run_id": "RUN", "pair": 0, "number": 0, "messages": 500, "seconds": 0.01},
        "resources": {"run_id": "RUN", "source": "embedded", "rss_bytes": 1_000_000},
    }.items():
        store.append(table, pa.Table.from_pylist([row], schema=TABLES[table]))
    assert run_query(spark, store, QUERIES[0]).num_rows, QUERIES[0]
    # The views are there now: as the command does it, they would be made for each query again.
    for query in QUERIES[1:]:
        assert spark.sql(query).toArrow().num_rows, query


@pytest.mark.slow
def test_every_column_of_a_view_is_documented(tmp_path: Path, spark: SparkSession) -> None:
    create_views(spark, Store(tmp_path / "store").open())
    text = " ".join((ROOT / "docs" / "tables.md").read_text().split())
    for statement in view_statements():
        view = statement.split("VIEW ")[1].split()[0]
        columns = ", ".join(spark.table(view).columns)
        assert f"`{view}`: `{columns}`" in text or view == "metrics_latest", view


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in blocks("python") if not b.file], ids=lambda b: b.text)
def test_python_examples_run_beside_a_store(
    block: Block, readers_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(readers_store)
    exec(compile(block.text, block.document.name, "exec"), {})
