"""AMQP 0-9-1 frames as bytes: what the fast plane writes, and the numbers it reads by. Pure.

pika does the encoding, so that both planes say the same. A frame is a kind, a channel, a size, that
many bytes, and an end mark.
"""

from __future__ import annotations

import struct
from typing import Any

import pika.frame
import pika.spec

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

HEARTBEAT_FRAME: bytes = pika.frame.Heartbeat().marshal()


def frame_start(kind: int, channel: int, content_bytes: int) -> bytes:
    return FRAME_START.pack(kind, channel, content_bytes)


def method_frame(channel: int, method: Any) -> bytes:
    """The frame of one of `pika.spec`'s methods."""
    return bytes(pika.frame.Method(channel, method).marshal())


def header_frame(channel: int, body_bytes: int, properties: Any) -> bytes:
    return bytes(pika.frame.Header(channel, body_bytes, properties).marshal())


def body_frame(channel: int, piece: bytes) -> bytes:
    return frame_start(BODY, channel, len(piece)) + piece + END_MARK
