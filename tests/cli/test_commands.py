"""Commands that need no Spark, called in this process: what they print, and how they end."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from growing_run import GrowingRun

from bench_spark import __version__, brokers
from bench_spark.cli import main
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import BrokerUnreachable
from bench_spark.plan import make_plan
from bench_spark.results.document import run_row
from bench_spark.store.delta import Store


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Program:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Ended:
        code = main([str(argument) for argument in arguments])
        return Ended(code, *self._capsys.readouterr())


@pytest.fixture
def bench(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Program:
    monkeypatch.chdir(tmp_path)
    for name in ("BENCH_SPARK_STORE", "BENCH_SPARK_BROKER", "BENCH_SPARK_MASTER"):
        monkeypatch.delenv(name, raising=False)
    return Program(capsys)


def test_the_help_lists_every_exit_code(bench: Program) -> None:
    ended = bench("--help")
    assert ended.code == 0
    for code in ("0", "1", "2", "3", "4", "5", "70", "130"):
        assert f"\n    {code} " in ended.out


def test_the_version_is_the_packages(bench: Program) -> None:
    assert bench("--version") == (0, f"bench-spark {__version__}\n", "")


BAD_INPUT = {
    "an unknown scenario": (["run", "stedy"], 2, "did you mean steady?"),
    "an unknown broker": (["run", "steady", "--broker", "kafa"], 2, "did you mean kafka?"),
    "a broker as scenario": (["run", "kafka"], 2, "is a broker, not a scenario"),
    "a directory as scenario": (["run", "."], 2, "is a directory, not a file"),
    "a missing directory": (["run", "no/where.yaml"], 2, "there is no such directory no"),
    "a key by its last word": (["run", "steady", "--set", "rate=5"], 2, "load.rate_per_second"),
    "a duration without a unit": (
        ["run", "steady", "--slo", "p99<50"],
        2,
        "--slo: 'p99<50': give a unit: us, ms or s",
    ),
    "a port out of range": (
        ["run", "steady", "--dashboard", "99999"],
        2,
        "allowed: a port from 1 to 65535",
    ),
    "a misspelt key": (["run", "steady", "--set", "load.rate=1"], 2, "rate_per_second"),
    "NaN": (["run", "steady", "--set", "load.rate_per_second=.nan"], 2, "rate_per_second"),
    "a body under 8 bytes": (["run", "steady", "--set", "message.bytes=7"], 2, "message.bytes"),
    "a run id with a slash": (["run", "steady", "--run-id", "../x"], 2, "not a plain name"),
    "an unknown format": (["run", "steady", "--format", "jsn"], 2, "did you mean json?"),
    "a file that cannot be": (
        ["run", "steady", "--format", "csv=no/where.csv"],
        2,
        "no such directory no",
    ),
    "a tag without a value": (["run", "steady", "--tag", "nightly"], 2, "KEY=VALUE"),
    "no Spark master": (["run", "steady", "--master", "lokal[2]"], 2, "no Spark master"),
    "too few slots": (["run", "steady", "--master", "local[1]"], 3, "need 2 slots"),
    "too few slots of a small cluster": (
        ["run", "steady", "--master", "local-cluster[1,1,512]"],
        3,
        "offers 1",
    ),
    "a store that executors cannot see": (
        ["run", "steady", "--master", "spark://h:7077", "--store", "here"],
        3,
        "store here",
    ),
    "idle agents": (["run", "steady", "--set", "agents=2"], 2, "agents"),
    "a window of the user's": (
        ["search-window", "window", "--set", "load.in_flight=5"],
        2,
        "load.in_flight: the search sets this itself",
    ),
    "a mode of the user's": (
        ["search-window", "window", "--set", "load.mode=rate"],
        2,
        "load.mode",
    ),
    "a base without rising powers": (["search-window", "window", "--base", "1"], 2, "1.1 to 1000"),
    "a base that is no number": (["search-window", "window", "--base", "nan"], 2, "1.1 to 1000"),
    "a highest window of nothing": (["search-window", "window", "--highest", "0"], 2, "--highest"),
    "a highest window below a transaction": (
        [
            *("search-window", "window", "--broker", "rabbitmq", "--highest", "50"),
            *("--set", "amqp.producer_transaction=25"),
        ],
        2,
        "50 is below 100, the first window to try",
    ),
    "a search with one end": (
        ["search-window", "window", "--set", "consumers=0"],
        2,
        "window needs both ends",
    ),
    "a plot that cannot be": (
        ["search-window", "window", "--plot", "no/where.svg"],
        2,
        "--plot: no/where.svg",
    ),
    "a format that nothing has": (["search-window", "window", "--format", "svg"], 2, "--format"),
    "a rhythm for metrics made afterwards": (
        ["run", "steady", "--no-live", "--trigger-seconds", "5"],
        2,
        "--trigger-seconds: --no-live makes the metrics afterwards",
    ),
    "Parquet on a stream": (["run", "steady", "--format", "parquet"], 2, "parquet=FILE"),
    "a plot of no kind": (
        ["search-window", "window", "--plot", "curve.pdf"],
        2,
        "--plot: curve.pdf: allowed: a file that ends in .svg or .png",
    ),
    "a condition that cannot be read": (
        ["compare", "a", "b", "--fail-if", "p99 is bad"],
        2,
        "--fail-if: 'p99 is bad' cannot be read",
    ),
    "a comparison with nothing": (["compare", "a"], 2, "give a baseline"),
    "a run between two commas": (["compare", "a,,b", "c"], 3, "there is no store"),
    "a suite compared with itself": (
        ["suite", "compare", "rabbitmq-latency-rate"],
        2,
        "--baseline-broker",
    ),
    "figures where a file is": (
        ["suite", "report", "rabbitmq-latency-rate", "--figures", "/dev/null/figures"],
        2,
        "--figures: /dev/null/figures",
    ),
    "a rhythm of nothing": (["run", "steady", "--trigger-seconds", "0"], 2, "--trigger-seconds"),
    "a command that is not there": (["rum"], 2, "No such command"),
    "an option that is not there": (["run", "steady", "--brokr", "kafka"], 2, "No such option"),
}


def test_bad_input_is_refused_before_spark_starts(bench: Program) -> None:
    for what, (arguments, code, text) in BAD_INPUT.items():
        ended = bench(*arguments)
        assert (ended.code, ended.out) == (code, ""), what
        assert text in ended.err, what
        assert "starting Spark" not in ended.err, what
        assert "Traceback" not in ended.err, what


@pytest.mark.parametrize("what", ["an unknown scenario", "too few slots"])
@pytest.mark.fault(case=11)
def test_an_error_is_one_line_that_names_the_program(bench: Program, what: str) -> None:
    lines = bench(*BAD_INPUT[what][0]).err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("bench-spark: ")


def test_under_spark_submit_the_master_is_not_ours_to_choose(
    bench: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    ended = bench("run", "steady", "--broker", "loopback", "--master", "local[2]")
    assert (ended.code, "spark-submit has chosen" in ended.err) == (2, True)


def test_nothing_is_left_behind_by_a_refused_run(bench: Program, tmp_path: Path) -> None:
    bench("run", "steady", "--master", "local[1]")
    assert list(tmp_path.iterdir()) == []


def test_a_password_that_is_missing_is_found_before_spark_starts(
    bench: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINE_PASSWORD", raising=False)
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: amqp\nuri: amqp://h:5672/\nusername: u\npassword_env: MINE_PASSWORD\n")
    ended = bench("run", "steady", "--broker", mine)
    assert (ended.code, "MINE_PASSWORD" in ended.err) == (2, True)


@pytest.mark.parametrize("command", ["run", "validate", "plan"])
def test_passwords_are_never_repeated(bench: Program, tmp_path: Path, command: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: amqp\nuri: amqp://user:Secret-1@127.0.0.1:1/\nunknown: Secret-1\n")
    refused = bench(command, "steady", "--broker", mine)
    assert (refused.code, "Secret-1" in refused.err) == (2, False)


def test_a_plan_shows_the_broker_without_its_login(bench: Program, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: amqp\nuri: amqp://user:Secret-1@127.0.0.1:1/v\n")
    ended = bench("plan", "steady", "--broker", mine)
    assert ended.code == 0
    assert "amqp://127.0.0.1:1/v" in ended.out
    assert "Secret-1" not in ended.out


def test_a_plan_says_who_does_what_for_how_long(bench: Program) -> None:
    overrides = ("agents=2", "producers=4", "consumers=4", "destinations=4")
    ended = bench(
        "plan", "steady", "--broker", "qpid", *(f"--set={override}" for override in overrides)
    )
    assert "20 s at most" in ended.out
    assert "3 slots" in ended.out
    assert [line.split() for line in ended.out.splitlines()[-2:]] == [
        ["0", "0,2", "0,2", "0,2", "0,2", "50,000"],
        ["1", "1,3", "1,3", "1,3", "1,3", "50,000"],
    ]


def test_the_broker_may_come_from_the_environment(
    bench: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("plan", "steady").out.startswith("steady on kafka (the default;")
    monkeypatch.setenv("BENCH_SPARK_BROKER", "loopback")
    assert bench("plan", "steady").out.startswith("steady on loopback\n")


@pytest.mark.parametrize("options", [(), ("--broker", "loopback")])
def test_validate_tells_what_the_data_set_holds(
    bench: Program, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "records.txt").write_text("a\nfour\n" + "x" * 4000 + "\n")
    (tmp_path / "sized.yaml").write_text("dataset: {path: records.txt}\n")
    ended = bench("validate", "sized.yaml", *options)
    assert ended.code == 0, ended.err
    assert "valid: records.txt: 3 records of 1 to 4,000 bytes, 1,335 on average\n" in ended.out
    (tmp_path / "records.txt").unlink()
    gone = bench("validate", "sized.yaml", *options)
    assert gone.code == 2
    assert "records.txt" in gone.err


@pytest.mark.parametrize("options", [(), ("--broker", "loopback")])
@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_pattern_that_would_take_for_ever_is_refused_with_the_record(
    bench: Program, tmp_path: Path, command: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "records.txt").write_text("xxy\n" + "x" * 5000 + "\n")
    (tmp_path / "slow.yaml").write_text(
        'dataset: {path: records.txt}\nidentity: {carrier: regex, insert: "(x+x+)+y"}\n'
    )
    ended = bench(command, "slow.yaml", *options)
    assert ended.code == 2
    assert "records.txt:2: identity.insert: (x+x+)+y takes longer than" in ended.err


def test_find_is_for_what_a_system_makes_of_a_record(bench: Program, tmp_path: Path) -> None:
    """The example of docs/data.md: the system writes everything in capitals."""
    (tmp_path / "orders.jsonl").write_text('{"trace": ""}\n')
    (tmp_path / "traced.yaml").write_text(
        "dataset: {path: orders.jsonl}\n"
        "identity:\n  carrier: regex\n"
        '  insert: \'"trace": "()\'\n  find: \'"TRACE": "([0-9A-F]{32})\'\n'
    )
    ended = bench("validate", "traced.yaml", "--broker", "loopback")
    assert ended.code == 0, ended.err
    assert "warning: identity.find does not find the ID" in ended.out
    through = bench(
        *("validate", "traced.yaml", "--set", "ingress=[{broker: loopback}]"),
        *("--set", "egress=[{broker: loopback}]"),
    )
    assert through.code == 0, through.err
    assert "warning" not in through.out
    assert "warning" not in bench("validate", "records", "--broker", "loopback").out


def test_a_plan_says_for_which_broker_it_is_where_none_is_named(bench: Program) -> None:
    note = "steady on kafka (the default; name another by --broker)"
    assert bench("plan", "steady").out.splitlines()[0] == note
    assert bench("plan", "steady", "--broker", "kafka").out.splitlines()[0] == "steady on kafka"


def test_validate_checks_the_scenario_and_if_asked_the_broker(bench: Program) -> None:
    assert bench("validate", "steady").out.count("valid:") == 1
    assert bench("validate", "steady", "--broker", "rabbitmq").out.count("valid:") == 2


@pytest.mark.parametrize(
    ("command", "names"),
    [("scenarios", {"steady", "demo"}), ("brokers", {"kafka", "qpid", "rabbitmq", "mosquitto"})],
)
def test_shipped_files_are_listed(bench: Program, command: str, names: set[str]) -> None:
    assert names <= {line.split()[0] for line in bench(command).out.splitlines()}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["scenarios"], "window  One pair in a closed loop of 100 messages."),
        (["suite", "list"], "kafka-flush-partitions  Flush interval by topic partitions, snappy"),
    ],
)
def test_shipped_files_are_listed_with_a_line_that_describes_them(
    bench: Program, command: list[str], line: str
) -> None:
    listed = [" ".join(found.split()) for found in bench(*command).out.splitlines()]
    assert any(found.startswith(" ".join(line.split())) for found in listed)
    assert all(len(found.split()) > 3 for found in listed)


@pytest.mark.parametrize("name", brokers.NAMES)
def test_broker_status_is_one_line_of_name_state_and_address(
    bench: Program, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCH_SPARK_STATE", str(tmp_path))
    monkeypatch.setenv(f"BENCH_SPARK_PORT_{name.upper()}", "23456")
    ended = bench("broker", "status", name)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{name} stopped 127.0.0.1:23456 (")
    assert "23456" in ended.out.partition("(")[2]
    assert [line.split()[0] for line in bench("broker", "status").out.splitlines()] == [
        *brokers.NAMES
    ]


def test_the_help_names_every_broker_that_can_be_started(bench: Program) -> None:
    text = bench("broker", "start", "--help").out
    assert [name for name in brokers.NAMES if name not in text] == []


def test_an_unknown_broker_cannot_be_started(bench: Program) -> None:
    assert bench("broker", "start", "activemq").code == 2


# -- stored runs ---------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one run that could not start."""
    opened = Store(tmp_path / "store").open()
    plan = make_plan(Scenario(name="steady"), "first")
    broker = Broker(name="mine", kind="amqp", uri="amqp://u:p@127.0.0.1:1/").masked()
    failure = BrokerUnreachable("127.0.0.1:1 refused the connection")
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    opened.replace_run(run_row(plan, broker, moment, failure=failure))
    return opened


def test_runs_lists_what_ran_and_why_it_failed(bench: Program, store: Store) -> None:
    ended = bench("runs", "--store", store.uri)
    last = ended.out.splitlines()[-1]
    assert last.startswith("first  failed  2026-01-02 03:04:05")
    assert last.endswith("127.0.0.1:1 refused the connection")


def test_runs_can_be_read_by_programs(bench: Program, store: Store) -> None:
    as_json = json.loads(bench("runs", "--store", store.uri, "--format", "json").out)
    as_csv = csv.DictReader(io.StringIO(bench("runs", "--store", store.uri, "--format=csv").out))
    assert [run["run_id"] for run in as_json] == [row["run_id"] for row in as_csv] == ["first"]


def test_show_prints_a_stored_run(bench: Program, store: Store) -> None:
    ended = bench("show", "first", "--store", store.uri)
    assert ended.code == 0
    assert ended.out.startswith("FAILED  steady on mine\n")
    assert f"bench-spark show first --store {store.uri}\n" in ended.out


def test_show_can_end_like_the_run_did(bench: Program, store: Store) -> None:
    assert bench("show", "first", "--store", store.uri, "--exit-code").code == 3


def test_json_is_alone_on_standard_output(bench: Program, store: Store) -> None:
    formats = ("--format", "terminal", "--format", "json", "--format", "csv")
    ended = bench("show", "first", "--store", store.uri, *formats)
    assert json.loads(ended.out)["run_id"] == "first"
    assert "FAILED  steady on mine" in ended.err
    assert "run_id,scenario," in ended.err


def test_a_format_may_go_to_a_file(bench: Program, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    ended = bench(
        "show", "first", "--store", store.uri, "--format", "terminal", "--format", f"json={file}"
    )
    assert ended.out.startswith("FAILED")
    assert json.loads(file.read_text())["status"] == "failed"


def test_a_run_that_is_not_there_is_named_with_the_nearest(bench: Program, store: Store) -> None:
    ended = bench("show", "fist", "--store", store.uri)
    assert (ended.code, "did you mean first?" in ended.err) == (2, True)


@pytest.mark.parametrize("arguments", [["runs"], ["show", "x"], ["sql", "SELECT 1"]])
def test_reading_makes_no_store(bench: Program, tmp_path: Path, arguments: list[str]) -> None:
    ended = bench(*arguments)
    assert (ended.code, "there is no store at" in ended.err) == (3, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_id_is_used_once_per_store(bench: Program, store: Store) -> None:
    plan = make_plan(Scenario(), "there")
    store.replace_run(run_row(plan, {"name": "mine"}, datetime.now(UTC)))
    ended = bench("run", "steady", "--broker=loopback", "--run-id=there", "--store", store.uri)
    assert (ended.code, "has a run there already" in ended.err) == (2, True)
    assert "starting Spark" not in ended.err


def test_a_run_whose_driver_has_vanished_is_abandoned_until_cleanup_ends_it(
    bench: Program, store: Store
) -> None:
    """Beside a run that goes on: its driver is this process."""
    GrowingRun(store, "gone").lose_driver()
    plan = make_plan(Scenario(), "alive")
    store.replace_run(run_row(plan, {"name": "mine"}, datetime.now(UTC)))

    def statuses() -> dict[str, str]:
        listed = json.loads(bench("runs", "--store", store.uri, "--format", "json").out)
        return {row["run_id"]: row["status"] for row in listed}

    assert (statuses()["gone"], statuses()["alive"]) == ("abandoned", "running")
    shown = bench("show", "gone", "--store", store.uri, "--format", "json")
    assert json.loads(shown.out)["status"] == "abandoned"
    cleanup = ("cleanup", "--broker", "loopback", "--store", store.uri)
    assert bench(*cleanup).code == 0
    assert bench(*cleanup, "--run-prefix", "another", "--delete").code == 0
    stored = {row["run_id"]: row["status"] for row in store.read("runs").to_pylist()}
    assert stored["gone"] == "running", "reading changes nothing, nor does a dry run"
    ended = bench(*cleanup, "--delete")
    assert ended.code == 0
    assert "run gone is abandoned: its driver has vanished, its row is ended" in ended.err
    assert "alive" not in ended.err
    [row] = store.read("runs", run_id="gone").to_pylist()
    assert (row["status"], row["exit_code"]) == ("abandoned", 4)
    assert row["ended_at"] is not None
    assert statuses()["alive"] == "running"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["show", "first"], ["runs", "--format", "json"]]
)
def test_standard_output_on_a_full_disk_is_told_in_one_sentence(
    store: Store, arguments: list[str]
) -> None:
    options = ["--store", store.uri] if arguments[0] in ("show", "runs") else []
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "bench_spark.cli", *arguments, *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 4
    assert ended.stderr.count("\n") == 1
    assert "No space left on device" in ended.stderr


# -- the unexpected ------------------------------------------------------------------------------


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("bench_spark.runs.load", fail)


LEAK = "cannot parse amqp://user:Secret-1@host/"


def test_a_bug_is_admitted_in_one_line(bench: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyError(LEAK))
    ended = bench("plan", "steady")
    assert ended.code == 70
    assert ended.err.startswith("bench-spark: unexpected KeyError: this is a bug; ")
    assert ended.err.count("\n") == 1
    assert "Secret-1" not in ended.err


def test_debug_shows_where_a_bug_is_but_no_password(
    bench: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, KeyError(LEAK))
    ended = bench("--debug", "plan", "steady")
    assert ended.code == 70
    assert "Traceback" in ended.err
    assert "Secret-1" not in ended.err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_signals_end_without_a_word(
    bench: Program, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    fail_with(monkeypatch, error)
    assert bench("plan", "steady") == (code, "", "")


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_commands_about_files_load_neither_spark_nor_client_libraries() -> None:
    code = (
        "import sys; from bench_spark.cli import main; "
        "main(['plan', 'steady', '--broker', 'loopback']); "
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'confluent_kafka', 'pika')))"
    )
    assert in_new_process(code).returncode == 0


def test_a_reader_that_goes_away_is_no_failure(store: Store) -> None:
    code = (
        "import os, sys; from bench_spark.cli import main; "
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1); "
        f"sys.exit(main(['show', 'first', '--store', {store.uri!r}]))"
    )
    ended = in_new_process(code)
    assert (ended.returncode, ended.stderr) == (0, "")
