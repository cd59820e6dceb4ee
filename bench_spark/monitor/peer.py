"""The connection between a run's monitor and a sampler on another machine.

Either side may have opened it; whoever accepted it challenges first. Both prove that they know the
token, which itself never crosses the network. Then the monitor asks and the sampler answers, one
frame each. Frames are small, and one that is not ends the connection.
"""

from __future__ import annotations

import socket
import time
from typing import Literal

from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    FrameReader,
    Message,
    WireError,
    answer,
    encode_frame,
    is_right_answer,
    new_challenge,
)

Role = Literal["monitor", "sampler"]

MOST_FRAME_BYTES = 256 * 1024
HANDSHAKE_SECONDS = 5.0

_RECEIVE_BYTES = 65536


class PeerError(Exception):
    """The connection is of no further use; the text says why."""


class Peer:
    def __init__(
        self, connection: socket.socket, token: str, role: Role, *, accepted: bool
    ) -> None:
        """Takes over the connection; it is closed if the other side cannot prove itself."""
        self._socket = connection
        self._token = token
        self._role = role
        self._other: Role = "sampler" if role == "monitor" else "monitor"
        self._reader = FrameReader(MOST_FRAME_BYTES, 0)
        self._waiting: list[Message] = []
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if accepted:
                self._let_in()
            else:
                self._ask_in()
        except OSError as error:
            self.close()
            raise PeerError(f"it does not answer ({type(error).__name__})") from None
        except PeerError:
            self.close()
            raise

    def send(self, message: Message) -> None:
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as error:
            raise PeerError(f"the connection ended ({type(error).__name__})") from None

    def receive(self, wanted: str, timeout_seconds: float) -> Message:
        """The next message, which must be of this type."""
        deadline = time.monotonic() + timeout_seconds
        while not self._waiting:
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise PeerError("the connection ended")
                self._waiting += [message for message, _ in self._reader.feed(data)]
            except OSError as error:
                raise PeerError(f"it does not answer ({type(error).__name__})") from None
            except WireError as error:
                raise PeerError(f"it does not speak this protocol ({error})") from None
        message = self._waiting.pop(0)
        if message["type"] != wanted:
            raise PeerError("it does not speak this protocol")
        return message

    def close(self) -> None:
        self._socket.close()

    def _let_in(self) -> None:
        challenge = new_challenge()
        self._socket.sendall(challenge)
        hello = self.receive("hello", HANDSHAKE_SECONDS)
        if not is_right_answer(self._token, challenge, self._other, hello.get("answer")):
            raise PeerError("it does not know the token")
        self.send({"type": "welcome", "answer": self._answer(hello.get("challenge"))})

    def _ask_in(self) -> None:
        theirs = b""
        while len(theirs) < CHALLENGE_BYTES:
            more = self._socket.recv(CHALLENGE_BYTES - len(theirs))
            if not more:
                raise PeerError("the connection ended")
            theirs += more
        ours = new_challenge()
        hello = {"type": "hello", "answer": self._answer(theirs.hex()), "challenge": ours.hex()}
        self.send(hello)
        try:
            welcome = self.receive("welcome", HANDSHAKE_SECONDS)
        except PeerError as error:
            raise PeerError(
                f"it did not let us in; is the token the same there? ({error})"
            ) from None
        if not is_right_answer(self._token, ours, self._other, welcome.get("answer")):
            raise PeerError("it does not know the token")

    def _answer(self, challenge: object) -> str:
        try:
            return answer(self._token, bytes.fromhex(str(challenge)), self._role)
        except ValueError:
            raise PeerError("it does not speak this protocol") from None
