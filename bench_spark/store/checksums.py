"""Version checksums: what a Delta table consists of, beside each commit.

Spark's Delta reads schema and protocol of a new version from `<version>.crc` if that is there, and
otherwise runs a job over the transaction log. A streaming reader does so for every batch: with the
file a batch of the rolling metrics costs a third less CPU. deltalake does not write these files, so
this does, next to the commits of one process; a reader that finds none loses only time.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable


@dataclass(frozen=True)
class Contents:
    """The files of a table at one version."""

    version: int
    files: int
    size_bytes: int

    def after(self, commit: str) -> Contents | None:
        """Contents after the commit that follows; None where its actions do not say."""
        files, size_bytes = self.files, self.size_bytes
        for line in commit.splitlines():
            action = json.loads(line)
            if added := action.get("add"):
                files, size_bytes = files + 1, size_bytes + int(added["size"])
            elif "remove" in action:
                return None
        return Contents(self.version + 1, files, size_bytes)

    @classmethod
    def of(cls, handle: DeltaTable) -> Contents:
        sizes = handle.get_add_actions()["size_bytes"].to_pylist()
        return cls(handle.version(), len(sizes), sum(sizes))


KEPT = 20
"""Readers want the newest; a log of thousands of files slows every commit down."""


class VersionChecksums:
    """Writes the checksum of each version that a handle commits. Local tables only."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._known: Contents | None = None

    def write(self, handle: DeltaTable) -> None:
        """To be called after a commit, with the handle that made it."""
        version = handle.version()
        contents = self._next(version) or Contents.of(handle)
        self._known = contents
        checksum = self._log / f"{version:020d}.crc"
        fresh = checksum.with_name(f".{checksum.name}.{os.getpid()}")
        fresh.write_text(checksum_text(handle, contents))
        fresh.rename(checksum)
        (self._log / f"{version - KEPT:020d}.crc").unlink(missing_ok=True)

    def _next(self, version: int) -> Contents | None:
        """What is known, moved on by one commit: a table may have thousands of files to count."""
        if self._known is None or self._known.version + 1 != version:
            return None
        return self._known.after((self._log / f"{version:020d}.json").read_text())


def checksum_text(handle: DeltaTable, contents: Contents) -> str:
    """As the Delta protocol describes it under "Version Checksum File"."""
    metadata, protocol = handle.metadata(), handle.protocol()
    described: dict[str, Any] = {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": handle.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
        "createdTime": metadata.created_time,
    }
    versions: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    return json.dumps(
        {
            "tableSizeBytes": contents.size_bytes,
            "numFiles": contents.files,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": {key: value for key, value in described.items() if value is not None},
            "protocol": {key: value for key, value in versions.items() if value is not None},
        }
    )
