"""Proof that every executor sees the same store as the driver.

On a cluster a local path names a different directory on every machine. The driver leaves a marker
with a random content in the store, and every agent reads it before it touches the broker. A URI of
an object store or HDFS is the same place everywhere, and an agent's Python has no credentials for
it: there the rolling metrics prove, before the load, that Spark's executors can read it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs

from bench_spark.errors import StoreNotReady
from bench_spark.store import Store


@dataclass(frozen=True)
class StoreMarker:
    uri: str
    content: str

    def prove_readable(self) -> None:
        """Raises StoreNotReady on a machine that does not see the driver's store."""
        host = socket.gethostname()
        try:
            filesystem, path = fs.FileSystem.from_uri(self.uri)
            with filesystem.open_input_stream(path) as stream:
                found = stream.read().decode()
        except (OSError, ValueError) as error:
            raise StoreNotReady(
                f"the executor on {host} cannot read the store ({type(error).__name__}): with a "
                "master that is not local the store must be a URI or path that every machine shares"
            ) from None
        if found != self.content:
            raise StoreNotReady(f"the executor on {host} sees another store than the driver")


@contextmanager
def store_marker(store: Store, is_local_master: bool) -> Iterator[StoreMarker | None]:
    """A marker in the store while the agents start; None where all share one machine, or a URI."""
    directory = f"file://{store.uri}" if store.is_local else store.uri
    if is_local_master or not directory.startswith("file:"):
        yield None
        return
    uri = f"{directory}/_marker-{secrets.token_hex(8)}"
    marker = StoreMarker(uri, secrets.token_hex(16))
    filesystem, path = fs.FileSystem.from_uri(uri)
    with filesystem.open_output_stream(path) as stream:
        stream.write(marker.content.encode())
    try:
        yield marker
    finally:
        filesystem.delete_file(path)
