"""Real records instead of made bodies: between the loop, which knows heads, and the transport.

The loop deals heads and takes heads back. Here a batch of heads becomes a batch of records that
carry IDs, before the send time is taken; and what was received gets its heads again, from the IDs
and from what this agent remembers of sending them. A message without an ID has the run tag 0.
"""

from __future__ import annotations

import numpy as np

from bench_spark.agent.given_ids import GivenIds
from bench_spark.agent.sent_ring import SentRing
from bench_spark.core.identity import content_hashes, decode_ids, encode_ids, id_rows, id_texts
from bench_spark.datasets.ordering import RecordOrdering
from bench_spark.datasets.source import RecordSource
from bench_spark.errors import RunError
from bench_spark.identity.base import Carrier, NoPlace
from bench_spark.transports.base import Batch, Outcomes, Part, Received


class Carrying:
    def __init__(
        self,
        carrier: Carrier,
        records: RecordSource | None,
        ordering: RecordOrdering | None,
        ring: SentRing,
        hashes_contents: bool = False,
        given_ids: GivenIds | None = None,
    ) -> None:
        """`records` and their `ordering` are for agents that send. `given_ids`: where it is the
        system that gives IDs."""
        self._carrier = carrier
        self._records = records
        self._ordering = ordering
        self._ring = ring
        self._hashes_contents = hashes_contents
        self._given_ids = given_ids

    @property
    def wants(self) -> frozenset[Part]:
        """What must be received of a message."""
        return self._carrier.wants | ({Part.BODY} if self._hashes_contents else set())

    # -- sending ---------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        """Turn heads into messages; their times need not be known yet."""
        assert self._records is not None
        assert self._ordering is not None
        numbers = self._ordering.numbers(batch.head["producer"], batch.head["sequence"])
        records = self._records.read(numbers)
        try:
            carried = self._carrier.put(id_texts(encode_ids(batch.head)), records)
        except NoPlace as nowhere:
            place = self._records.place(int(numbers[nowhere.place]))
            raise RunError(f"{place}: {nowhere}, and the record cannot be sent") from nowhere
        batch.head_bytes = 0
        batch.tail = carried.bodies
        batch.keys = carried.keys
        batch.headers = carried.headers
        batch.sizes = np.fromiter(map(len, carried.bodies), np.uint32, len(batch))
        if self._hashes_contents:
            batch.hashes = content_hashes(records.bodies)

    def accepted(self, batch: Batch, count: int) -> None:
        """The first of these messages are out."""
        hashes = None if batch.hashes is None else batch.hashes[:count]
        self._ring.add(batch.lane[:count], batch.head[:count], hashes)

    def answered(self, outcomes: Outcomes) -> None:
        """What became of messages; answers may name their IDs."""
        if self._given_ids is not None:
            self._given_ids.learn(outcomes)

    # -- receiving -------------------------------------------------------------------------------

    def identify(self, received: Received) -> Received:
        """The same messages, with the heads they were sent with as far as they are known here."""
        hashes = None
        if self._hashes_contents and len(received):
            hashes = content_hashes(self._carrier.contents(received))
        if self._given_ids is not None:
            texts = self._carrier.find(received) if len(received) else []
            received.hashes = hashes
            received, head = self._given_ids.recognise(received, texts)
            hashes = received.hashes
        elif not len(received):
            return received
        else:
            head, _ = decode_ids(id_rows(self._carrier.find(received)))
        known = self._ring.find(head)
        head["sent_ns"] = known.sent_ns
        head["intended_ns"] = known.intended_ns
        received.rows["head"] = head
        received.bodies = received.keys = received.headers = None
        if hashes is not None:
            received.hashes = hashes
            received.rows["corrupted"] = known.is_known & (hashes != known.content)
        return received
