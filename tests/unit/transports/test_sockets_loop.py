"""The loop: sockets, timers, and the bell that makes its descriptor readable."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench_spark.transports.sockets.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


class Listener:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.heard = b""

    def fileno(self) -> int:
        return self._end.fileno()

    def on_ready(self, events: int) -> None:
        self.heard += self._end.recv(100)


def is_readable(loop: Loop) -> bool:
    return bool(select.select([loop.descriptor], [], [], 0)[0])


def test_a_socket_is_served_when_its_socket_has_something(loop: Loop) -> None:
    near, far = socket.socketpair()
    with near, far:
        listener = Listener(near)
        loop.add(listener)
        assert not is_readable(loop)
        far.send(b"hello")
        assert is_readable(loop)
        assert loop.run_until(lambda: listener.heard == b"hello", 5)
        loop.remove(listener)
        far.send(b"more")
        loop.pump()
        assert listener.heard == b"hello"


def test_timers_run_in_order_unless_cancelled(loop: Loop) -> None:
    ran: list[str] = []
    loop.call_later(0.02, lambda: ran.append("late"))
    loop.call_later(0.01, lambda: ran.append("never")).cancel()
    loop.call_later(0.0, lambda: ran.append("early"))
    assert loop.run_until(lambda: "late" in ran, 5)
    assert ran == ["early", "late"]


def test_waiting_ends_at_its_deadline(loop: Loop) -> None:
    started = time.monotonic()
    assert not loop.run_until(lambda: False, 0.05)
    assert time.monotonic() - started >= 0.05


def test_a_wakeup_keeps_the_descriptor_readable_until_sockets_are_served(loop: Loop) -> None:
    loop.wake()
    loop.wake()
    assert is_readable(loop)
    loop.pump()
    assert not is_readable(loop)
    loop.wake()
    assert is_readable(loop)


def test_a_closed_loop_does_nothing(loop: Loop) -> None:
    loop.close()
    loop.wake()
    loop.pump()
    loop.close()


def test_a_call_made_soon_runs_in_the_next_turn(loop: Loop) -> None:
    ran: list[int] = []
    loop.call_soon(lambda: ran.append(1))
    loop.pump(5)
    assert ran == [1]


class Countdown:
    """Something to wait for that becomes less at the given moments."""

    def __init__(self, loop: Loop, *moments_seconds: float) -> None:
        self.left = len(moments_seconds)
        for moment_seconds in moments_seconds:
            loop.call_later(moment_seconds, self._step)

    def _step(self) -> None:
        self.left -= 1


def test_running_down_has_patience_as_long_as_something_moves(loop: Loop) -> None:
    # Longer in all than the patience with each step.
    countdown = Countdown(loop, *(0.2 * step for step in range(1, 6)))
    assert loop.run_down(lambda: countdown.left, patience_seconds=0.8)
    assert countdown.left == 0


def test_running_down_ends_when_nothing_moves_any_more(loop: Loop) -> None:
    countdown = Countdown(loop, 0.01, 0.02, 60)
    assert not loop.run_down(lambda: countdown.left, patience_seconds=0.1)
    assert countdown.left == 1


def test_running_down_is_bounded_as_a_whole(loop: Loop) -> None:
    countdown = Countdown(loop, *(0.05 * step for step in range(1, 1000)))
    assert not loop.run_down(lambda: countdown.left, patience_seconds=60, most_seconds=0.2)
    assert countdown.left > 0


def test_running_down_nothing_waits_for_nothing(loop: Loop) -> None:
    assert loop.run_down(lambda: 0, patience_seconds=0)


def test_a_call_from_another_thread_wakes_the_loop(loop: Loop) -> None:
    ran: list[int] = []
    thread = threading.Thread(target=loop.call_from_thread, args=(lambda: ran.append(1),))
    thread.start()
    assert loop.run_until(lambda: ran, 60)
    thread.join()
    loop.pump()
    assert not is_readable(loop)


def test_of_two_sockets_only_the_one_that_is_ready_is_served(loop: Loop) -> None:
    """A listener of this test blocks where nothing has come."""
    pairs = [socket.socketpair() for _ in range(2)]
    listeners = [Listener(near) for near, _ in pairs]
    for listener in listeners:
        loop.add(listener)
    pairs[1][1].send(b"to the second")
    loop.pump()
    assert [listener.heard for listener in listeners] == [b"", b"to the second"]
    loop.remove(listeners[0])
    pairs[1][1].send(b", alone now")
    loop.pump()
    assert listeners[1].heard == b"to the second, alone now"
    loop.watch_reading(listeners[1], False)
    pairs[1][1].send(b"and not read")
    loop.pump()
    assert listeners[1].heard == b"to the second, alone now"
    for near, far in pairs:
        near.close()
        far.close()
