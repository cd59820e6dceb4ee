"""Where results go. Standard output holds one thing at a time; the rest goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from bench_spark.config.problems import did_you_mean, shown_path, shown_value
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.report.formats import FORMATS, Report


@dataclass(frozen=True)
class Outputs:
    """The formats asked for, each with its file; None: a standard stream."""

    chosen: tuple[tuple[str, Path | None], ...]

    def write(self, report: Report) -> None:
        on_streams = [name for name, path in self.chosen if path is None]
        owner = min(on_streams, key=lambda name: FORMATS[name].precedence, default=None)
        for name, path in self.chosen:
            if path is not None:
                write_bytes(path, FORMATS[name].encode(report))
            else:
                stream = sys.stdout if name == owner else sys.stderr
                to_stream(stream, partial(FORMATS[name].write, report))


def parse_formats(texts: Sequence[str] | None, default: str = "terminal") -> Outputs:
    """`FORMAT` or `FORMAT=FILE`, each at most once for a stream or a file."""
    chosen: dict[tuple[str, Path | None], None] = {}
    for text in texts or [default]:
        name, equals, file = text.partition("=")
        if name not in FORMATS:
            raise ConfigurationError(
                f"--format: {shown_value(name)} is unknown; allowed: {', '.join(FORMATS)}, "
                "each with =FILE to write a file" + did_you_mean(name, FORMATS)
            )
        if FORMATS[name].is_binary and not equals:
            raise ConfigurationError(f"--format: {name} is no text; give a file: {name}=FILE")
        path = file_to_write("--format", file) if equals else None
        chosen[name, path] = None
    return Outputs(tuple(chosen))


def file_to_write(option: str, file: str) -> Path:
    """Refused before the load runs, not after."""
    path = Path(file)
    problem = ""
    if path.is_dir():
        problem = "is a directory, not a file"
    elif not path.parent.exists():
        problem = f"there is no such directory {shown_path(str(path.parent))}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "the file cannot be written"
    if problem:
        raise ConfigurationError(f"{option}: {shown_path(file)}: {problem}")
    return path


def to_stream(stream: TextIO, write: Callable[[TextIO], None]) -> None:
    """Write, unless the reader has gone: the result is in the store, so that is no failure."""
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


def write_bytes(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StoreError(f"{shown_path(str(path))}: cannot be written: {error.strerror}") from error
