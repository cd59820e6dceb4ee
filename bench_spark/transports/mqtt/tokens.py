"""What is needed to acknowledge a message: its packet identifier, and its QoS above it. Pure.

The generation of the lane is in the upper bits; see sockets/generations.py.
"""

from __future__ import annotations

import numpy as np

from bench_spark.transports.base import U16
from bench_spark.transports.sockets.generations import U64

_QOS_AT = 16
_IDENTIFIER_BITS = 0xFFFF


def token(identifier: int, qos: int) -> int:
    """0 of a message that needs no acknowledgement."""
    return identifier | qos << _QOS_AT


def identifiers_of(tokens: U64, qos: int) -> U16:
    """The identifiers of those with this QoS."""
    own = tokens[tokens >> np.uint64(_QOS_AT) == np.uint64(qos)]
    identifiers: U16 = (own & np.uint64(_IDENTIFIER_BITS)).astype(np.uint16)
    return identifiers
