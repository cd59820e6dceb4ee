"""Acks that a consumer writes, many at once. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pika.spec

from bench_spark.core.kernels import kernel, warm_up
from bench_spark.transports.amqp.frames import copy_bytes, method_frame
from bench_spark.transports.batches import U8

U64 = npt.NDArray[np.uint64]

_TAG_AT = 11
"""In the frame of an ack: behind the frame's start, class and method."""


@kernel
def write_acks(out: U8, frame: U8, tags: U64, first: int, step: int) -> int:
    """Write the frame of an ack for every `step`th tag from `first` on; how many bytes."""
    at = 0
    for number in range(first, len(tags), step):
        copy_bytes(out[at:], frame)
        tag = tags[number]
        for place in range(8):
            out[at + _TAG_AT + place] = (tag >> np.uint64(56 - 8 * place)) & np.uint64(0xFF)
        at += len(frame)
    return at


class AckFrames:
    """Acks to be written, all `multiple` or all single."""

    def __init__(self, channel: int, multiple: bool) -> None:
        ack = method_frame(channel, pika.spec.Basic.Ack(0, multiple))
        self._frame: U8 = np.frombuffer(bytearray(ack), np.uint8)
        self._out: U8 = np.zeros(len(ack), np.uint8)
        self._view = self._out.data

    def of(self, tags: U64, first: int = 0, step: int = 1) -> memoryview:
        """One ack for each of tags[first::step]; good until the next call."""
        wanted = len(tags) * len(self._frame)
        if wanted > len(self._out):
            self._out = np.zeros(2 * wanted, np.uint8)
            self._view = self._out.data
        tags = np.ascontiguousarray(tags)
        return self._view[: write_acks(self._out, self._frame, tags, first, step)]


@warm_up
def _compile() -> None:
    AckFrames(1, multiple=False).of(np.zeros(1, np.uint64))
