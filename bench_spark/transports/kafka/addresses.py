"""Reading what C has left at thousands of addresses, by one numpy call for all of them.

A message of librdkafka is a struct somewhere in memory that points to a body elsewhere. To read a
field of a thousand such structs, the process's memory is looked at as one long array which is
indexed with their addresses. The array is only a way of looking: nothing but what is indexed is
ever touched, and it cannot be written to.

Whoever calls vouches for the addresses, as in C.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_DTYPE, Envelopes
from bench_spark.transports.base import I64

WORD_BYTES = 8

_ADDRESS_BITS = 48
"""What user space has at most on x86-64 and 64-bit ARM unless a program asks for more."""
_FIRST = WORD_BYTES
"""Address 0 would be no memory at all to numpy."""


class _Memory:
    """All there is, described as numpy's array interface wants it."""

    def __init__(self, type_code: str, item_bytes: int, stride_bytes: int) -> None:
        items = ((1 << _ADDRESS_BITS) - _FIRST - item_bytes) // stride_bytes
        self.__array_interface__ = {
            "version": 3,
            "data": (_FIRST, True),
            "typestr": type_code,
            "shape": (items,),
            "strides": (stride_bytes,),
        }


def _view(type_code: str, item_bytes: int, stride_bytes: int) -> npt.NDArray[Any]:
    return np.asarray(_Memory(type_code, item_bytes, stride_bytes))


_ENVELOPES = _view(f"|V{ENVELOPE_BYTES}", ENVELOPE_BYTES, 1)


def records_at(addresses: I64, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The struct of that type at each address, which is a multiple of 8."""
    records: npt.NDArray[Any] = _records(dtype.itemsize)[(addresses - _FIRST) >> 3]
    return records.view(dtype)


@functools.cache
def _records(record_bytes: int) -> npt.NDArray[Any]:
    return _view(f"|V{record_bytes}", record_bytes, WORD_BYTES)


def envelopes_at(addresses: I64) -> Envelopes:
    """The 32 bytes at each address."""
    found: Envelopes = _ENVELOPES[addresses - _FIRST].view(ENVELOPE_DTYPE)
    return found
