"""Acknowledgements in both directions, many at once: to write, and to read. Pure."""

from __future__ import annotations

import numpy as np

from bench_spark.transports.base import U8, U16
from bench_spark.transports.mqtt.packets import ACKS, FAILED
from bench_spark.transports.sockets.runs import FEW, ReadBuffer, RowShape, Stretch

_IDENTIFIER_AT, _IDENTIFIER_END = 2, 4
"""In an acknowledgement: behind its kind and a length of one byte."""
_LONGEST_ROW_BYTES = 6
"""With a reason code and no properties; whoever says more is read one by one."""


def ack_packets(kind: int, identifiers: U16) -> bytes:
    """One acknowledgement of this kind for each identifier: in all versions four bytes."""
    rows = np.empty((len(identifiers), _IDENTIFIER_END), np.uint8)
    rows[:, 0] = kind
    rows[:, 1] = 2
    rows[:, _IDENTIFIER_AT:] = identifiers.astype(">u2").view(np.uint8).reshape(-1, 2)
    return rows.tobytes()


class AckRuns:
    """Acknowledgements that follow each other and differ in nothing but their identifiers."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, RowShape] = {}
        self._stretch = Stretch()

    def at(self, buffer: ReadBuffer, start: int, end: int) -> tuple[int, int, U8] | None:
        """Kind, reason code and rows of a run that begins here; None where there is none, or
        it is short. Those that say no are for reading one by one."""
        raw = buffer.raw
        if end - start < FEW * _IDENTIFIER_END or raw[start] not in ACKS:
            return None
        row_bytes = 2 + raw[start + 1]
        if not _IDENTIFIER_END <= row_bytes <= _LONGEST_ROW_BYTES:
            return None
        code = raw[start + _IDENTIFIER_END] if row_bytes > _IDENTIFIER_END else 0
        if code >= FAILED or (end - start) // row_bytes < FEW:
            return None
        shape = self._shape(bytes(raw[start : start + row_bytes]))
        tried = self._stretch.of((end - start) // row_bytes)
        rows = shape.rows(buffer, start, tried)
        self._stretch.went(well=len(rows) == tried)
        return raw[start], code, rows

    def _shape(self, row: bytes) -> RowShape:
        key = row[:_IDENTIFIER_AT] + row[_IDENTIFIER_END:]
        shape = self._shapes.get(key)
        if shape is None:
            constants = [(0, row[:_IDENTIFIER_AT])]
            if len(row) > _IDENTIFIER_END:
                constants.append((_IDENTIFIER_END, row[_IDENTIFIER_END:]))
            shape = self._shapes[key] = RowShape(len(row), constants)
        return shape


def identifiers_in(rows: U8) -> U16:
    """The packet identifiers of rows that are acknowledgements."""
    return identifiers_at(rows, _IDENTIFIER_AT)


def identifiers_at(rows: U8, at: int) -> U16:
    """The packet identifiers in these two columns of rows."""
    pairs = np.ascontiguousarray(rows[:, at : at + 2]).view(">u2").reshape(-1)
    identifiers: U16 = pairs.astype(np.uint16)
    return identifiers
