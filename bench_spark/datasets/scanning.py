"""Where records begin and end in a stream of bytes, block by block, without Python per record.

Each scanner takes blocks in order and gives, per block, the records that ended in it: their starts
and lengths in bytes. `finish` gives what the end of the stream completes. Pure.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
LENGTH_BYTES = 4


class Spans(NamedTuple):
    starts: I64
    lengths: I64


class BrokenRecord(Exception):
    """The stream ends inside a record; the text says which."""


def _no_spans() -> Spans:
    return Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Scanner(Protocol):
    def scan(self, block: bytes) -> Spans: ...

    def finish(self) -> Spans: ...


class LineScanner:
    """Lines without their ends, LF or CR LF; blank ones are no records."""

    def __init__(self) -> None:
        self._scanned = 0
        self._line_start = 0
        self._last_byte = 0

    def scan(self, block: bytes) -> Spans:
        octets = np.frombuffer(block, np.uint8)
        ends = self._ends(octets)
        if len(ends):
            before = np.where(ends > 0, octets[ends - 1], self._last_byte)
            spans = self._spans(ends + self._scanned, before == _RETURN)
        else:
            spans = _no_spans()
        self._scanned += len(block)
        self._last_byte = block[-1]
        return spans

    def _ends(self, octets: npt.NDArray[np.uint8]) -> I64:
        return np.flatnonzero(octets == _NEWLINE).astype(np.int64)

    def _spans(self, ends: I64, has_return: npt.NDArray[np.bool_]) -> Spans:
        starts = np.concatenate(([self._line_start], ends[:-1] + 1)).astype(np.int64)
        self._line_start = int(ends[-1]) + 1
        lengths = np.maximum(0, ends - starts - has_return)
        kept = self._is_record(lengths)
        return Spans(starts[kept], lengths[kept])

    def _is_record(self, lengths: I64) -> npt.NDArray[np.bool_]:
        return lengths > 0

    def finish(self) -> Spans:
        """A last line need not have an end."""
        if self._line_start == self._scanned:
            return _no_spans()
        end = np.array([self._scanned], np.int64)
        return self._spans(end, np.array([self._last_byte == _RETURN]))


class CsvScanner(LineScanner):
    """Rows: lines whose ends are not inside quotes. The first may name the columns."""

    def __init__(self, has_header_row: bool) -> None:
        super().__init__()
        self._is_header_due = has_header_row
        self._is_quoted = False

    def _ends(self, octets: npt.NDArray[np.uint8]) -> I64:
        # A quote inside a quoted field is doubled, so that it leaves the parity as it is.
        quotes = np.cumsum(octets == _QUOTE, dtype=np.int64) + self._is_quoted
        self._is_quoted = bool(quotes[-1] & 1)
        return np.flatnonzero((octets == _NEWLINE) & (quotes & 1 == 0)).astype(np.int64)

    def _is_record(self, lengths: I64) -> npt.NDArray[np.bool_]:
        kept = super()._is_record(lengths)
        if self._is_header_due and kept.any():
            self._is_header_due = False
            kept[int(np.argmax(kept))] = False
        return kept

    def finish(self) -> Spans:
        if self._is_quoted:
            raise BrokenRecord("a quoted field is never closed")
        return super().finish()


class LengthPrefixScanner:
    """Each record is preceded by its length: 4 bytes, big-endian."""

    def __init__(self) -> None:
        self._scanned = 0
        self._rest = b""
        """Of the last block: a length that was cut."""
        self._next_length_at = 0

    def scan(self, block: bytes) -> Spans:
        starts, lengths = [], []
        base = self._scanned - len(self._rest)
        block = self._rest + block
        at, end = self._next_length_at - base, len(block) - LENGTH_BYTES
        while at <= end:
            length = int.from_bytes(block[at : at + LENGTH_BYTES], "big")
            starts.append(base + at + LENGTH_BYTES)
            lengths.append(length)
            at += LENGTH_BYTES + length
        self._next_length_at = base + at
        self._scanned = base + len(block)
        self._rest = block[at:] if at < len(block) else b""
        return Spans(np.array(starts, np.int64), np.array(lengths, np.int64))

    def finish(self) -> Spans:
        if self._next_length_at != self._scanned:
            raise BrokenRecord(f"it ends at byte {self._scanned}, inside a record or its length")
        return _no_spans()


class WholeScanner:
    """The whole stream is one record."""

    def __init__(self) -> None:
        self._scanned = 0

    def scan(self, block: bytes) -> Spans:
        self._scanned += len(block)
        return _no_spans()

    def finish(self) -> Spans:
        return Spans(np.zeros(1, np.int64), np.array([self._scanned], np.int64))
