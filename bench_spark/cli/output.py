"""Where results go. Standard output holds one thing at a time; the rest goes to standard error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TextIO, TypeVar

from bench_spark.cli.options import default_store
from bench_spark.cli.stored import run_report
from bench_spark.config.problems import nearest, shown_path, shown_value
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.report.formats import write_csv, write_json
from bench_spark.report.html_run import write_run_html
from bench_spark.report.measures import Document
from bench_spark.report.parquet import parquet_of
from bench_spark.report.terminal import write_terminal
from bench_spark.store.delta import Store

Result = TypeVar("Result")
"""What is written: the document of a run, of a search, of a comparison, or the table of a suite."""

_OWNERS_OF_STDOUT = ("json", "csv", "html", "markdown", "terminal")
"""Who gets standard output, the first that was asked for: programs read it, people read both."""


@dataclass(frozen=True)
class Formats(Generic[Result]):
    """What a result can be written as."""

    texts: Mapping[str, Callable[[Result, TextIO], None]]
    files: Mapping[str, Callable[[Result], bytes]] = field(default_factory=dict)
    """Formats that are no text, and so only go into files."""

    @property
    def names(self) -> list[str]:
        return [*self.texts, *self.files]


@dataclass(frozen=True)
class Outputs(Generic[Result]):
    """The formats asked for, each with its file; None: a standard stream."""

    chosen: tuple[tuple[str, Path | None], ...]
    formats: Formats[Result]

    def write(self, result: Result) -> None:
        on_streams = [name for name, path in self.chosen if path is None]
        owner = next((name for name in _OWNERS_OF_STDOUT if name in on_streams), None)
        for name, path in self.chosen:
            if path is None:
                stream = sys.stdout if name == owner else sys.stderr
                to_stream(stream, partial(self.formats.texts[name], result))
            elif name in self.formats.files:
                write_bytes(path, self.formats.files[name](result))
            else:
                write_file(path, partial(self.formats.texts[name], result))


def parse_formats(texts: Sequence[str], store: str) -> Outputs[Document]:
    """Formats of a run's result; `store` is where it is kept, as given by the user."""
    told = None if store == default_store() else store

    def write_html(document: Document, writer: TextIO) -> None:
        write_run_html(run_report(Store(store), document), store, writer)

    by_name: dict[str, Callable[[Document, TextIO], None]] = {
        "terminal": partial(write_terminal, store=told),
        "json": write_json,
        "csv": write_csv,
        "html": write_html,
    }
    return parse_formats_of(Formats(by_name, {"parquet": parquet_of}), texts)


def parse_formats_of(formats: Formats[Result], texts: Sequence[str]) -> Outputs[Result]:
    """`FORMAT` or `FORMAT=FILE`, each at most once for a stream or a file."""
    chosen: dict[tuple[str, Path | None], None] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if name not in formats.names:
            guess = nearest(name, formats.names)
            raise ConfigurationError(
                f"--format: {shown_value(name)} is unknown; allowed: {', '.join(formats.names)}, "
                "each with =FILE to write a file" + (f"; did you mean {guess}?" if guess else "")
            )
        if name in formats.files and not equals:
            raise ConfigurationError(f"--format: {name} is no text; give a file: {name}=FILE")
        path = file_to_write("--format", file) if equals else None
        chosen[name, path] = None
    return Outputs(tuple(chosen), formats)


def file_to_write(option: str, file: str) -> Path:
    """Refused before the load runs, not after."""
    path = Path(file)
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise ConfigurationError(f"{option}: {shown_path(file)}: the file cannot be written")
    return path


def to_stream(stream: TextIO, write: Callable[[TextIO], None]) -> None:
    """Write, unless nobody reads any more: the result is in the store, so that is no failure."""
    try:
        write(stream)
        stream.flush()
    except BrokenPipeError:
        drop_buffered(stream)
    except OSError as error:
        drop_buffered(stream)
        name = "standard output" if stream is sys.stdout else "standard error"
        raise StoreError(f"{name}: cannot be written: {error.strerror}") from error


def drop_buffered(stream: TextIO) -> None:
    """What is still buffered would raise again when Python closes the stream at its end."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def to_stdout(write: Callable[[TextIO], None]) -> None:
    to_stream(sys.stdout, write)


def write_file(path: Path, write: Callable[[TextIO], None]) -> None:
    text = io.StringIO()
    write(text)
    write_bytes(path, text.getvalue().encode())


def write_bytes(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StoreError(f"{shown_path(str(path))}: cannot be written: {error.strerror}") from error
