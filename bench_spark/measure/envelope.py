"""The measurement data at the front of every message body.

32 bytes, little-endian: when it was sent, when it should have been sent, its sequence number, who
sent it, and which run it belongs to. Bytes 0-7 are a plain u64 of nanoseconds since the epoch, so a
foreign program can read the send time without knowing the rest.

Bodies of 8 to 31 bytes carry only the send time: such messages have latency but no loss accounting.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
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
TIMESTAMP_BYTES = 8

Envelopes = npt.NDArray[Any]
"""A one-dimensional array of ENVELOPE_DTYPE: one row per message."""


def empty_envelopes(count: int) -> Envelopes:
    return np.zeros(count, dtype=ENVELOPE_DTYPE)


def envelope_bytes(envelopes: Envelopes) -> npt.NDArray[np.uint8]:
    """The same memory as rows of 32 bytes, ready to be copied into message bodies."""
    return envelopes.view(np.uint8).reshape(len(envelopes), ENVELOPE_BYTES)


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


def run_tag(run_id: str) -> int:
    """The 32-bit mark by which messages of this run are told from those of any other."""
    return zlib.crc32(run_id.encode()) or 1
