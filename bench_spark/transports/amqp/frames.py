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
from bench_spark.transports.batches import U8
from bench_spark.transports.sockets.message_block import Int

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


_U1, _U2, _U3 = map(np.uint64, range(1, 4))


@kernel
def be32(data: U8, at: Int) -> np.int64:
    """The big-endian number in four bytes."""
    i = np.uint64(at)  # so that no index is looked at for being counted from the end
    return (
        np.int64(data[i]) << 24
        | np.int64(data[i + _U1]) << 16
        | np.int64(data[i + _U2]) << 8
        | np.int64(data[i + _U3])
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
