"""Messages with headers, as `rd_kafka_produceva` takes them: one call each.

`produce_batch` has no place for headers. The arguments of that other function are an array of
tagged unions, `rd_kafka_vu_t`; those that all messages have are laid out for many at once, and so
are headers that are the same object for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_

import numpy as np

from bench_spark.transports.base import I64, Headers
from bench_spark.transports.kafka.librdkafka import ANY_PARTITION, COPY_PAYLOAD
from bench_spark.transports.kafka.outbox import Laid, one_behind_the_other

_TOPIC_HANDLE, _PARTITION, _VALUE, _KEY, _OPAQUE, _FLAGS, _HEADER = 2, 3, 4, 5, 6, 7, 9
"""rd_kafka_vtype_t"""
_COMMON = (_TOPIC_HANDLE, _PARTITION, _FLAGS, _VALUE, _KEY, _OPAQUE)

ARGUMENT_DTYPE = np.dtype(
    [
        ("kind", np.int32),
        ("_gap", np.int32),
        ("first", np.int64),
        ("second", np.int64),
        ("third", np.int64),
        ("_pad", np.uint8, 40),
    ]
)
"""A tag, and a union of 64 bytes: a number, a pointer, or up to three of them."""


class HeaderArguments:
    """Arguments for each of some messages that are laid out already. Memory is kept as long as
    this object."""

    def __init__(self, topic: int, laid: Laid, headers: Sequence[Headers]) -> None:
        counts = np.fromiter(map(len, headers), np.int64, len(headers))
        self.counts: list[int] = (counts + len(_COMMON)).tolist()
        """How many arguments each message has."""
        ends = np.cumsum(counts + len(_COMMON))
        starts = ends - counts - len(_COMMON)
        self._arguments = np.zeros(int(ends[-1]), ARGUMENT_DTYPE)
        self.addresses: list[int] = (
            self._arguments.ctypes.data + starts * ARGUMENT_DTYPE.itemsize
        ).tolist()
        self._lay_common(topic, laid, starts)
        self._lay_headers(headers, starts, counts)

    def _lay_common(self, topic: int, laid: Laid, starts: I64) -> None:
        values: dict[int, tuple[I64 | int, I64 | int]] = {
            _TOPIC_HANDLE: (topic, 0),
            _PARTITION: (ANY_PARTITION, 0),
            _FLAGS: (COPY_PAYLOAD, 0),
            _VALUE: (laid["payload"], laid["payload_bytes"]),
            _KEY: (laid["key"], laid["key_bytes"]),
            _OPAQUE: (laid["opaque"], 0),
        }
        for place, kind in enumerate(_COMMON):
            rows = starts + place
            self._arguments["kind"][rows] = kind
            self._arguments["first"][rows], self._arguments["second"][rows] = values[kind]

    def _lay_headers(self, headers: Sequence[Headers], starts: I64, counts: I64) -> None:
        are_alike = all(map(is_, headers, repeat(headers[0])))
        written = headers[:1] if are_alike else headers
        names = [name.encode() + b"\0" for each in written for name in each]
        if not names:
            return
        values = [value for each in written for value in each.values()]
        self._names, name_starts, _ = one_behind_the_other(names)
        self._values, value_starts, value_bytes = one_behind_the_other(values)
        rows: I64
        if are_alike:
            rows = (starts + len(_COMMON))[:, np.newaxis] + np.arange(len(names))
        else:
            # The place of each header among those of its message.
            own = np.arange(len(names)) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = np.repeat(starts + len(_COMMON), counts) + own
        self._arguments["kind"][rows] = _HEADER
        self._arguments["first"][rows] = self._names.ctypes.data + name_starts
        self._arguments["second"][rows] = self._values.ctypes.data + value_starts
        self._arguments["third"][rows] = value_bytes
