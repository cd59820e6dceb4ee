"""Many connections, opened together: the logins of a group run side by side on one loop, so that
hundreds of lanes open in the time of a few."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Generic

from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerUnreachable
from bench_spark.transports.sockets.dialling import dialled
from bench_spark.transports.sockets.line import DialogueT, OpenedT, Protocolled
from bench_spark.transports.sockets.loop import Loop


def open_connections(
    protocol: Protocolled[DialogueT, OpenedT],
    count: int,
    loop: Loop,
    now_ns: NowNs = time.monotonic_ns,
    on_opened: Callable[[int], None] | None = None,
) -> list[DialogueT]:
    """All of them, logged in; or none, and the error says why."""
    connections: list[DialogueT] = []
    access = protocol.access
    try:
        while len(connections) < count:
            group_start = len(connections)
            group_end = group_start + access.pace.take(count - group_start)
            deadline = time.monotonic() + access.timeout_seconds
            for connected in dialled(access, group_end - group_start, deadline):
                connections.append(protocol.log_in(len(connections), connected, loop, now_ns))
            _await_logins(protocol, connections[group_start:], loop, deadline)
            if on_opened is not None:
                on_opened(group_end - group_start)
    except BaseException:
        for connection in connections:
            connection.abort("another connection could not be opened")
        raise
    return connections


class ReadyAtLogin(Generic[DialogueT]):
    """How connections are opened of protocols in which nothing is between a login and a lane."""

    def open_all(
        self: Protocolled[DialogueT, DialogueT], count: int, loop: Loop, now_ns: NowNs
    ) -> list[DialogueT]:
        return open_connections(self, count, loop, now_ns, self.access.on_opened)

    def get_ready(
        self,
        connection: DialogueT,
        loop: Loop,
        then: Callable[[DialogueT], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        loop.call_soon(functools.partial(then, connection))


def _await_logins(
    protocol: Protocolled[DialogueT, OpenedT],
    group: Sequence[DialogueT],
    loop: Loop,
    deadline: float,
) -> None:
    def all_settled() -> bool:
        return all(one.is_open or one.failure is not None for one in group)

    loop.run_until(all_settled, max(0.0, deadline - time.monotonic()))
    for connection in group:
        if connection.failure is not None:
            raise protocol.login_failure(connection, connection.failure)
        if not connection.is_open:
            access = protocol.access
            raise BrokerUnreachable(
                f"{access.address}: accepted the connection, but gave no answer in {protocol.name} "
                f"within {access.timeout_seconds:g} s"
            )
