"""An agent's connection to the driver: commands in, reports and event rows out.

What the socket takes at once is sent by the calling thread. A thread of its own sends the rest and
receives everything, so that the agent's loop never waits for the driver; it sleeps while the loop
only reports. The loop learns of commands through `descriptor`, which it waits on beside its lanes.

Event rows, and names of files of messages, stay here until the driver has acknowledged them; what
was not acknowledged when the agent ends goes back as the result of its Spark task, so none depends
on this connection alone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    EventRow,
    FrameReader,
    Handshake,
    Message,
    WireError,
    WrongToken,
    encode_frame,
    encode_rows,
)
from bench_spark.agent.tracer import MessageFile
from bench_spark.core.clock import Clock, ClockOffset, best_offset, boot_id
from bench_spark.errors import RunError
from bench_spark.process import Backoff, watched

JOIN_SECONDS = 10.0
"""How long joining is tried again where the collector closes the connection: when many connect at
once, it closes those that have not authenticated yet to make room for new ones."""
_LONGEST_PAUSE_SECONDS = 0.5
CLOCK_EXCHANGES = 32
CLOCK_CHECK_SECONDS = 1.0
_RECEIVE_BYTES = 65536
_CLOSING_WAIT_SECONDS = 0.25
_IDLE_WAIT_SECONDS = 5.0


class LinkLost(RunError):
    """The driver is gone: the agent cleans up and ends."""


class _HungUp(LinkLost):
    """The collector closed the connection before the agent had authenticated."""


class Link:
    def __init__(self, address: tuple[str, int], token: str, agent: int, attempt: int) -> None:
        self._outgoing: deque[bytes] = deque()
        self._pending = b""
        """What the thread is sending."""
        self._sending = threading.Lock()
        """Held by whoever sends, so that frames stay whole and in order."""
        self._commands: deque[tuple[Message, bytes]] = deque()
        self._unacknowledged: dict[int, EventRow] = {}
        self._untaken_files: dict[int, MessageFile] = {}
        self._lock = threading.Lock()
        self._lost = threading.Event()
        self._closing = False
        self._closing_deadline = 0.0
        self._connect(address, token, agent, attempt)
        self._wake_out, self._wake_in = os.pipe()
        self._command_out, self._command_in = os.pipe()
        for end in (self._wake_out, self._wake_in, self._command_out, self._command_in):
            os.set_blocking(end, False)
        self._socket.setblocking(False)
        self._thread = threading.Thread(target=watched(self._work), name="link", daemon=True)
        self._thread.start()

    # -- joining ---------------------------------------------------------------------------------

    def _connect(self, address: tuple[str, int], token: str, agent: int, attempt: int) -> None:
        """Connect and join; again for some seconds, where the collector closes the connection."""
        last_try = time.monotonic() + JOIN_SECONDS
        backoff = Backoff(longest_seconds=_LONGEST_PAUSE_SECONDS)
        while True:
            self._socket = socket.create_connection(address, timeout=10)
            self._reader = FrameReader()
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._join(token, agent, attempt)
                return
            except (_HungUp, ConnectionError):
                self._socket.close()
                if time.monotonic() > last_try:
                    raise
            except BaseException as error:
                self._socket.close()
                if isinstance(error, WireError):
                    raise LinkLost("whoever answers there is no collector") from error
                raise
            time.sleep(backoff.next_seconds())

    def _join(self, token: str, agent: int, attempt: int) -> None:
        handshake = Handshake(token, "agent", "driver")
        hello = handshake.hello(self._read_exactly(CHALLENGE_BYTES))
        hello |= {"agent": agent, "attempt": attempt, "boot_id": boot_id()}
        self._socket.sendall(encode_frame(hello))
        welcome = self._read_message("welcome")
        try:
            handshake.verify(welcome)
        except WrongToken:
            raise LinkLost("the collector did not prove that it belongs to this run") from None
        driver_clock = Clock(int(welcome["anchor_ns"]))
        self._shares_clock = welcome.get("boot_id") is not None and welcome["boot_id"] == boot_id()
        if self._shares_clock:
            # One kernel, one monotonic clock: the driver's anchor is exact here.
            self.clock, self.clock_offset = driver_clock, ClockOffset(0, 0)
            return
        local = Clock.local()
        measured = best_offset([self._exchange(local) for _ in range(CLOCK_EXCHANGES)])
        self.clock = local.shifted(measured.offset_ns)
        self.clock_offset = ClockOffset(0, measured.bound_ns)

    def _exchange(self, clock: Clock) -> tuple[int, int, int]:
        asked = clock.now_ns()
        self._socket.sendall(encode_frame({"type": "ping", "asked": asked}))
        pong = self._read_message("pong")
        return asked, int(pong["answered"]), clock.now_ns()

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise _HungUp("the collector closed the connection while the agent joined")
            data += more
        return data

    def _read_message(self, wanted: str) -> Message:
        """The next message of that type; whatever else comes with it is a command for later."""
        found: Message | None = None
        while found is None:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise _HungUp("the collector closed the connection while the agent joined")
            for message, payload in self._reader.feed(data):
                if found is None and message["type"] == wanted:
                    found = message
                else:
                    self._commands.append((message, payload))
        return found

    # -- used by the agent's loop ----------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        return self._command_out

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def send(self, message: Message, payload: bytes = b"") -> None:
        frame = encode_frame(message, payload)
        with self._sending:
            if not self._pending and not self._outgoing:
                frame = frame[self._send_some(frame) :]
            if not frame:
                return
            self._outgoing.append(frame)
        self._wake(self._wake_in)

    def _send_some(self, data: bytes) -> int:
        """How many bytes the socket took at once."""
        try:
            return self._socket.send(data)
        except OSError:  # full, or broken, which the thread finds out
            return 0

    def send_rows(self, rows: list[EventRow]) -> None:
        if not rows:
            return
        with self._lock:
            self._unacknowledged |= {row.row_number: row for row in rows}
        header, columns = encode_rows(rows)
        self.send({"type": "rows", "rows": header}, columns)

    def send_file(self, file: MessageFile) -> None:
        """Tell of a file of messages; from any thread."""
        with self._lock:
            self._untaken_files[file.number] = file
        self.send({"type": "files", "files": [file.as_dict()]})

    def untaken_files(self) -> list[MessageFile]:
        with self._lock:
            return [self._untaken_files[number] for number in sorted(self._untaken_files)]

    def unacknowledged_rows(self) -> list[EventRow]:
        with self._lock:
            return [self._unacknowledged[number] for number in sorted(self._unacknowledged)]

    def commands(self) -> list[Message]:
        """What the driver has said since the last call; never waits."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._command_out, 4096)
        found = []
        while self._commands:
            found.append(self._commands.popleft()[0])
        return found

    def wait_for(
        self, wanted: str, timeout_seconds: float, meanwhile: Callable[[], None] | None = None
    ) -> Message:
        """Wait for one command, or for `stop`; those before it are dropped, those after it kept.

        `meanwhile` is called again and again.
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            while self._commands:
                message, _ = self._commands.popleft()
                if message["type"] in (wanted, "stop"):
                    return message
            if self.is_lost:
                raise LinkLost("the connection to the driver ended")
            if meanwhile is not None:
                meanwhile()
            time.sleep(0.002)
        raise LinkLost(f"the driver did not say {wanted!r} within {timeout_seconds:g} s")

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Send what is waiting, receive what the driver still says, then disconnect."""
        self._closing_deadline = time.monotonic() + timeout_seconds
        self._closing = True
        self._wake(self._wake_in)
        self._thread.join(timeout_seconds + 1.0)
        self._socket.close()
        for end in (self._wake_out, self._wake_in, self._command_out, self._command_in):
            os.close(end)

    # -- the link's own thread -------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._exchange_frames()
        except (OSError, WireError):
            pass  # Either way the driver cannot be reached any more, which is what `lost` says.
        finally:
            self._lost.set()
            self._wake(self._command_in)

    def _exchange_frames(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake_out, selectors.EVENT_READ)
        selector.register(self._socket, selectors.EVENT_READ)
        has_said_all = False
        next_check = time.monotonic() + CLOCK_CHECK_SECONDS
        while not self._closing or time.monotonic() < self._closing_deadline:
            if not has_said_all:
                self._take_outgoing()
            if self._closing and not self._pending and not has_said_all:
                # Only this direction, and then on to the driver's own end: a socket that is closed
                # with something unread throws away what it has accepted and not yet sent.
                self._socket.shutdown(socket.SHUT_WR)
                has_said_all = True
            if not self._shares_clock and not has_said_all and time.monotonic() >= next_check:
                next_check += CLOCK_CHECK_SECONDS
                self.send({"type": "ping", "asked": self.clock.now_ns()})
                continue
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pending else 0)
            selector.modify(self._socket, events)
            for key, ready in selector.select(self._longest_wait(next_check)):
                if key.fd == self._wake_out:
                    os.read(self._wake_out, 4096)
                    continue
                if ready & selectors.EVENT_READ:
                    heard_ns = self.clock.now_ns()
                    data = self._socket.recv(_RECEIVE_BYTES)
                    if not data:
                        return
                    self._handle(data, heard_ns)
                if ready & selectors.EVENT_WRITE:
                    with self._sending:
                        self._pending = self._pending[self._socket.send(self._pending) :]

    def _longest_wait(self, next_check: float) -> float:
        """Whoever has something for the thread wakes it; else only the clock does."""
        if self._closing:
            return _CLOSING_WAIT_SECONDS
        if self._shares_clock:
            return _IDLE_WAIT_SECONDS
        return max(0.0, next_check - time.monotonic())

    def _take_outgoing(self) -> None:
        with self._sending:
            if not self._pending:
                self._pending = b"".join(self._outgoing)
                self._outgoing.clear()

    def _handle(self, data: bytes, heard_ns: int) -> None:
        for message, payload in self._reader.feed(data):
            if message["type"] == "pong":
                self.clock_offset = best_offset(
                    [(int(message["asked"]), int(message["answered"]), heard_ns)]
                )
            elif message["type"] == "rows_kept":
                with self._lock:
                    for number in message["row_numbers"]:
                        self._unacknowledged.pop(number, None)
            elif message["type"] == "files_kept":
                with self._lock:
                    for number in message["numbers"]:
                        self._untaken_files.pop(number, None)
            else:
                self._commands.append((message, payload))
                self._wake(self._command_in)

    @staticmethod
    def _wake(pipe: int) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(pipe, b"!")


def report(link: Link, step: str, payload: bytes = b"", **fields: Any) -> None:
    """Tell the driver that this agent has come to a step of the run."""
    link.send({"type": "reached", "step": step, **fields}, payload)
