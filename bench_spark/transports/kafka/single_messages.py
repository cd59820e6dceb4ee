"""Bodies and keys of messages that are handed over one by one, to confluent-kafka. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import Batch, Lane, each_tail
from bench_spark.transports.kafka.key_choice import KeyRule

ANY_PARTITION = -1
"""Which topic partition a message is for: librdkafka chooses, by the key if there is one."""


def bodies_to_send(batch: Batch) -> list[bytes]:
    heads = np.ascontiguousarray(batch.head).tobytes()
    starts = range(0, len(heads), ENVELOPE_BYTES)
    width, tails = batch.head_bytes, each_tail(batch.tail)
    # A tail that all share has no end, so the heads decide.
    return [heads[start : start + width] + own for start, own in zip(starts, tails, strict=False)]


class Keys:
    """The keys of messages, by the rule of `kafka.keys`."""

    def __init__(self, rule: KeyRule, lanes: Sequence[Lane]) -> None:
        self._rule = rule
        self._of_member = [str(lane.member).encode() for lane in lanes]

    def of(self, batch: Batch) -> Iterable[bytes | None]:
        if batch.keys is not None:
            return batch.keys
        if self._rule.kind == "producer":
            return map(self._of_member.__getitem__, batch.lane.tolist())
        if self._rule.is_numbered:
            return [b"%d" % number for number in self._rule.numbers(batch.head).tolist()]
        return repeat(None)
