"""AMQP 0-9-1 frames as bytes: how they are encoded, and the numbers they are decoded by. Pure.

pika does the encoding. A frame is a kind, a channel, a size, that many bytes, and an end mark.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pika.frame
import pika.spec

from bench_spark.core.kernels import kernel
from bench_spark.transports.batches import U8, Rows

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
FRAME_END = 0xCE
END_MARK = bytes([FRAME_END])
FRAME_START = struct.Struct(">BHI")
"""Kind, channel, size of what follows."""
FRAME_START_BYTES = FRAME_START.size
FRAME_EXTRA_BYTES = FRAME_START_BYTES + len(END_MARK)
"""What a frame has besides its content."""

DELIVER: int = pika.spec.Basic.Deliver.INDEX
RETURN: int = pika.spec.Basic.Return.INDEX
ACK: int = pika.spec.Basic.Ack.INDEX
NACK: int = pika.spec.Basic.Nack.INDEX

MORE, FULL, FOREIGN = 0, 1, 2
"""Why a decoder stopped: it needs more bytes, or more room for what comes out, or it is at a frame
that it leaves to the parser: another method, or one that is not as it should be."""

Int = int | np.int64
"""Compiled they are the same; uncompiled, what comes out of an array is numpy's."""

HEARTBEAT_FRAME: bytes = pika.frame.Heartbeat().marshal()


class Framing(NamedTuple):
    """What was agreed on with the broker for the frames of a connection."""

    channel: int
    frame_max: int

    @property
    def content_max(self) -> int:
        """Bytes in a frame besides its start and end."""
        return self.frame_max - FRAME_EXTRA_BYTES


def frame_start(kind: int, channel: int, content_bytes: int) -> bytes:
    return FRAME_START.pack(kind, channel, content_bytes)


def method_frame(channel: int, method: Any) -> bytes:
    """The frame of one of `pika.spec`'s methods."""
    return bytes(pika.frame.Method(channel, method).marshal())


def header_frame(channel: int, body_bytes: int, properties: Any) -> bytes:
    return bytes(pika.frame.Header(channel, body_bytes, properties).marshal())


def body_frame(channel: int, piece: bytes) -> bytes:
    return frame_start(BODY, channel, len(piece)) + piece + END_MARK


@kernel
def be32(data: U8, at: Int) -> np.int64:
    """The big-endian number in four bytes."""
    return (
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )


@kernel
def be64(data: U8, at: Int) -> np.int64:
    """The big-endian number in eight bytes; from 2**63 on it comes out negative."""
    return be32(data, at) << 32 | be32(data, at + 4)


@kernel
def copy_bytes(target: U8, source: U8) -> None:
    """Copy all of `source`. Given views, the compiler copies many bytes at once."""
    for place in range(len(source)):
        target[place] = source[place]


@kernel
def put_envelope(envelope: Rows, data: U8) -> None:
    """Write 32 bytes as the fields of an envelope, which are little-endian."""
    sent_ns, intended_ns, sequence, last = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for place in range(8):
        sent_ns |= np.int64(data[place]) << (8 * place)
        intended_ns |= np.int64(data[8 + place]) << (8 * place)
        sequence |= np.int64(data[16 + place]) << (8 * place)
        last |= np.int64(data[24 + place]) << (8 * place)
    envelope["sent_ns"] = sent_ns
    envelope["intended_ns"] = intended_ns
    envelope["sequence"] = sequence
    envelope["producer"] = last & 0xFFFFFFFF
    envelope["run_tag"] = (last >> 32) & 0xFFFFFFFF
