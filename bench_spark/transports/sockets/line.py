"""What lanes need of a connection, and of a protocol to open one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError
from bench_spark.transports.sockets.dialling import SocketAccess
from bench_spark.transports.sockets.loop import Loop

GOODBYE_SECONDS = 3.0
"""How long to wait for the next of many goodbyes to be answered. What was published and not read
yet would be lost with a connection that is cut off, so this is not too short."""
MOST_GOODBYE_SECONDS = 60.0


class Line(Protocol):
    """What lanes need of a connection, whoever moves the data on it."""

    failure: Exception | None
    """Why it ended, or could not open; None while it lives."""
    closed_by_broker: tuple[int, str] | None
    """The broker's own code and text, if it said goodbye."""
    read_ns: int
    """When the bytes being decoded now were read."""
    on_end: Callable[[Exception], None]
    """Called when an open connection, or its channel, has ended."""

    @property
    def is_open(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int:
        """What is still to be written to the socket."""

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written."""

    def hold(self, is_held: bool) -> None:
        """Leave what arrives in the socket, or read on."""

    def close(self) -> None:
        """Say goodbye; `failure` is set once the broker has answered."""

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""


class Dialogue(Line, Protocol):
    """A connection whose login is under way."""

    on_open: Callable[[], None]
    on_open_error: Callable[[Exception], None]


DialogueT = TypeVar("DialogueT", bound=Dialogue)
OpenedT = TypeVar("OpenedT")
OpenedT_co = TypeVar("OpenedT_co", covariant=True)


class Protocolled(Protocol[DialogueT, OpenedT_co]):
    """How connections of one protocol are opened, and what their ends mean.

    `OpenedT_co` is what a lane is equipped from: a connection, or that and a channel on it.
    """

    @property
    def access(self) -> SocketAccess: ...

    @property
    def name(self) -> str:
        """The protocol's, for messages to people."""

    @property
    def first_request(self) -> str:
        """What follows the login, for messages to people."""

    def open_all(self, count: int, loop: Loop, now_ns: NowNs) -> Sequence[OpenedT_co]:
        """All of them, or an error that says why not; waits."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> DialogueT:
        """Begin the login of the lane of that number; does not wait."""

    def get_ready(
        self,
        connection: DialogueT,
        loop: Loop,
        then: Callable[[OpenedT_co], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """What is between a login and a lane; `then` is called in a later turn of the loop."""

    def login_failure(self, connection: DialogueT, failure: Exception) -> BenchError: ...

    def is_login_refused(self, connection: DialogueT, failure: Exception) -> bool:
        """Whether the broker itself said so; a mere hang-up says nothing."""

    def describe_end(self, line: Line, failure: Exception) -> str:
        """Why a connection ended, in one line and in the broker's words where it has any."""

    def may_pass(self, line: Line, failure: Exception) -> bool:
        """Whether a new connection may fare better."""

    def refusal(self, line: Line, failure: Exception | None, what: str) -> BenchError:
        """The error for a request (`what`) that the broker did not grant."""


def close_gracefully(loop: Loop, connections: Sequence[Line]) -> bool:
    """Say goodbye on all of them side by side; a broker that does not answer is hung up on. Whether
    all have answered: what was sent to others may never have been read."""
    for connection in connections:
        if connection.is_open:
            connection.close()

    def count_open() -> int:
        return sum(one.failure is None for one in connections)

    have_all_answered = loop.run_down(count_open, GOODBYE_SECONDS, MOST_GOODBYE_SECONDS)
    for connection in connections:
        connection.abort("the broker did not answer the goodbye")
    return have_all_answered
