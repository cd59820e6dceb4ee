"""The contract between an agent and a carrier of IDs.

A carrier works on whole batches. It adds the ID and nothing else: a record without its ID is the
record that was read, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from bench_spark.datasets.source import Records
from bench_spark.transports.base import Part, Received

NO_ID = b""
"""What a carrier finds in a message that has none."""


class Carried(NamedTuple):
    """Messages as they are sent."""

    bodies: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None


class NoPlace(Exception):
    """A record that the ID cannot be put into: its place in the batch, and why."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


class Carrier(Protocol):
    @property
    def puts_into(self) -> frozenset[Part]:
        """Which parts of a message it changes: a transport without them cannot be used."""

    @property
    def wants(self) -> frozenset[Part]:
        """Which parts of a received message it looks at."""

    @property
    def added_bytes(self) -> int:
        """By how much it makes a body longer."""

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        """The records with these IDs; raises NoPlace."""

    def find(self, received: Received) -> list[bytes]:
        """The ID of each message, NO_ID where there is none."""

    def contents(self, received: Received) -> Sequence[bytes]:
        """The bodies without their IDs."""

    def ambiguity(self, record: bytes) -> str | None:
        """Why an ID put into this record could not be found again; None if it can."""
