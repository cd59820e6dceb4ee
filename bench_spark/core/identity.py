"""The ID of a message whose body is not ours: 32 hexadecimal characters.

Run tag (8), producer (8), sequence (16): what an envelope says of who a message is, in a form that
survives in any text, file name, header or key. Times are not in it; they are kept by whoever took
them. It is written in lower case and read in either, because systems that change the case of what
they pass on are among those that are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes, empty_envelopes

U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

ID_BYTES = 32
ID_PATTERN = rb"[0-9A-Fa-f]{32}"

_NUMBERS = np.dtype([("run_tag", ">u4"), ("producer", ">u4"), ("sequence", ">u8")])
_IS_DIGIT = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdefABCDEF", np.uint8))


def encode_ids(heads: Envelopes) -> U8:
    """A row of 32 characters for each head."""
    numbers = np.empty(len(heads), _NUMBERS)
    for name in ("run_tag", "producer", "sequence"):
        numbers[name] = heads[name]
    digits = numbers.tobytes().hex().encode()
    return np.frombuffer(digits, np.uint8).reshape(len(heads), ID_BYTES)


def decode_ids(rows: U8) -> tuple[Envelopes, Bool]:
    """Heads without times, and which of the rows are IDs; the heads of others are all zeros."""
    heads = empty_envelopes(len(rows))
    valid: Bool = np.ones(len(rows), np.bool_)
    packed = _unhexed(rows)
    if packed is None:
        valid = np.asarray(_IS_DIGIT[rows].all(axis=1))
        packed = bytes.fromhex(np.where(valid[:, None], rows, ord("0")).tobytes().decode())
    numbers = np.frombuffer(packed, _NUMBERS)
    for name in ("run_tag", "producer", "sequence"):
        heads[name] = numbers[name]
    return heads, valid


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
