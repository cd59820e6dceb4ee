"""What README and docs/ say is true: links lead somewhere, every name is explained, SQL answers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from documents import COMMANDS, DOCUMENTS, FENCE, ROOT, Block, blocks, section_of
from pyspark.sql import SparkSession
from views_in_memory import views_in_memory

from bench_spark.cli import main
from bench_spark.config.objectives import COUNTS
from bench_spark.spark.sql import create_views, run_query, view_statements
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)


# -- links and names -------------------------------------------------------------------------------


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in _LINK.findall(FENCE.sub("", document.read_text())):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            linked = (document.parent / path).resolve() if path else document
            assert linked.exists(), f"{document.name}: {target}"
            if anchor:
                assert anchor in anchors(linked), f"{document.name}: {target}"


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = FENCE.sub("", document.read_text())
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text)
    }


def test_no_document_names_a_place_on_its_authors_machine() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|work|tmp)/\S*", text) == []


def test_every_column_of_a_table_is_documented() -> None:
    for name, schema in SCHEMAS.items():
        section = section_of(ROOT / "docs" / "tables.md", f"### {name}")
        rows = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))
        documented = set(re.findall(r"\w+", rows)) | percentile_names(rows)
        assert set(schema.names) - documented == set(), name


def percentile_names(rows: str) -> set[str]:
    """`p50_us ... p999_us` stands for all of them."""
    is_range = "p50_us` ... `p999_us" in rows
    return {"p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us"} if is_range else set()


def test_every_count_and_every_check_is_defined() -> None:
    text = (ROOT / "docs" / "measures.md").read_text()
    rooms = [ROOT / "bench_spark" / room for room in ("results", "spark")]
    source = "".join(path.read_text() for room in rooms for path in room.glob("*.py"))
    checks = set(re.findall(r'\bCheck\(\s*"(\w+)"', source))
    assert len(checks) > 5
    undefined = [name for name in (*COUNTS, *sorted(checks)) if f"`{name}`" not in text]
    assert undefined == []


def test_every_room_of_the_package_is_in_the_architecture() -> None:
    rooms = {path.stem for path in (ROOT / "bench_spark").iterdir() if path.suffix in ("", ".py")}
    rooms -= {"__init__", "__pycache__"}
    table = section_of(ROOT / "docs" / "architecture.md", "## Rooms")
    assert [room for room in sorted(rooms) if f"`{room}`" not in table] == []


QUERIES = sorted({command.arguments[1] for command in COMMANDS if command.arguments[0] == "sql"})


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
def test_stored_results_are_shown_as_documented(
    readers_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(readers_store)
    for command in COMMANDS:
        if command.arguments[0] in ("runs", "show"):
            words = [word.replace("s3://bucket/bench", "bench-store") for word in command.arguments]
            assert main(words) in (0, 4), capsys.readouterr().err
            assert "RUN" in capsys.readouterr().out, command


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
        store.append(table, pa.Table.from_pylist([row], schema=SCHEMAS[table]))
    assert run_query(spark, store, QUERIES[0]).num_rows, QUERIES[0]
    # The command makes its views for each query again, and reads the tables.
    with views_in_memory(spark, store):
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
