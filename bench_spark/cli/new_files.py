"""Writes files for the user; replaces an existing one only where that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.config.problems import shown_path
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.importers.draft import NewFile

ForceOption = Annotated[
    bool, typer.Option("--force", help="Write over files of the same names that are there.")
]


def refuse_existing(directory: Path, names: Sequence[str]) -> None:
    there = [shown_path(str(path)) for name in names if (path := directory / name).exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)}: there already; --force writes over it")


def write_new_files(directory: Path, files: Sequence[NewFile], force: bool) -> list[Path]:
    """All of them or none: what is there already is found before anything is written."""
    if not force:
        refuse_existing(directory, [file.name for file in files])
    paths = [directory / file.name for file in files]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text)
    except OSError as error:
        raise StoreError(
            f"{shown_path(str(directory))}: cannot be written: {error.strerror}"
        ) from error
    return paths
