"""The "broker": bounded queues of messages in this process's memory, and wake-ups for those who
wait."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench_spark.config.topologies import Wiring
from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    byte_rows_of,
    empty_envelopes,
    leading_envelopes,
)
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.errors import BrokerRefused
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.batches import (
    I64,
    RECEIVED_DTYPE,
    U32,
    Batch,
    Headers,
    Payloads,
    Rows,
    common_payload_bytes,
    each_payload,
)


@dataclass
class Chunk:
    """Messages of one batch that went to one queue."""

    envelope: Envelopes
    size: U32
    payload: Payloads
    keys: Sequence[bytes] | None = None
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.envelope)

    def bodies(self) -> list[bytes]:
        # A payload that all share has no end, so the envelopes decide.
        return [
            row.tobytes()[: size - len(payload)] + payload if size > len(payload) else payload
            for row, size, payload in zip(
                byte_rows_of(self.envelope),
                self.size.tolist(),
                each_payload(self.payload),
                strict=False,
            )
        ]


def chunk_of(batch: Batch, places: slice | I64, keeps_payloads: bool = True) -> Chunk:
    """These messages, copied where the sender uses its memory again; envelopes are cut as they
    would be in a body. Payloads of random bytes are left out where no consumer will look at
    bodies."""
    envelope = np.array(batch.envelope[places])
    if 0 < batch.envelope_bytes < ENVELOPE_BYTES:
        byte_rows_of(envelope)[:, batch.envelope_bytes :] = 0
    payload_bytes = common_payload_bytes(batch.payload)
    has_body_only = batch.keys is None and batch.headers is None
    if payload_bytes is not None and batch.envelope_bytes and has_body_only:
        size = np.full(len(envelope), batch.envelope_bytes + payload_bytes, np.uint32)
        payload = batch.payload
        if isinstance(payload, np.ndarray):
            payload = np.array(payload[places]) if keeps_payloads else b""
        return Chunk(envelope, size, payload)
    own = batch.at(np.arange(len(batch))[places])
    payloads = [
        payload for payload, _ in zip(each_payload(own.payload), own.envelope, strict=False)
    ]
    lengths = np.fromiter(map(len, payloads), np.uint32, len(payloads))
    size = lengths + np.uint32(batch.envelope_bytes)
    if not batch.envelope_bytes:
        envelope = leading_envelopes(payloads)
    return Chunk(envelope, size, own.payload, own.keys, own.headers)


@kernel
def deliver(
    envelopes: Envelopes, sizes: U32, rows: Rows, turns: I64, first: int, at_ns: int
) -> None:
    """Write the messages of a chunk as received ones: the `first` goes to that lane and route of
    `turns`, the others follow in turn."""
    turn = first % len(turns)
    for at in range(len(envelopes)):
        row, sent = rows[at], envelopes[at]
        envelope = row["envelope"]
        envelope["sent_ns"] = sent["sent_ns"]
        envelope["intended_ns"] = sent["intended_ns"]
        envelope["sequence"] = sent["sequence"]
        envelope["producer"] = sent["producer"]
        envelope["run_tag"] = sent["run_tag"]
        row["received_ns"] = at_ns
        row["lane"] = turns[turn, 0]
        row["route"] = turns[turn, 1]
        row["size"] = sizes[at]
        row["subscription"] = 0
        row["redelivered"] = False
        row["corrupted"] = False
        turn += 1
        if turn == len(turns):
            turn = 0


@warm_up
def _compile() -> None:
    rows, turns = np.zeros(1, RECEIVED_DTYPE), np.zeros((1, 2), np.int64)
    deliver(empty_envelopes(1), np.zeros(1, np.uint32), rows, turns, 0, 0)


class ReadyEvent:
    """A descriptor that is readable while somebody has something to fetch."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_readable = False
        self._is_closed = False

    def set(self, is_readable: bool) -> None:
        if is_readable == self._is_readable or self._is_closed:
            return
        self._is_readable = is_readable
        if is_readable:
            os.eventfd_write(self.descriptor, 1)
        else:
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self.descriptor)


@dataclass
class Queue:
    name: str
    capacity: int
    is_sink: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)
    depth: int = 0
    readers: list[ReadyEvent] = field(default_factory=list)
    refused: list[ReadyEvent] = field(default_factory=list)
    """Of producers that wait for room."""
    wants_bodies: list[bool] = field(default_factory=list)
    """Of the lanes that read from it."""

    @property
    def keeps_bodies(self) -> bool:
        """Whether anybody may look at them: unknown before there are consumers."""
        return not self.wants_bodies or any(self.wants_bodies)

    @property
    def room(self) -> int:
        return self.capacity - self.depth

    def ask_for_room(self, wakeup: ReadyEvent) -> None:
        if wakeup not in self.refused:
            self.refused.append(wakeup)

    def put(self, chunk: Chunk) -> None:
        if self.is_sink:
            return
        self.chunks.append(chunk)
        self.depth += len(chunk)
        for wakeup in self.readers:
            wakeup.set(True)

    def take_all(self) -> list[Chunk]:
        taken = list(self.chunks)
        self.chunks.clear()
        self.depth = 0
        for wakeup in self.refused:
            wakeup.set(True)
        self.refused.clear()
        return taken


class MemoryBroker:
    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self.queues: dict[str, Queue] = {}
        self.users = 0

    def find(self, destination: Destination) -> Queue:
        queue = self.queues.get(destination.name or "")
        if queue is None:
            raise BrokerRefused(f"loopback: no destination {destination.name!r} in this process")
        return queue

    def behind(self, destination: Destination) -> list[Queue]:
        """The queues that get what is published to a destination."""
        if self._wiring.is_plain:
            return [self.find(destination)]
        group = self._wiring.group_of_destination(destination.index)
        return [
            self.find(self.subscribed(index))
            for index in self._wiring.subscriptions_of_group(group)
        ]

    def read_by(self, lane: Lane) -> list[Queue]:
        """The queue of each of a consumer's routes."""
        if self._wiring.is_plain:
            return [self.find(destination) for destination in lane.destinations]
        return [self.find(self.subscribed(index)) for index in lane.subscriptions]

    @staticmethod
    def subscribed(index: int) -> Destination:
        """The queue of a subscription, as if it were a destination."""
        return Destination(index, f"loopback-subscription-{index}", declared=True)

    def subscribed_to(self, destinations: Sequence[Destination]) -> list[Destination]:
        """The queues of all subscriptions to these."""
        groups = sorted({self._wiring.group_of_destination(one.index) for one in destinations})
        return [
            self.subscribed(index)
            for group in groups
            for index in self._wiring.subscriptions_of_group(group)
        ]
