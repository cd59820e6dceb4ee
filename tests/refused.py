"""What is true of every run that is refused before its load, whatever was wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyarrow.fs import FileSelector

from bench_spark.errors import EXIT_PREFLIGHT, StoreError
from bench_spark.store.delta import Store

_JAVA = r"^\s+at [\w.$]+\(|\b(?:java|org)(?:\.[a-z]\w*)+\.[A-Z]|Exception"
_NOT_FOR_PEOPLE = re.compile(rf"Traceback|{_JAVA}|<\?xml|<Code>|\x1b\[", re.MULTILINE)
LEFT_BY_TRIALS = re.compile(r"(^|/)(_marker-|\.writable)")


def check_refused(
    code: int,
    said: str,
    *words: str,
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Exit code 3 and one sentence with these words, which is returned; in the store, where one is
    named, no run that seems to go on, and no file that was only to try it."""
    assert code == EXIT_PREFLIGHT, said
    errors = [line for line in said.splitlines() if line.startswith("bench-spark: ")]
    assert len(errors) == 1, said
    for word in words:
        assert word in errors[0], said
    assert not _NOT_FOR_PEOPLE.search(said), said
    if store is not None:
        _check_left(Store(store, environment))
    return errors[0]


def _check_left(store: Store) -> None:
    try:
        statuses = store.read("runs", columns=["status"])["status"].to_pylist()
    except StoreError:
        statuses = []  # refused before there were tables
    assert "running" not in statuses
    for table in ("runs", "events", "messages"):
        files = store.files(table).get_file_info(
            FileSelector("", recursive=True, allow_not_found=True)
        )
        assert [file.path for file in files if LEFT_BY_TRIALS.search(file.path)] == []
    if store.directory is not None and store.directory.is_dir():
        assert [path for path in store.directory.iterdir() if path.name.startswith("_marker")] == []
