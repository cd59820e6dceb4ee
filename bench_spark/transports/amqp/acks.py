"""Acks in both directions, many at once: a consumer's to write, a producer's to read. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pika.spec

from bench_spark.transports.amqp.frames import RETURN, method_frame
from bench_spark.transports.amqp.message_headers import returned_head
from bench_spark.transports.amqp.parsing import Content
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.sockets.runs import FEW, ReadBuffer, RowShape, Stretch

U64 = npt.NDArray[np.uint64]

_TAG_AT, _BITS_AT, _END_AT = 11, 19, 20
"""In the frame of an ack: frame start, class and method; tag; one byte of bits; end mark."""


class AckFrames:
    """Acks to be written, all `multiple` or all single."""

    def __init__(self, channel: int, multiple: bool) -> None:
        self._frame = np.frombuffer(_ack_frame(channel, multiple), np.uint8)

    def of(self, tags: U64) -> bytes:
        """One ack for each of these tags."""
        frames = np.tile(self._frame, (len(tags), 1))
        frames[:, _TAG_AT:_BITS_AT] = tags.astype(">u8").view(np.uint8).reshape(-1, 8)
        return frames.tobytes()


class Confirmations:
    """The receiver of one producer lane: acks, nacks and returns, settled in the order they came.

    Acks that follow each other in one read are settled together.
    """

    def __init__(self, channel: int, settlement: Settlement) -> None:
        ack = _ack_frame(channel, multiple=False)
        self._shape = RowShape(len(ack), [(0, ack[:_TAG_AT]), (_END_AT, ack[_END_AT:])])
        self._settlement = settlement
        self._stretch = Stretch()
        self._tags: list[int] = []
        self._are_multiple: list[bool] = []

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        at = start
        while (available := (end - at) // self._shape.row_bytes) >= FEW:
            tried = self._stretch.of(available)
            rows = self._shape.rows(buffer, at, tried)
            if len(rows):
                self._settle_collected(at_ns)
                tags = np.ascontiguousarray(rows[:, _TAG_AT:_BITS_AT]).view(">u8").reshape(-1)
                are_multiple = (rows[:, _BITS_AT] & 1).astype(np.bool_)
                self._settlement.acked_many(tags.astype(np.int64), are_multiple, at_ns)
                at += len(rows) * self._shape.row_bytes
            self._stretch.went(well=len(rows) == tried)
            if len(rows) < tried:
                break
        return at - start

    def awaits_rest(self, buffer: ReadBuffer, start: int, end: int) -> bool:
        return False

    def on_settled(self, tag: int, multiple: bool, is_nack: bool, at_ns: int) -> None:
        if is_nack:
            self._settle_collected(at_ns)
            self._settlement.nacked(tag, multiple, at_ns)
        else:
            self._tags.append(tag)
            self._are_multiple.append(multiple)

    def on_content(self, content: Content, at_ns: int) -> None:
        # A delivery cannot be meant for a producer: nothing is consumed here.
        if content.method_id == RETURN:
            self._settle_collected(at_ns)
            self._settlement.returned(returned_head(content.message_id, content.body), at_ns)

    def on_read_end(self, at_ns: int) -> None:
        self._settle_collected(at_ns)

    def _settle_collected(self, at_ns: int) -> None:
        if not self._tags:
            return
        tags, self._tags = self._tags, []
        are_multiple, self._are_multiple = self._are_multiple, []
        if len(tags) == 1:
            self._settlement.acked(tags[0], are_multiple[0], at_ns)
        else:
            self._settlement.acked_many(
                np.array(tags, np.int64), np.array(are_multiple, np.bool_), at_ns
            )


def _ack_frame(channel: int, multiple: bool) -> bytes:
    return method_frame(channel, pika.spec.Basic.Ack(0, multiple))
