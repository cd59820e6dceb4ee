"""Which of several routing keys a message takes. Pure.

By its number, not by a generator of random numbers: a message that was refused keeps its key for
the next try. The keys of a destination differ only in the digits at
their end, so frames of all of them have one length and are stamped like heads.
"""

from __future__ import annotations

import numpy as np

from bench_spark.config.protocols import Amqp
from bench_spark.core.envelope import Envelopes
from bench_spark.core.mixing import mixed
from bench_spark.transports.amqp import naming
from bench_spark.transports.batches import I64, U8


class KeyChoice:
    """For messages that take one of so many keys, numbered with so many digits."""

    def __init__(self, keys: int, digits: int) -> None:
        self._keys = np.uint64(keys)
        texts = "".join(f"{number:0{digits}d}" for number in range(keys)).encode()
        self._digits: U8 = np.frombuffer(texts, np.uint8).reshape(keys, digits)

    def numbers(self, heads: Envelopes) -> I64:
        """The number of each message's key: evenly spread, in no order."""
        numbers: I64 = (mixed(heads) % self._keys).astype(np.int64)
        return numbers

    def digits(self, heads: Envelopes) -> U8:
        """A row with the digits of each message's key."""
        rows: U8 = self._digits[self.numbers(heads)]
        return rows


def key_choice(amqp: Amqp) -> KeyChoice | None:
    """None where all messages of a destination have the same key."""
    if amqp.routing_keys < 2:
        return None
    return KeyChoice(amqp.routing_keys, naming.key_digits(amqp))
