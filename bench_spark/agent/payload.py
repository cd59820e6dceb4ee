"""Bodies: measurement data in front, padding behind."""

from __future__ import annotations

import random

from bench_spark.measure.envelope import ENVELOPE_BYTES
from bench_spark.scenario.load_sections import Message


def head_bytes(message: Message) -> int:
    """How much of the envelope fits: all 32 bytes, or only the send time in tiny bodies."""
    return ENVELOPE_BYTES if message.bytes >= ENVELOPE_BYTES else 8


def padding(message: Message, seed: int) -> bytes:
    """What follows the head, of smaller bodies as much as fits; random padding is the same in every
    run of the same seed."""
    length = message.largest_bytes - head_bytes(message)
    if message.padding == "zero":
        return bytes(length)
    return random.Random(seed).randbytes(length)
