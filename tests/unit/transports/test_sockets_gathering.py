"""When lanes are read less often, and that nothing lies there for long."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench_spark.config.models import Scenario
from bench_spark.transports.sockets.loop import (
    FLOWING_BYTES,
    GATHERED_BYTES,
    Gathering,
    Loop,
    is_gathered,
)


class PlainLane:
    """A socket that is read and not understood."""

    def __init__(self, gathering: Gathering) -> None:
        self._socket, self.broker = socket.socketpair()
        self._socket.setblocking(False)
        self._gathering = gathering
        self.wakes_at = 1
        self.reads: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def on_ready(self, events: int) -> None:
        self.read()

    def read(self) -> None:
        try:
            count = len(self._socket.recv(1 << 20))
        except BlockingIOError:
            count = 0
        self.reads.append(count)
        self._gathering.after_read(self, count)

    def wake_at(self, waiting_bytes: int) -> None:
        self.wakes_at = waiting_bytes

    def close(self) -> None:
        self._socket.close()
        self.broker.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def lane(loop: Loop) -> Iterator[PlainLane]:
    gathering = Gathering()
    made = PlainLane(gathering)
    loop.add(gathering)
    loop.add(made)
    yield made
    made.close()
    gathering.close()


def is_silent(loop: Loop) -> bool:
    return not select.select([loop.descriptor], [], [], 0.02)[0]


def test_a_lane_that_does_not_flow_is_read_at_once(loop: Loop, lane: PlainLane) -> None:
    for _ in range(5):
        lane.broker.sendall(bytes(FLOWING_BYTES - 1))
        loop.pump(1.0)
    assert lane.reads == [FLOWING_BYTES - 1] * 5
    assert lane.wakes_at == 1
    assert is_silent(loop)


def test_a_lane_that_flows_is_woken_for_more_and_looked_after_until_it_stops(
    loop: Loop, lane: PlainLane
) -> None:
    lane.broker.sendall(bytes(FLOWING_BYTES))
    loop.pump(1.0)
    assert lane.wakes_at == GATHERED_BYTES
    # Nothing more comes: the timer sees that, and the lane is an ordinary one again.
    deadline = time.monotonic() + 5
    while lane.wakes_at != 1:
        assert time.monotonic() < deadline
        loop.pump(1.0)
    assert lane.reads == [FLOWING_BYTES, 0]
    assert is_silent(loop)


def scenario(**changes: Any) -> Scenario:
    load = {"mode": "maximum", **changes.pop("load", {})}
    return Scenario.model_validate({"load": load, **changes})


@pytest.mark.parametrize(
    ("asked", "acknowledges", "expected"),
    [
        (scenario(), False, True),
        (scenario(), True, False),
        (scenario(load={"backlog_limit_bytes": 100_000}), False, False),
        (scenario(load={"mode": "window"}), False, False),
        (scenario(load={"mode": "rate", "rate_per_second": 10}), False, False),
    ],
)
def test_only_a_load_without_anyone_waiting_is_gathered(
    asked: Scenario, acknowledges: bool, expected: bool
) -> None:
    assert is_gathered(asked, acknowledges=acknowledges) is expected
