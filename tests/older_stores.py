"""Stores that older versions wrote, kept in tests/stores to prove that they can still be read."""

from __future__ import annotations

import tarfile
from pathlib import Path

STORES = Path(__file__).parent / "stores"

FIRST_TREE = ("kafka-confluent", "kafka-killed", "loopback-first", "loopback-traced")
"""Runs of first_tree.tar.gz, written before the core was compiled. All of them have `amqp.plane:
pika` in their scenario, and a value for `kafka.plane`, which is `confluent` in the first. Driver
and agents of `kafka-killed` were killed with SIGKILL; `loopback-traced` has `trace: all`."""


def unpacked(name: str, directory: Path) -> Path:
    """A copy of a kept store in a new directory."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory
