"""Where results go. Standard output holds one thing at a time; the rest goes to standard error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from bench_spark.cli.options import default_store
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.report.csv import write_csv
from bench_spark.report.json import write_json
from bench_spark.report.measures import Document
from bench_spark.report.terminal import write_terminal
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.shown import shown_path, shown_value

Write = Callable[[Document, TextIO], None]

_WRITERS: dict[str, Write] = {"terminal": write_terminal, "json": write_json, "csv": write_csv}
_OWNERS_OF_STDOUT = ("json", "csv", "terminal")
"""Who gets standard output, the first that was asked for: programs read it, people read both."""


@dataclass(frozen=True)
class Outputs:
    """The formats asked for, each with its file; None: a standard stream."""

    chosen: tuple[tuple[str, Path | None], ...]
    store: str
    """Where the result is kept, as given by the user."""

    def write(self, document: Document) -> None:
        on_streams = [name for name, path in self.chosen if path is None]
        store = None if self.store == default_store() else self.store
        writers = _WRITERS | {"terminal": partial(write_terminal, store=store)}
        owner = next((name for name in _OWNERS_OF_STDOUT if name in on_streams), None)
        for name, path in self.chosen:
            if path is not None:
                _write_file(path, partial(writers[name], document))
            else:
                stream = sys.stdout if name == owner else sys.stderr
                to_stream(stream, partial(writers[name], document))


def parse_formats(texts: Sequence[str], store: str) -> Outputs:
    """`FORMAT` or `FORMAT=FILE`, each at most once for a stream or a file."""
    chosen: dict[tuple[str, Path | None], None] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if name not in _WRITERS:
            guess = nearest(name, _WRITERS)
            raise ConfigurationError(
                f"--format: {shown_value(name)} is unknown; allowed: {', '.join(_WRITERS)}, each "
                "with =FILE to write a file" + (f"; did you mean {guess}?" if guess else "")
            )
        path = Path(file) if equals else None
        if path is not None and not _can_be_written(path):
            raise ConfigurationError(f"--format: {shown_path(text)}: the file cannot be written")
        chosen[name, path] = None
    return Outputs(tuple(chosen), store)


def to_stream(stream: TextIO, write: Callable[[TextIO], None]) -> None:
    """Write, unless nobody reads any more: the result is in the store, so that is no failure."""
    try:
        write(stream)
        stream.flush()
    except BrokenPipeError:
        # What is still buffered would raise again when Python closes the stream at its end.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def to_stdout(write: Callable[[TextIO], None]) -> None:
    to_stream(sys.stdout, write)


def _can_be_written(path: Path) -> bool:
    """Asked before the load runs, not after."""
    place = path if path.exists() else path.parent
    return not path.is_dir() and place.exists() and os.access(place, os.W_OK)


def _write_file(path: Path, write: Callable[[TextIO], None]) -> None:
    text = io.StringIO()
    write(text)
    try:
        path.write_text(text.getvalue())
    except OSError as error:
        raise StoreError(f"{shown_path(str(path))}: cannot be written: {error.strerror}") from error
