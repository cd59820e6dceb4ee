"""The Delta tables of a store, written by deltalake; how they are made and brought up to date.

One `Store` object is the only writer of its tables in this process: the collector appends events,
the rolling metrics append their rows, the end of a run replaces its row in `runs`. Nothing here
needs a JVM: a commit costs some 10 ms, against seconds for the first ones of Spark's own writer.

Opening the tables of a store: made where they are missing, brought up to this program's schemas. A
store that cannot be used is refused here, in one line that holds no credentials.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    QueryBuilder,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow import fs

from bench_spark.errors import EXIT_CONFIGURATION, EXIT_PREFLIGHT, StoreError, StoreNotReady
from bench_spark.process import Backoff
from bench_spark.store import s3
from bench_spark.store.arrow import RUNS, SCHEMAS
from bench_spark.store.checksums import VersionChecksums
from bench_spark.store.schema import PROPERTIES, SCHEMA_NUMBER, SCHEMA_PROPERTY, table_uri

_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_JAVA_STACK = re.compile(r"^\s*at [\w.$/@]+\(.*\)$", re.MULTILINE)
"""What a NameNode sends behind its words."""
_HDFS_DENIED = re.compile(r'Permission denied : user=([^,]+), access=(\w+), inode="([^"]*)"')
_USER_INFO = re.compile(r"(://)[^/@\s]+@")


def refuse_file(store: Path) -> None:
    if store.is_file():
        raise StoreNotReady(f"store {store} is a file; a store is a directory")


def prove_writable(directory: Path) -> None:
    """Try a local store with a file of its own; a remote one is tried by creating its tables."""
    refuse_file(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try_to_write(directory)
        _prove_links(directory)
    except OSError as error:
        raise StoreNotReady(f"store {directory} cannot be written: {error.strerror}") from error


def _prove_links(directory: Path) -> None:
    """Of two commits of one version the second must fail: deltalake makes it by a hard link, which
    mounts of object stores do not have."""
    with tempfile.TemporaryDirectory(prefix=".links-", dir=directory) as scratch:
        trial = Path(scratch, "file")
        trial.touch()
        try:
            trial.with_name("link").hardlink_to(trial)
        except OSError as error:
            raise StoreNotReady(
                f"store {directory} is on a file system without hard links ({error.strerror}), "
                "which commits need: of a mounted object store, as /Volumes and /dbfs of "
                "Databricks, give the place itself, s3://... or abfss://..."
            ) from error


def try_to_write(directory: Path, size_bytes: int = 0) -> None:
    """Raise the OSError that a file of this size would meet. Its room is given back at once."""
    trial = directory / f".writable-{os.getpid()}-{threading.get_ident()}"
    with trial.open("wb") as file:
        trial.unlink()
        if size_bytes:
            os.posix_fallocate(file.fileno(), 0, size_bytes)


def open_table(store: str, name: str, storage_options: Mapping[str, str] | None) -> DeltaTable:
    """The table of this name in the store with this URI."""
    options = dict(storage_options) if storage_options else None
    try:
        handle = DeltaTable.create(
            table_uri(store, name),
            schema=SCHEMAS[name],
            mode="ignore",
            configuration={
                SCHEMA_PROPERTY: str(SCHEMA_NUMBER),
                **PROPERTIES.get(name, {}),
            },
            storage_options=options,
            raise_if_key_not_exists=False,
        )
        handle.update_incremental()
    except (DeltaError, OSError) as error:
        raise StoreNotReady(
            f"store {without_user(store)}: table {name} cannot be opened or created: "
            f"{in_one_line(error)}"
        ) from error
    _migrate(store, name, handle)
    return handle


def _migrate(store: str, name: str, handle: DeltaTable) -> None:
    """The one migration step: columns that this program knows and the table lacks."""
    configuration = handle.metadata().configuration
    number = int(configuration.get(SCHEMA_PROPERTY) or 0)
    if number > SCHEMA_NUMBER:
        raise StoreError(
            f"store {without_user(store)}: table {name} has schema {number}, this program knows "
            f"{SCHEMA_NUMBER}: use a newer bench-spark"
        )
    present = {field.name for field in handle.schema().fields}
    known: list[Field] = Schema.from_arrow(SCHEMAS[name]).fields
    missing = [field for field in known if field.name not in present]
    try:
        if missing:
            handle.alter.add_columns(missing)
        lacking = {
            key: value
            for key, value in PROPERTIES.get(name, {}).items()
            if key not in configuration
        }
        if number < SCHEMA_NUMBER:
            lacking[SCHEMA_PROPERTY] = str(SCHEMA_NUMBER)
        if lacking:
            handle.alter.set_table_properties(lacking, raise_if_not_exists=False)
    except (DeltaError, OSError) as error:
        raise StoreNotReady(
            f"store {without_user(store)}: table {name} could not be brought to schema "
            f"{SCHEMA_NUMBER}: {in_one_line(error)}"
        ) from error


def without_user(uri: str) -> str:
    return _USER_INFO.sub(r"\1", uri)


def in_one_line(error: BaseException) -> str:
    """deltalake draws coloured trees of causes over several lines; credentials stay out of them."""
    words = _JAVA_STACK.sub("", _TERMINAL_COLOUR.sub("", str(error)).replace("↳", ":"))
    text = " ".join(words.split())
    if denied := _HDFS_DENIED.search(text):
        user, access, place = denied.groups()
        return (
            f"HDFS denies {access} on {place} to the user {user}; set HADOOP_USER_NAME to one who "
            "has the right, or change the owner of that directory"
        )
    return s3.refusal(text) or without_user(text)[:300]


COMPACT_AFTER_APPENDS = 300
"""A soak appends to its tables every second: their many small files are made one now and then, so
that reading and opening a table costs no more in its eighth hour than in its first."""

REOPEN_AFTER_COMMITS = 100
"""A reused handle grows slower with every commit (11 ms at first, 206 ms after 1 500)."""

COMPACTED_GROUP_ROWS = {"events": 512}
"""Readers take a file a group at a time, and event rows are big: 512 of them are some 30 MB."""
SMALL_ROWS_IN_GROUP = 131_072
"""Of the other tables: in groups of 512 a million messages would take seconds to write."""

MERGE_ATTEMPTS = 8
"""Another process that replaces a run's row at the same moment makes the commit conflict."""

COMMIT_BYTES = 65_536
"""Room that a commit takes beside its rows: the log's entry, a file's head and foot, a checksum."""
KEPT_FREE_BYTES = 1_048_576
"""Room on a disk that is left for the result of a run."""
RESULT = ("runs", "samples", "summary")
"""Tables that may use the room kept free for them."""

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_NO_URI = re.compile(r"dbfs:|[a-zA-Z][a-zA-Z0-9+.-]+:/(?!/)")
"""As a path it would be a directory of this name where the command is called."""

STREAMED = ("events",)
"""Tables that a streaming query reads: a checksum beside each commit makes that cheaper."""

_REFUSED = (
    f"status = 'failed' AND exit_code IN ({EXIT_CONFIGURATION}, {EXIT_PREFLIGHT}) "
    "AND measured_from IS NULL"
)
"""Of the row of a run that has not come to its load."""

T = TypeVar("T")


@dataclass(frozen=True)
class TableFile:
    """A Parquet file in a table's directory, and what readers may skip it by."""

    path: str
    size_bytes: int
    rows: int
    constants: Mapping[str, str]
    """Columns that have one value in the whole file."""

    def action(self) -> AddAction:
        stats = {
            "numRecords": self.rows,
            "minValues": dict(self.constants),
            "maxValues": dict(self.constants),
            "nullCount": dict.fromkeys(self.constants, 0),
        }
        return AddAction(
            path=self.path,
            size=self.size_bytes,
            partition_values={},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps(stats),
        )


class Store:
    """The tables of one store. Safe to use from several threads: one lock per table."""

    def __init__(self, uri: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
        text = str(uri)
        if _NO_URI.match(text):
            raise StoreNotReady(
                f"store {text} is neither a path nor a URI that deltalake can write: of dbfs: give "
                "the place behind it, s3://... or abfss://...; of others, begin as in hdfs://host/"
            )
        self.uri = text.rstrip("/") if _URI.match(text) else str(Path(text).absolute())
        self._storage_options = dict(storage_options) if storage_options else None
        self._tables = {name: _Table() for name in SCHEMAS}
        self._checksums = {
            name: VersionChecksums(Path(self.table_uri(name)))
            for name in (STREAMED if self.is_local else ())
        }

    def __repr__(self) -> str:
        return f"Store({self._shown!r})"

    @property
    def is_local(self) -> bool:
        return not _URI.match(self.uri)

    @property
    def directory(self) -> Path | None:
        """Where the store is on this machine, or on a share; None for object stores."""
        uri = self.uri.removeprefix("file://")
        return Path(uri) if self.is_local or uri != self.uri else None

    def table_uri(self, name: str) -> str:
        return table_uri(self.uri, name)

    def open(self) -> Store:
        """Create the tables that are missing and bring older ones up to this program's schemas."""
        if self.is_local:
            prove_writable(Path(self.uri))
        for name, table in self._tables.items():
            with table.lock:
                table.handle = open_table(self.uri, name, self._storage_options)
                table.commits = 0
        return self

    def append(
        self, name: str, rows: pa.Table, app_id: str | None = None, version: int | None = None
    ) -> bool:
        """Append rows; with an `app_id`, at most once per `version` of it.

        Returns False, having written nothing, when that version (or a later one) is already in.
        Versions of one `app_id` must grow.
        """
        if (app_id is None) != (version is None):
            raise ValueError("app_id and version go together")
        once = Transaction(app_id, version) if app_id is not None and version is not None else None
        properties = CommitProperties(app_transactions=[once]) if once else None

        def commit(handle: DeltaTable) -> bool:
            if once and _is_in(handle, once):
                return False
            try:
                write_deltalake(handle, rows, mode="append", commit_properties=properties)
            except CommitFailedError:
                # Another writer of the same app_id came first: it may have brought this version. Or
                # another process has made the table at the same moment, and its commit came second.
                handle.update_incremental()
                if once and _is_in(handle, once):
                    return False
                write_deltalake(handle, rows, mode="append", commit_properties=properties)
            if name in self._checksums:
                self._checksums[name].write(handle)
            return True

        return self._counting(name, self._with_handle(name, commit, writes_bytes=rows.nbytes))

    def add_files(self, name: str, files: Sequence[TableFile], app_id: str, version: int) -> bool:
        """Make files that lie in a table's directory a part of it; like `append`, at most once per
        `version` of `app_id`."""
        once = Transaction(app_id, version)

        def commit(handle: DeltaTable) -> bool:
            handle.update_incremental()
            if _is_in(handle, once):
                return False
            handle.create_write_transaction(
                [file.action() for file in files],
                mode="append",
                schema=handle.schema(),
                commit_properties=CommitProperties(app_transactions=[once]),
            )
            # The handle does not see what was committed by it in this way.
            handle.update_incremental()
            return True

        return self._counting(name, self._with_handle(name, commit, writes_bytes=0))

    def remove_unnamed(self, name: str, directory: str, named: Collection[str]) -> int:
        """Delete files of a directory inside a table's that no commit ever named: what a writer
        left that ended before it could report them. Returns how many there were."""
        filesystem = self.files(name)
        try:
            found = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
            unnamed = [file.path for file in found if file.is_file and file.path not in named]
            for path in unnamed:
                filesystem.delete_file(path)
        except OSError as error:
            raise StoreError(f"store {self._shown}: {name}: {in_one_line(error)}") from error
        return len(unnamed)

    def claim_run(self, row: Mapping[str, Any]) -> bool:
        """Put in the row of a new run, unless its id is taken.

        Of several processes that try it at once one succeeds: the commit carries the id as a
        transaction, and Delta lets no two commits of one version of it in. A run that was refused
        before its load does not keep its id: the next one takes the place of its row.
        """
        source = pa.Table.from_pylist([dict(row)], schema=RUNS)
        name = f"run {row['run_id']}"
        own = f"run_id = '{row['run_id']}'"  # No id has a quote in it.

        def commit(handle: DeltaTable) -> bool:
            # Looked at in one version of the table: what others commit of this id conflicts.
            if _select(handle, "run_id", f"{own} AND NOT ({_REFUSED})"):
                return False
            once = Transaction(name, (handle.transaction_version(name) or 0) + 1)
            properties = CommitProperties(app_transactions=[once])
            if _select(handle, "run_id", own):
                _merge(handle, source, properties)
            else:
                write_deltalake(handle, source, mode="append", commit_properties=properties)
            return True

        return self._replacing("runs", commit, source.nbytes)

    def end_run(self, run_id: str, status: str, reason: str, exit_code: int) -> bool:
        """End a run's row that is still `running`; whether it was."""
        ended = {
            "status": status,
            "exit_code": exit_code,
            "reasons": [reason],
            "ended_at": datetime.now(UTC),
        }

        def commit(handle: DeltaTable) -> bool:
            # No id has a quote in it.
            rows = _select(handle, "*", f"run_id = '{run_id}' AND status = 'running'")
            if rows:
                _merge(handle, pa.Table.from_pylist([rows[0] | ended], schema=RUNS))
            return bool(rows)

        return self._replacing("runs", commit)

    def replace_run(self, row: Mapping[str, Any]) -> None:
        """Put this row into `runs` in place of the one with the same run_id, if there is one."""
        source = pa.Table.from_pylist([dict(row)], schema=RUNS)
        self._replacing("runs", lambda handle: _merge(handle, source), source.nbytes)

    def _replacing(self, name: str, commit: Callable[[DeltaTable], T], writes_bytes: int = 0) -> T:
        """Commit on the newest version of a table; again where another process came first."""

        def attempts(handle: DeltaTable) -> T:
            backoff = Backoff(0.02, 0.4)
            for attempt in range(1, MERGE_ATTEMPTS + 1):
                handle.update_incremental()
                try:
                    return commit(handle)
                except CommitFailedError:
                    if attempt == MERGE_ATTEMPTS:
                        raise
                    time.sleep(backoff.next_seconds())
            raise AssertionError("the last attempt returns or raises")

        return self._with_handle(name, attempts, writes_bytes)

    def read(
        self,
        name: str,
        columns: list[str] | None = None,
        between: tuple[str, int, int] | None = None,
        **equals: str | int | None,
    ) -> pa.Table:
        """The newest rows of a table, whole, or those whose columns equal the values given.

        `between`: a column, and the first and last value that it may have.
        """
        return self.read_with_version(name, columns, between, **equals)[0]

    def read_with_version(
        self,
        name: str,
        columns: list[str] | None = None,
        between: tuple[str, int, int] | None = None,
        **equals: str | int | None,
    ) -> tuple[pa.Table, int]:
        """`read`, and the version of the table that was read."""

        def scan(handle: DeltaTable) -> tuple[pa.Table, int]:
            handle.update_incremental()
            filters: list[tuple[str, str, Any]] = [
                (column, "=", value) for column, value in equals.items()
            ]
            if between is not None:
                column, first, last = between
                filters += [(column, ">=", first), (column, "<=", last)]
            there = {field.name for field in handle.schema().fields}
            known = None if columns is None else [each for each in columns if each in there]
            rows = handle.to_pyarrow_table(
                columns=known, filters=filters or None, filesystem=self._filesystem(name)
            )
            return _with_columns(rows, name, columns), int(handle.version())

        return self._with_handle(name, scan)

    def files(self, name: str) -> fs.FileSystem:
        """What a table consists of, its log included; paths begin at the table."""
        return self._filesystem(name) or fs.PyFileSystem(
            DeltaStorageHandler(self.table_uri(name), self._storage_options)
        )

    def rows_by_file(self, name: str, run_id: str) -> dict[str, int]:
        """The files that may hold some rows of a run, inside the table's directory, and how many
        rows each has: no file is read for it."""

        def find(handle: DeltaTable) -> dict[str, int]:
            handle.update_incremental()
            files = pa.table(handle.get_add_actions(flatten=True))
            names = ("path", "num_records", "min.run_id", "max.run_id")
            if not set(names) <= set(files.column_names):
                return {}
            entries = zip(*(files[column].to_pylist() for column in names), strict=True)
            return {
                unquote(path): rows or 0
                for path, rows, first, last in entries
                if first is None or last is None or first <= run_id <= last
            }

        return self._with_handle(name, find)

    def version(self, name: str) -> int:
        """The newest version of a table, by any writer."""

        def newest(handle: DeltaTable) -> int:
            handle.update_incremental()
            return int(handle.version())

        return self._with_handle(name, newest)

    def _counting(self, name: str, is_appended: bool) -> bool:
        self._tables[name].appends += is_appended
        return is_appended

    def overdue(self) -> list[str]:
        """Tables that this process has appended to so often that they should be compacted."""
        found = self._tables.items()
        return [name for name, table in found if table.appends >= COMPACT_AFTER_APPENDS]

    def compact(self, name: str) -> None:
        """Rewrite small files as large ones. No data changes: streaming readers do not notice.

        Two of these at once must not be: deltalake (1.6) lets both commit, each takes away the same
        files and adds a copy of their rows, and all of them are there twice. See `spark/run.py`.
        """

        def optimize(handle: DeltaTable) -> None:
            handle.update_incremental()
            self._prove_room(name, sum(handle.get_add_actions()["size_bytes"].to_pylist()))
            handle.optimize.compact(
                writer_properties=WriterProperties(
                    max_row_group_size=COMPACTED_GROUP_ROWS.get(name, SMALL_ROWS_IN_GROUP)
                )
            )

        self._tables[name].appends = 0
        self._with_handle(name, optimize)

    # -- handles ---------------------------------------------------------------------------------

    def _with_handle(
        self, name: str, action: Callable[[DeltaTable], T], writes_bytes: int | None = None
    ) -> T:
        """`writes_bytes`: of the rows that the action writes; None if it only reads."""
        table = self._tables[name]
        with table.lock:
            try:
                if table.handle is None or table.commits >= REOPEN_AFTER_COMMITS:
                    table.handle = DeltaTable(
                        self.table_uri(name), storage_options=self._storage_options
                    )
                    table.commits = 0
                table.commits += 1
                if writes_bytes is not None:
                    self._prove_room(name, writes_bytes)
                return action(table.handle)
            except TableNotFoundError as error:
                raise StoreError(f"store {self._shown}: no table {name!r} in it") from error
            except (DeltaError, OSError) as error:
                # The handle may be in any state now; the next call opens a new one.
                table.handle = None
                raise StoreError(f"store {self._shown}: {name}: {in_one_line(error)}") from error

    def _prove_room(self, name: str, size_bytes: int) -> None:
        """Refuse to write into a directory that is full or read-only.

        deltalake would raise an error, too, but not before its threads have printed that they
        panicked, and nothing can keep that from the terminal. Rows take less room in a file than in
        memory, so that there is enough where this finds no fault.
        """
        if self.directory is None:
            return
        kept_free_bytes = 0 if name in RESULT else KEPT_FREE_BYTES
        try:
            try_to_write(self.directory, size_bytes + COMMIT_BYTES + kept_free_bytes)
        except OSError as error:
            raise StoreError(
                f"the store {self._shown} cannot be written: {error.strerror}"
            ) from error

    def _filesystem(self, name: str) -> fs.FileSystem | None:
        """How pyarrow reads a table's files; None: through deltalake.

        That way threads of pyarrow call back into Python, and one that does so while Python ends
        aborts the process (seen in one of eight short commands on a busy machine).
        """
        if not self.is_local:
            return None
        return fs.SubTreeFileSystem(self.table_uri(name), fs.LocalFileSystem())

    @property
    def _shown(self) -> str:
        return without_user(self.uri)


class _Table:
    """An open handle and how often it was used; guarded by its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.handle: DeltaTable | None = None
        self.commits = 0
        self.appends = 0
        """Since it was compacted."""


def _with_columns(rows: pa.Table, name: str, columns: list[str] | None) -> pa.Table:
    """The columns in the order asked for; one that an older store does not have yet is null."""
    for column in columns or ():
        if column not in rows.column_names:
            kind = SCHEMAS[name].field(column).type
            rows = rows.append_column(column, pa.nulls(len(rows), kind))
    return rows if columns is None else rows.select(columns)


def _merge(
    handle: DeltaTable, source: pa.Table, properties: CommitProperties | None = None
) -> None:
    """Put rows into `runs` in place of those with their run ids."""
    (
        handle.merge(
            source,
            predicate="target.run_id = source.run_id",
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        )
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def _select(handle: DeltaTable, columns: str, condition: str) -> list[dict[str, Any]]:
    """Rows of `runs`. Asked of deltalake's own engine: processes that end soon afterwards must not
    use pyarrow (see `_filesystem`)."""
    query = f"SELECT {columns} FROM runs WHERE {condition}"  # noqa: S608
    found = QueryBuilder().register("runs", handle).execute(query).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _is_in(handle: DeltaTable, transaction: Transaction) -> bool:
    newest = handle.transaction_version(transaction.app_id)
    return newest is not None and newest >= transaction.version
