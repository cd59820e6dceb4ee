"""Reopens lost lanes: dial, log in, restore what the broker forgot, begin again.

Many lanes are lost together, because they all lead to one broker. So they share pauses that grow
with each failure, and only a group of them is on its way at a time. Nothing here blocks: names,
TCP, TLS and declaring are calls in the background, the rest happens on the loop.
"""

from __future__ import annotations

import functools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerUnreachable
from bench_spark.process import Backoff
from bench_spark.transports.base import OPENED_TOGETHER, Destination
from bench_spark.transports.sockets.loop import BackgroundCalls, Loop, Timer
from bench_spark.transports.sockets.opening import (
    ConnectionT,
    Connector,
    OpenLane,
    SocketAccess,
    dialled,
)

CALM_SECONDS = 10.0
"""After so long without a loss, pauses begin small again."""


class BeyondRestoring(Exception):
    """A destination is gone and cannot be had again; the text says which and why."""


@dataclass(frozen=True)
class ReopeningRule:
    seconds: float
    """For how long a lost lane is tried."""
    restore: Callable[[Sequence[Destination]], None] = lambda destinations: None
    """Declare again what the broker has forgotten; by default nothing can be. Blocks; raises
    BeyondRestoring, or a BenchError where trying again may help."""


@dataclass
class _Outage(Generic[ConnectionT]):
    """One lane from its loss until it is open again or given up."""

    lane: OpenLane[ConnectionT]
    first_reason: str
    last_reason: str
    connection: ConnectionT | None = None
    """The attempt that is on its way."""
    is_beginning: bool = False
    """The lane has its new connection and waits for the broker's answers."""
    is_over: bool = False
    timers: list[Timer] = field(default_factory=list)
    """Of the present step."""
    end_timer: Timer | None = None


_LoggedIn = list[tuple[_Outage[ConnectionT], ConnectionT]]


@dataclass(frozen=True)
class _Dialled:
    sockets: list[socket.socket]
    error: BenchError | None

    def close(self) -> None:
        for one in self.sockets:
            one.close()


class Reopener(Generic[ConnectionT]):
    def __init__(
        self,
        protocol: Connector[ConnectionT],
        rule: ReopeningRule,
        loop: Loop,
        now_ns: NowNs,
        begin: Callable[[OpenLane[ConnectionT], ConnectionT], None],
        give_up: Callable[[OpenLane[ConnectionT], str], None],
    ) -> None:
        """`begin` gives the lane its new connection and asks the broker for what is still
        missing; `done` is to be called when that has been answered, or `failed`."""
        self._protocol = protocol
        self._access = protocol.access
        self._rule = rule
        self._loop = loop
        self._now_ns = now_ns
        self._begin = begin
        self._give_up = give_up
        self._calls = BackgroundCalls(loop)
        self._backoff = Backoff()
        self._outages: dict[int, _Outage[ConnectionT]] = {}
        self._waiting: deque[_Outage[ConnectionT]] = deque()
        self._logged_in: _LoggedIn[ConnectionT] = []
        """Waiting for what the broker forgot to be restored."""
        self._is_restoring = False
        self._are_there: set[int] = set()
        """Destinations known to be there: restored, and no connection has failed since."""
        self._doubts = 0
        self._on_the_way = 0
        self._next_dial: Timer | None = None
        self._must_pause = False
        self._last_loss_seconds = 0.0

    def is_beginning(self, lane: OpenLane[ConnectionT]) -> bool:
        outage = self._outages.get(lane.number)
        return outage is not None and outage.is_beginning

    def add(self, lane: OpenLane[ConnectionT], why: str) -> None:
        """The lane is lost."""
        now_seconds = time.monotonic()
        if now_seconds - self._last_loss_seconds > CALM_SECONDS and not self._outages:
            self._backoff.reset()
        self._last_loss_seconds = now_seconds
        outage: _Outage[ConnectionT] = _Outage(lane, why, why)
        outage.end_timer = self._loop.call_later(
            self._rule.seconds, functools.partial(self._time_is_up, outage)
        )
        self._outages[lane.number] = outage
        self._doubt()
        self._waiting.append(outage)
        self._must_pause = True
        self._dial_later()

    def done(self, lane: OpenLane[ConnectionT]) -> None:
        outage = self._outages[lane.number]
        self._leave_the_way(outage)
        self._end(outage)
        self._dial_later()

    def failed(self, lane: OpenLane[ConnectionT], why: str, is_final: bool) -> None:
        """What the lane asked for when it began again was not granted."""
        self._failed(self._outages[lane.number], why, is_final)

    def close(self) -> None:
        self._calls.close()
        for outage in list(self._outages.values()):
            self._hang_up(outage)
            self._end(outage)
        self._waiting.clear()
        if self._next_dial is not None:
            self._next_dial.cancel()

    # -- dialling ----------------------------------------------------------------------------------

    def _dial_later(self) -> None:
        if self._next_dial is not None or not self._waiting or self._on_the_way >= OPENED_TOGETHER:
            return
        pause = self._backoff.next_seconds() if self._must_pause else 0.0
        self._must_pause = False
        self._next_dial = self._loop.call_later(pause, self._dial)

    def _dial(self) -> None:
        self._next_dial = None
        group: list[_Outage[ConnectionT]] = []
        while self._waiting and self._on_the_way < OPENED_TOGETHER:
            outage = self._waiting.popleft()
            if not outage.is_over:
                group.append(outage)
                self._on_the_way += 1
        if group:
            self._calls.run(
                functools.partial(_dial_all, self._access, len(group)),
                functools.partial(self._dialled, group),
                _Dialled.close,
            )

    def _dialled(self, group: Sequence[_Outage[ConnectionT]], answered: _Dialled) -> None:
        sockets = iter(answered.sockets)
        for outage in group:
            connected = next(sockets, None)
            if outage.is_over:
                self._on_the_way -= 1
                if connected is not None:
                    connected.close()
            elif connected is not None:
                self._log_in(outage, connected)
            else:
                self._try_again(outage, str(answered.error))
        self._dial_later()

    # -- logging in --------------------------------------------------------------------------------

    def _log_in(self, outage: _Outage[ConnectionT], connected: socket.socket) -> None:
        connection = self._protocol.log_in(outage.lane.number, connected, self._loop, self._now_ns)
        outage.connection = connection
        connection.on_open = functools.partial(self._is_logged_in, outage, connection)
        connection.on_open_error = functools.partial(self._login_failed, outage, connection)
        self._limit(outage, f"accepted the connection, but gave no answer in {self._protocol.name}")

    def _login_failed(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, failure: Exception
    ) -> None:
        if outage.connection is connection:
            why = str(self._protocol.login_failure(connection, failure))
            self._failed(outage, why, self._protocol.is_login_refused(connection, failure))

    def _is_logged_in(self, outage: _Outage[ConnectionT], connection: ConnectionT) -> None:
        connection.on_end = functools.partial(self._attempt_ended, outage, connection)
        self._unlimit(outage)
        self._logged_in.append((outage, connection))
        self._restore()

    def _attempt_ended(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, failure: Exception
    ) -> None:
        if outage.connection is connection and not outage.is_beginning:
            why = self._protocol.describe_end(connection, failure)
            self._failed(outage, why, not self._protocol.may_pass(connection, failure))

    # -- restoring what the broker forgot ----------------------------------------------------------

    def _restore(self) -> None:
        if self._is_restoring or not self._logged_in:
            return
        group, self._logged_in = self._logged_in, []
        missing = {
            one.index: one
            for outage, _ in group
            for one in outage.lane.lane.destinations
            if one.index not in self._are_there
        }
        if not missing:
            self._get_ready_all(group, None)
            return
        self._is_restoring = True
        self._calls.run(
            functools.partial(_outcome_of, self._rule.restore, list(missing.values())),
            functools.partial(self._restored, group, missing.keys(), self._doubts),
        )

    def _restored(
        self,
        group: _LoggedIn[ConnectionT],
        destinations: Iterable[int],
        doubts_before: int,
        error: BenchError | BeyondRestoring | None,
    ) -> None:
        self._is_restoring = False
        if error is None and self._doubts == doubts_before:
            self._are_there.update(destinations)
        self._get_ready_all(group, error)
        self._restore()

    def _doubt(self) -> None:
        """A connection failed: the broker may have restarted and forgotten once more."""
        self._are_there.clear()
        self._doubts += 1

    def _get_ready_all(
        self, group: _LoggedIn[ConnectionT], error: BenchError | BeyondRestoring | None
    ) -> None:
        for outage, connection in group:
            if outage.connection is not connection:
                continue  # lost again meanwhile
            if error is None:
                self._get_ready(outage, connection)
            else:
                self._failed(outage, str(error), isinstance(error, BeyondRestoring))

    # -- beginning again ---------------------------------------------------------------------------

    def _get_ready(self, outage: _Outage[ConnectionT], connection: ConnectionT) -> None:
        self._limit(outage, f"no answer to {self._protocol.first_request} and what follows it")
        self._protocol.get_ready(
            connection,
            self._loop,
            functools.partial(self._begin_again, outage, connection),
            functools.partial(self._attempt_ended, outage, connection),
        )

    def _begin_again(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, opened: ConnectionT
    ) -> None:
        if outage.connection is connection:
            outage.is_beginning = True
            self._begin(outage.lane, opened)

    # -- how attempts end --------------------------------------------------------------------------

    def _limit(self, outage: _Outage[ConnectionT], what: str) -> None:
        self._unlimit(outage)
        seconds = self._access.timeout_seconds
        why = f"{self._access.address}: {what} within {seconds:g} s"
        outage.timers.append(
            self._loop.call_later(seconds, functools.partial(self._failed, outage, why, False))
        )

    @staticmethod
    def _unlimit(outage: _Outage[ConnectionT]) -> None:
        for timer in outage.timers:
            timer.cancel()
        outage.timers.clear()

    def _failed(self, outage: _Outage[ConnectionT], why: str, is_final: bool) -> None:
        if outage.is_over:
            return
        self._hang_up(outage)
        if is_final:
            self._leave_the_way(outage)
            self._end(outage)
            self._give_up(outage.lane, f"{outage.first_reason}; not reopened: {why}")
        else:
            self._try_again(outage, why)
        self._dial_later()

    def _try_again(self, outage: _Outage[ConnectionT], why: str) -> None:
        self._leave_the_way(outage)
        self._doubt()
        outage.last_reason = why
        self._waiting.append(outage)
        self._must_pause = True

    def _time_is_up(self, outage: _Outage[ConnectionT]) -> None:
        if outage.is_over:
            return
        is_on_the_way = outage.connection is not None
        self._hang_up(outage)
        if is_on_the_way:
            self._leave_the_way(outage)
        self._end(outage)
        self._give_up(
            outage.lane,
            f"{outage.first_reason}; not reopened within {self._rule.seconds:g} s: "
            f"{outage.last_reason}",
        )
        self._dial_later()

    def _hang_up(self, outage: _Outage[ConnectionT]) -> None:
        """End the attempt that is on its way, whoever owns its socket by now."""
        self._unlimit(outage)
        connection, outage.connection = outage.connection, None
        ending = outage.lane.connection if outage.is_beginning else connection
        outage.is_beginning = False
        if ending is not None:
            ending.abort("the lane could not be reopened this time")

    def _leave_the_way(self, outage: _Outage[ConnectionT]) -> None:
        self._unlimit(outage)
        self._on_the_way -= 1

    def _end(self, outage: _Outage[ConnectionT]) -> None:
        outage.is_over = True
        outage.is_beginning = False
        outage.connection = None
        if outage.end_timer is not None:
            outage.end_timer.cancel()
        del self._outages[outage.lane.number]


def _dial_all(access: SocketAccess, count: int) -> _Dialled:
    sockets: list[socket.socket] = []
    try:
        for connected in dialled(access, count, time.monotonic() + access.timeout_seconds):
            sockets.append(connected)
    except BenchError as error:
        return _Dialled(sockets, error)
    except OSError as error:  # no descriptor left, for instance
        return _Dialled(sockets, BrokerUnreachable(f"{access.address}: {error.strerror or error}"))
    return _Dialled(sockets, None)


def _outcome_of(
    restore: Callable[[Sequence[Destination]], None], destinations: Sequence[Destination]
) -> BenchError | BeyondRestoring | None:
    try:
        restore(destinations)
    except (BenchError, BeyondRestoring) as error:
        return error
    return None
