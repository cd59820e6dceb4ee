"""Opening the tables of a store: made where they are missing, brought up to this program's schemas.

A store that cannot be used is refused here, in one line that holds no credentials.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError

from bench_spark import tables
from bench_spark.errors import StoreError, StoreNotReady

_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_USER_INFO = re.compile(r"(://)[^/@\s]+@")


def prove_writable(directory: Path) -> None:
    """Try a local store with a file of its own; a remote one is tried by creating its tables."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try_to_write(directory)
    except OSError as error:
        raise StoreNotReady(f"store {directory} cannot be written: {error.strerror}") from error


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
            tables.table_uri(store, name),
            schema=tables.TABLES[name],
            mode="ignore",
            configuration={
                tables.SCHEMA_PROPERTY: str(tables.SCHEMA_NUMBER),
                **tables.PROPERTIES.get(name, {}),
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
    number = int(configuration.get(tables.SCHEMA_PROPERTY) or 0)
    if number > tables.SCHEMA_NUMBER:
        raise StoreError(
            f"store {without_user(store)}: table {name} has schema {number}, this program knows "
            f"{tables.SCHEMA_NUMBER}: use a newer bench-spark"
        )
    present = {field.name for field in handle.schema().fields}
    known: list[Field] = Schema.from_arrow(tables.TABLES[name]).fields
    missing = [field for field in known if field.name not in present]
    try:
        if missing:
            handle.alter.add_columns(missing)
        lacking = {
            key: value
            for key, value in tables.PROPERTIES.get(name, {}).items()
            if key not in configuration
        }
        if number < tables.SCHEMA_NUMBER:
            lacking[tables.SCHEMA_PROPERTY] = str(tables.SCHEMA_NUMBER)
        if lacking:
            handle.alter.set_table_properties(lacking, raise_if_not_exists=False)
    except (DeltaError, OSError) as error:
        raise StoreNotReady(
            f"store {without_user(store)}: table {name} could not be brought to schema "
            f"{tables.SCHEMA_NUMBER}: {in_one_line(error)}"
        ) from error


def without_user(uri: str) -> str:
    return _USER_INFO.sub(r"\1", uri)


def in_one_line(error: BaseException) -> str:
    """deltalake draws coloured trees of causes over several lines; credentials stay out of them."""
    text = _TERMINAL_COLOUR.sub("", str(error)).replace("↳", ":")
    return without_user(" ".join(text.split()))[:300]
