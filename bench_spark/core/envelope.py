"""The measurement data at the front of every message body.

32 bytes, little-endian: when it was sent, when it should have been sent, its sequence number, who
sent it, and which run it belongs to. Bytes 0-7 are a plain u64 of nanoseconds since the epoch, so a
foreign program can read the send time without knowing the rest.

Bodies of 8 to 31 bytes carry only the send time: such messages have latency but no loss accounting.

Messages whose body is not ours carry an ID instead, of 32 hexadecimal characters: run tag (8),
producer (8), sequence (16), in a form that survives in any text, file name, header or key. Times
are not in it; they are kept by whoever took them. It is written in lower case and read in either,
because systems that change the case of what they pass on are among those that are measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

ENVELOPE_DTYPE = np.dtype(
    [
        ("sent_ns", "<u8"),
        ("intended_ns", "<u8"),
        ("sequence", "<u8"),
        ("producer", "<u4"),
        ("run_tag", "<u4"),
    ]
)
ENVELOPE_BYTES = ENVELOPE_DTYPE.itemsize
ENVELOPE_WORDS = ENVELOPE_BYTES // 8
TIMESTAMP_BYTES = 8

Envelopes = npt.NDArray[Any]
"""A one-dimensional array of ENVELOPE_DTYPE: one row per message."""


def empty_envelopes(count: int) -> Envelopes:
    return np.zeros(count, dtype=ENVELOPE_DTYPE)


def byte_rows_of(envelopes: Envelopes) -> npt.NDArray[np.uint8]:
    """Rows of 32 bytes, ready to be copied into message bodies: the same memory, where it is one
    piece."""
    return np.ascontiguousarray(envelopes).view(np.uint8).reshape(len(envelopes), ENVELOPE_BYTES)


def word_rows_of(envelopes: Envelopes) -> npt.NDArray[np.int64]:
    """Rows of four words, as kernels take them that are called for a few messages: the same memory,
    which must be one piece."""
    return envelopes.view(np.int64).reshape(len(envelopes), ENVELOPE_WORDS)


def envelopes_of_words(words: npt.NDArray[np.int64]) -> Envelopes:
    """Back from such rows: the same memory."""
    return words.view(ENVELOPE_DTYPE)[:, 0]


def envelopes_from_bytes(rows: npt.NDArray[np.uint8]) -> Envelopes:
    """Read back rows of 32 bytes (copied only if they are not contiguous)."""
    return np.ascontiguousarray(rows).view(ENVELOPE_DTYPE).reshape(len(rows))


def leading_envelopes(bodies: Iterable[bytes]) -> Envelopes:
    """The first 32 bytes of each body, with zeros where a body is shorter."""
    joined = bytearray().join(body[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0") for body in bodies)
    return np.frombuffer(joined, dtype=ENVELOPE_DTYPE)


def joined_envelopes(parts: Sequence[Envelopes]) -> Envelopes:
    """One behind the other, by their bytes: numpy would compare the fields of part by part."""
    joined = bytearray().join([part.tobytes() for part in parts])
    return np.frombuffer(joined, dtype=ENVELOPE_DTYPE)


@dataclass(frozen=True)
class ForeignStamps:
    """Where bodies of other programs say when they were sent."""

    dtype: np.dtype[Any]
    """Of the beginning of a body, with the field `sent`."""
    unit_ns: int

    @property
    def body_bytes(self) -> int:
        """How long a body is at least."""
        return self.dtype.itemsize

    def sent_ns(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Of each row, the beginning of a body; a moment beyond all clocks is negative."""
        stamps = np.ascontiguousarray(rows[:, : self.body_bytes]).view(self.dtype).reshape(-1)
        sent = stamps["sent"].astype(np.int64)
        is_in_range = (sent >= 0) & (sent < _LAST_NS // self.unit_ns)
        return np.where(is_in_range, sent, -1) * self.unit_ns


_LAST_NS = 2**63 - 1
_OWN_STAMPS = ForeignStamps(np.dtype([("sent", "<u8")]), 1)
_PERFTEST_STAMPS = ForeignStamps(np.dtype([("sequence", ">i4"), ("sent", ">i8")]), 1_000_000)
"""RabbitMQ PerfTest's, run with --use-millis: its own clock of nanoseconds has no epoch."""


def foreign_stamps(timestamped: bool | str) -> ForeignStamps | None:
    """As `message.timestamped` says; None where bodies are not looked into."""
    if timestamped == "perftest":
        return _PERFTEST_STAMPS
    return _OWN_STAMPS if timestamped else None


def run_tag(run_id: str) -> int:
    """The 32-bit mark by which messages of this run are told from those of any other."""
    return zlib.crc32(run_id.encode()) or 1


U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

ID_BYTES = 32
ID_PATTERN = rb"[0-9A-Fa-f]{32}"

_NUMBERS = np.dtype([("run_tag", ">u4"), ("producer", ">u4"), ("sequence", ">u8")])
_IS_DIGIT = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdefABCDEF", np.uint8))


def encode_ids(envelopes: Envelopes) -> U8:
    """A row of 32 characters for each envelope."""
    numbers = np.empty(len(envelopes), _NUMBERS)
    for name in ("run_tag", "producer", "sequence"):
        numbers[name] = envelopes[name]
    digits = numbers.tobytes().hex().encode()
    return np.frombuffer(digits, np.uint8).reshape(len(envelopes), ID_BYTES)


def decode_ids(rows: U8) -> tuple[Envelopes, Bool]:
    """Envelopes without times, and which of the rows are IDs; the envelopes of others are all
    zeros."""
    envelopes = empty_envelopes(len(rows))
    valid: Bool = np.ones(len(rows), np.bool_)
    packed = _unhexed(rows)
    if packed is None:
        valid = np.asarray(_IS_DIGIT[rows].all(axis=1))
        packed = bytes.fromhex(np.where(valid[:, None], rows, ord("0")).tobytes().decode())
    numbers = np.frombuffer(packed, _NUMBERS)
    for name in ("run_tag", "producer", "sequence"):
        envelopes[name] = numbers[name]
    return envelopes, valid


def _unhexed(rows: U8) -> bytes | None:
    """All rows at once, as nearly always; None if one of them is no ID."""
    try:
        packed = bytes.fromhex(rows.tobytes().decode("ascii"))
    except ValueError:
        return None
    # White space is skipped, and then the others are not where they should be.
    return packed if 2 * len(packed) == rows.size else None


def id_texts(rows: U8) -> list[bytes]:
    """The rows as one piece of text each."""
    text = rows.tobytes()
    return [text[start : start + ID_BYTES] for start in range(0, len(text), ID_BYTES)]


def id_rows(texts: Sequence[bytes]) -> U8:
    """Back from pieces of text; one of another length becomes a row that is no ID."""
    joined = b"".join(texts)
    if not {ID_BYTES}.issuperset(map(len, texts)):
        joined = b"".join([text if len(text) == ID_BYTES else b"-" * ID_BYTES for text in texts])
    return np.frombuffer(joined, np.uint8).reshape(len(texts), ID_BYTES)


def content_hashes(contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """64 bits of each: the same in every process and on every machine."""
    digests = [blake2b(content, digest_size=8).digest() for content in contents]
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)
