"""Files that a command writes for its user: never over what is there, unless told to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.importing.files import NewFile
from bench_spark.scenario.shown import shown_path

ForceOption = Annotated[
    bool, typer.Option("--force", help="Write over files of the same names that are there.")
]


def write_new_files(directory: Path, files: Sequence[NewFile], force: bool) -> list[Path]:
    """All of them or none: what is there already is found before anything is written."""
    paths = [directory / file.name for file in files]
    there = [shown_path(str(path)) for path in paths if path.exists()]
    if there and not force:
        raise ConfigurationError(f"{', '.join(there)}: there already; --force writes over it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text)
    except OSError as error:
        raise StoreError(
            f"{shown_path(str(directory))}: cannot be written: {error.strerror}"
        ) from error
    return paths
