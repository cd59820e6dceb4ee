"""Bodies: measurement data in front, padding behind."""

from __future__ import annotations

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.core.random_bytes import RandomBytes, RandomRows
from bench_spark.scenario.load_sections import Message
from bench_spark.transports.base import U8


def head_bytes(message: Message) -> int:
    """How much of the envelope fits: all 32 bytes, or only the send time in tiny bodies."""
    return ENVELOPE_BYTES if message.bytes >= ENVELOPE_BYTES else 8


class Padding:
    """What follows the heads. Random padding is drawn anew for every message that is sent, so that
    compression finds nothing between bodies.

    Which message gets which random bytes does not matter, so those that a transport did not accept
    serve the next batch: what is drawn is what is sent, however small the part of a batch is that
    a full socket takes.
    """

    def __init__(self, message: Message, seed: int) -> None:
        self._random = None if message.padding == "zero" else RandomBytes(seed)
        self._zeros = b""
        self._rows: RandomRows | None = None
        self._used = 0
        """Rows at the front that have gone out."""

    def set_size(self, padding_bytes: int, messages: int) -> None:
        """From now on so many bytes for each message, and at most so many messages at once."""
        if self._random is None:
            self._zeros = bytes(padding_bytes)
        else:
            self._rows = RandomRows(self._random, messages, padding_bytes)
            self._used = 0

    def of(self, messages: int) -> bytes | U8:
        """One for all, or a row for each of the messages; valid until the next call."""
        if self._rows is None:
            return self._zeros
        if self._used:
            self._rows.renew(self._used)
            self._used = 0
        return self._rows.rows[:messages]

    def sent(self, messages: int) -> None:
        """The first of the batch that asked last have gone out."""
        self._used = messages
