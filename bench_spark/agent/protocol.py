"""What agents and the driver's collector say to each other: frames, event rows in them, and how the
two prove who they are.

A frame is two lengths, a JSON object and raw bytes: nothing in it can be executed by reading it.
Each side proves that it knows the run's token by answering the other's random challenge, so the
token itself never crosses the network.

An event row is plain counters plus sparse histograms. In a frame a list of rows is a JSON header
and the histograms' columns as raw little-endian numbers behind it: building it costs the agent no
more than a copy, and the driver turns it into Arrow.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.hdr import TOTALS, SparseHistogram

I64 = npt.NDArray[np.int64]


@dataclass
class EventRow:
    """What one agent saw of one role, phase and tick; rows of the same tick add up."""

    row_number: int
    role: str
    phase: str
    tick: int
    tick_start_ns: int
    tick_seconds: float
    counters: dict[str, int]
    destination: str | None = None
    cpu_seconds: float | None = None
    host_busy_share: float | None = None
    clock_offset_ns: int | None = None
    clock_bound_ns: int | None = None
    histograms: dict[str, SparseHistogram] = field(default_factory=dict)


def encode_rows(rows: list[EventRow]) -> tuple[list[dict[str, Any]], bytes]:
    """The rows as a JSON-ready header and the bytes that belong to it."""
    header: list[dict[str, Any]] = []
    columns: list[bytes] = []
    for row in rows:
        plain = {key: value for key, value in vars(row).items() if key != "histograms"}
        plain["histograms"] = [
            {"measure": measure, "buckets": len(histogram.values_us)}
            | {name: getattr(histogram, name) for name in TOTALS}
            for measure, histogram in row.histograms.items()
        ]
        for histogram in row.histograms.values():
            columns.append(histogram.values_us.astype("<i4", copy=False).tobytes())
            columns.append(histogram.counts.astype("<i8", copy=False).tobytes())
        header.append(plain)
    return header, b"".join(columns)


def decode_rows(header: list[dict[str, Any]], columns: bytes) -> list[EventRow]:
    """Back from the wire; raises ValueError or KeyError when header and bytes do not fit."""
    try:
        return _decode(header, columns)
    except (AttributeError, OverflowError, TypeError) as error:
        raise ValueError("this is no header of event rows") from error


def _decode(header: list[dict[str, Any]], columns: bytes) -> list[EventRow]:
    rows: list[EventRow] = []
    at = 0
    for plain in header:
        histograms: dict[str, SparseHistogram] = {}
        for described in plain["histograms"]:
            buckets = int(described["buckets"])
            values = np.frombuffer(columns, "<i4", buckets, at)
            counts = np.frombuffer(columns, "<i8", buckets, at + 4 * buckets)
            at += 12 * buckets
            histograms[described["measure"]] = SparseHistogram(
                **{name: described[name] for name in TOTALS}, values_us=values, counts=counts
            )
        rows.append(EventRow(**(plain | {"histograms": histograms})))
    if at != len(columns):
        raise ValueError(f"{len(columns) - at} bytes belong to no row")
    return rows


@dataclass(frozen=True, eq=False)
class Delivered:
    """What was confirmed and received since the last report; what has not changed is left out."""

    groups: I64
    confirmed: I64
    """By group. Where confirms are not used: sent, and not returned."""
    subscriptions: I64
    received: I64

    def to_bytes(self) -> bytes:
        columns = (self.groups, self.confirmed, self.subscriptions, self.received)
        return b"".join(column.astype("<i8", copy=False).tobytes() for column in columns)

    @staticmethod
    def from_bytes(data: bytes, groups: int) -> Delivered:
        """Raises ValueError when the bytes are not what an agent sends."""
        columns = np.frombuffer(data, "<i8")
        subscriptions = (len(columns) - 2 * groups) // 2
        if groups < 0 or subscriptions < 0 or 2 * (groups + subscriptions) != len(columns):
            raise ValueError("this is no report of deliveries")
        ends = np.cumsum([groups, groups, subscriptions])
        return Delivered(*np.split(columns, ends))


CHALLENGE_BYTES = 32
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024

_LENGTHS = struct.Struct("<II")

Message = dict[str, Any]


class WireError(Exception):
    """The peer does not speak this protocol; the connection is of no further use."""


def new_token() -> str:
    return secrets.token_hex(32)


def new_challenge() -> bytes:
    return secrets.token_bytes(CHALLENGE_BYTES)


def answer(token: str, challenge: bytes, role: str) -> str:
    """`role` keeps an answer of one side from being replayed as the other's."""
    return hmac.new(token.encode(), role.encode() + challenge, hashlib.sha256).hexdigest()


def is_right_answer(token: str, challenge: bytes, role: str, given: object) -> bool:
    right = answer(token, challenge, role).encode()
    return isinstance(given, str) and hmac.compare_digest(right, given.encode(errors="replace"))


class WrongToken(Exception):
    """The peer could not prove that it knows the token."""


class Handshake:
    """One side's part of a handshake in which both prove that they know the same token.

    Whoever has accepted the connection sends its `challenge` at once. The other answers that in its
    hello and challenges in turn; the answer to this is in the welcome.
    """

    def __init__(self, token: str, role: str, other: str) -> None:
        """`role`: that of this side; `other`: that of the peer."""
        self._token = token
        self._role = role
        self._other = other
        self.challenge = new_challenge()

    def hello(self, challenge: bytes) -> Message:
        own = answer(self._token, challenge, self._role)
        return {"type": "hello", "answer": own, "challenge": self.challenge.hex()}

    def welcome(self, hello: Message) -> Message:
        """The answer to a hello, which must have answered our challenge."""
        self.verify(hello)
        try:
            challenge = bytes.fromhex(str(hello.get("challenge")))
        except ValueError:
            raise WireError("a hello without a challenge") from None
        return {"type": "welcome", "answer": answer(self._token, challenge, self._role)}

    def verify(self, message: Message) -> None:
        """Raise WrongToken unless a hello or welcome answers our challenge."""
        if not is_right_answer(self._token, self.challenge, self._other, message.get("answer")):
            raise WrongToken


def encode_frame(message: Message, payload: bytes = b"") -> bytes:
    header = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(header), len(payload)) + header + payload


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(
        self,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._buffer = bytearray()
        self._max_header_bytes = max_header_bytes
        self._max_payload_bytes = max_payload_bytes

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        self._buffer += data
        frames: list[tuple[Message, bytes]] = []
        while (frame := self._next_frame()) is not None:
            frames.append(frame)
        return frames

    def _next_frame(self) -> tuple[Message, bytes] | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if header_bytes > self._max_header_bytes or payload_bytes > self._max_payload_bytes:
            raise WireError(f"a frame of {header_bytes} + {payload_bytes} bytes is too large")
        end = _LENGTHS.size + header_bytes + payload_bytes
        if len(self._buffer) < end:
            return None
        header = bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + header_bytes])
        payload = bytes(self._buffer[_LENGTHS.size + header_bytes : end])
        del self._buffer[:end]
        try:
            message = json.loads(header)
        except (ValueError, RecursionError) as error:
            # A few thousand brackets exhaust the parser's stack: from a stranger, or by accident.
            raise WireError("a frame without a JSON header") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise WireError("a frame whose header names no type")
        return message, payload
