"""The store: real Delta tables by deltalake, in a directory of the test's own."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench_spark.cli import main
from bench_spark.core.hdr import SparseHistogram
from bench_spark.errors import EXIT_PREFLIGHT, StoreError, StoreNotReady
from bench_spark.store import delta as store_module
from bench_spark.store.arrow import RUNS, SCHEMAS
from bench_spark.store.delta import Store
from bench_spark.store.schema import HISTOGRAM, SCHEMA_NUMBER, SCHEMA_PROPERTY


def runs(*names: str) -> pa.Table:
    return pa.Table.from_pylist([{"run_id": name} for name in names], schema=RUNS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()


def test_opening_creates_every_table_with_its_schema_and_number(store: Store) -> None:
    for name, schema in SCHEMAS.items():
        table = DeltaTable(store.table_uri(name))
        assert [field.name for field in table.schema().fields] == schema.names
        assert table.metadata().configuration[SCHEMA_PROPERTY] == str(SCHEMA_NUMBER)
        assert store.read(name).num_rows == 0


def test_a_histogram_is_stored_with_every_field_it_has() -> None:
    fields = {field.name for field in dataclasses.fields(SparseHistogram)}
    assert {name for name, _ in HISTOGRAM} == {"measure", *fields}


def test_opening_again_changes_nothing(store: Store) -> None:
    store.append("runs", runs("a"))
    again = Store(store.uri).open()
    assert again.version("runs") == 1
    assert again.read("runs")["run_id"].to_pylist() == ["a"]


def test_a_relative_path_means_the_directory_it_meant_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("bench-store").open()
    monkeypatch.chdir("/")
    store.append("runs", runs("a"))
    assert store.uri == str(tmp_path / "bench-store")
    assert store.is_local


def test_a_uri_is_kept_and_its_credentials_are_not_shown() -> None:
    store = Store("s3://key:hidden@bucket/store/")
    assert store.table_uri("runs") == "s3://key:hidden@bucket/store/runs"
    assert not store.is_local
    assert "hidden" not in repr(store)


def test_a_version_is_appended_once_also_by_another_process(store: Store) -> None:
    other = Store(store.uri).open()
    assert store.append("runs", runs("a"), app_id="run-1", version=0)
    assert not store.append("runs", runs("a"), app_id="run-1", version=0)
    # The other one's handle is older than that commit.
    assert not other.append("runs", runs("a"), app_id="run-1", version=0)
    assert other.append("runs", runs("b"), app_id="run-1", version=1)
    assert not store.append("runs", runs("b"), app_id="run-1", version=1)
    assert store.append("runs", runs("c"), app_id="run-2", version=0)
    assert sorted(store.read("runs")["run_id"].to_pylist()) == ["a", "b", "c"]


def test_a_version_needs_an_application_and_the_other_way_round(store: Store) -> None:
    with pytest.raises(ValueError, match="go together"):
        store.append("runs", runs("a"), app_id="run-1")
    with pytest.raises(ValueError, match="go together"):
        store.append("runs", runs("a"), version=1)


def test_a_run_has_one_row_and_the_last_one_counts(store: Store) -> None:
    store.replace_run({"run_id": "a", "status": "running", "tags": [("k", "v")]})
    store.replace_run({"run_id": "b", "status": "running"})
    store.replace_run({"run_id": "a", "status": "valid", "counts": [("sent", 7)]})
    rows = {row["run_id"]: row for row in store.read("runs").to_pylist()}
    assert rows["a"]["status"] == "valid"
    assert rows["a"]["counts"] == [("sent", 7)]
    assert rows["a"]["tags"] is None
    assert rows["b"]["status"] == "running"


def test_runs_replaced_from_several_processes_at_once_all_get_through(store: Store) -> None:
    failures: list[BaseException] = []

    def replace(number: int) -> None:
        try:
            own = Store(store.uri)
            for status in ("running", "valid"):
                own.replace_run({"run_id": f"r{number}", "status": status})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    rows = {row["run_id"]: row["status"] for row in store.read("runs").to_pylist()}
    assert rows == {"r0": "valid", "r1": "valid", "r2": "valid"}


def claimed_row(**columns: Any) -> dict[str, Any]:
    return {
        "run_id": "r1",
        "scenario": "s",
        "broker": "b",
        "status": "running",
        "started_at": datetime.now(UTC),
        "tags": [("team", "blue")],
        **columns,
    }


def test_a_run_that_was_refused_leaves_its_id_to_the_next(store: Store) -> None:
    assert store.claim_run(claimed_row())
    assert not store.claim_run(claimed_row())
    assert store.end_run("r1", "failed", "down", 3)
    assert store.claim_run(claimed_row(scenario="again"))
    assert not store.claim_run(claimed_row())
    rows = store.read("runs", columns=["scenario", "status", "tags"]).to_pylist()
    assert rows == [{"scenario": "again", "status": "running", "tags": [("team", "blue")]}]


@pytest.mark.parametrize(
    ("status", "exit_code", "measured_from"),
    [("failed", 4, None), ("abandoned", 4, None), ("aborted", 130, None), ("failed", 3, "now")],
)
def test_a_run_that_came_to_its_load_keeps_its_id(
    store: Store, status: str, exit_code: int, measured_from: str | None
) -> None:
    began = datetime.now(UTC) if measured_from else None
    assert store.claim_run(claimed_row(measured_from=began))
    assert store.end_run("r1", status, "why", exit_code)
    assert not store.claim_run(claimed_row())


def test_of_several_that_claim_one_id_one_gets_it(store: Store) -> None:
    assert store.claim_run(claimed_row())
    for _ in range(3):
        assert store.end_run("r1", "failed", "down", 3)
        together = threading.Barrier(4)

        def claim(together: threading.Barrier = together) -> bool:
            own = Store(store.uri)
            together.wait()
            return own.claim_run(claimed_row())

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(lambda _: claim(), range(4))) == [False, False, False, True]
    assert len(store.read("runs")) == 1


def test_the_reason_of_an_end_may_be_any_text(store: Store) -> None:
    reason = "it's \"so\": 'nobody' \\ {}"
    assert store.claim_run(claimed_row())
    assert store.end_run("r1", "failed", reason, 3)
    assert not store.end_run("r1", "failed", "again", 3)
    assert store.read("runs", columns=["reasons"])["reasons"].to_pylist() == [[reason]]


def test_compacting_keeps_the_rows_and_leaves_one_file(store: Store) -> None:
    for number in range(5):
        store.append("runs", runs(f"r{number}"))
    store.compact("runs")
    assert len(DeltaTable(store.table_uri("runs")).file_uris()) == 1
    assert store.read("runs").num_rows == 5


def test_a_handle_is_opened_anew_after_many_commits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Counted(DeltaTable):
        def __init__(self, uri: str, **options: Any) -> None:
            opened.append(uri)
            super().__init__(uri, **options)

    monkeypatch.setattr(store_module, "REOPEN_AFTER_COMMITS", 3)
    monkeypatch.setattr(store_module, "DeltaTable", Counted)
    for number in range(7):
        store.append("runs", runs(f"r{number}"), app_id="x", version=number)
    assert len(opened) == 2
    assert store.read("runs").num_rows == 7


def test_an_older_store_gets_the_columns_it_lacks_and_keeps_its_rows(tmp_path: Path) -> None:
    older = pa.schema([field for field in RUNS if field.name not in ("suite", "tags")])
    table = DeltaTable.create(f"{tmp_path}/runs", schema=older)
    assert SCHEMA_PROPERTY not in table.metadata().configuration
    Store(tmp_path).append("runs", pa.Table.from_pylist([{"run_id": "old"}], schema=older))
    store = Store(tmp_path).open()
    store.replace_run({"run_id": "new", "suite": "s", "tags": [("k", "v")]})
    rows = {row["run_id"]: row for row in store.read("runs").to_pylist()}
    assert rows["old"]["suite"] is None
    assert rows["new"]["tags"] == [("k", "v")]
    configuration = DeltaTable(store.table_uri("runs")).metadata().configuration
    assert configuration[SCHEMA_PROPERTY] == str(SCHEMA_NUMBER)


def test_a_newer_store_is_refused(store: Store) -> None:
    newer = str(SCHEMA_NUMBER + 1)
    DeltaTable(store.table_uri("events")).alter.set_table_properties(
        {SCHEMA_PROPERTY: newer}, raise_if_not_exists=False
    )
    with pytest.raises(StoreError, match=f"events has schema {newer}.*newer bench-spark"):
        Store(store.uri).open()


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreNotReady, match=f"{tmp_path}/file/store cannot be written"):
        Store(tmp_path / "file" / "store").open()


def test_a_file_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    sentence = f"store {file} is a file; a store is a directory"
    with pytest.raises(StoreNotReady, match=f"^{sentence}$"):
        Store(file).open()
    assert main(["runs", "--store", str(file)]) == EXIT_PREFLIGHT
    assert sentence in capsys.readouterr().err


def test_a_directory_without_hard_links_is_refused_before_a_commit_fails_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Databricks' volumes are, and other mounts of object stores."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreNotReady, match=r"without hard links \(Function not .*give the place"):
        Store(tmp_path).open()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["dbfs:/bench", "dbfs://bench", "hdfs:/bench", "file:/bench"])
def test_what_only_looks_like_a_uri_is_no_directory_of_that_name(place: str) -> None:
    with pytest.raises(StoreNotReady, match=f"^store {place} is neither a path nor a URI"):
        Store(place)


def test_a_store_that_nobody_answers_for_is_refused_in_one_line() -> None:
    store = Store(
        "s3://bucket/store",
        {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hidden",
            "AWS_REGION": "nowhere",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_ALLOW_HTTP": "true",
            "max_retries": "0",
            "retry_timeout": "1s",
        },
    )
    with pytest.raises(StoreNotReady, match="s3://bucket/store") as caught:
        store.open()
    text = str(caught.value)
    assert "\n" not in text
    assert "hidden" not in text


def test_a_table_that_is_gone_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no table 'runs'"):
        Store(tmp_path).read("runs")
