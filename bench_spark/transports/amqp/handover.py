"""Whether pika lets go of a connection the way lanes need it.

They rely on things that pika does not promise: where it keeps bytes it could not decode yet,
where the negotiated limits are, and how its heartbeats are stopped. So before it is done, a
handover is rehearsed with a peer made of a few frames.
"""

from __future__ import annotations

import functools
import socket
from typing import Any

import pika
import pika.spec

from bench_spark.transports.amqp.connection import AmqpConnection, Handover
from bench_spark.transports.amqp.frames import HEARTBEAT_FRAME, Framing, method_frame
from bench_spark.transports.sockets.loop import Loop

_FRAME_MAX, _HEARTBEAT_SECONDS = 8192, 7
_HALF_A_FRAME = HEARTBEAT_FRAME[:5]


@functools.cache
def obstacle() -> str | None:
    """Why messages cannot be moved with this pika; None where they can."""
    ours, theirs = socket.socketpair()
    loop = Loop()
    try:
        with ours, theirs:
            ours.setblocking(False)
            handover = _rehearse(ours, theirs, loop)
            return _difference(handover, ours, loop)
    except Exception as error:  # whatever a changed pika raises is the answer
        return f"pika {pika.__version__} does not hand over its connection: {error!r}"
    finally:
        loop.close()


def _rehearse(ours: socket.socket, theirs: socket.socket, loop: Loop) -> Handover:
    parameters = pika.ConnectionParameters(heartbeat=_HEARTBEAT_SECONDS)
    connection = AmqpConnection(ours, loop, parameters)
    spec = pika.spec.Connection
    for method in (
        spec.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"),
        spec.Tune(channel_max=10, frame_max=_FRAME_MAX, heartbeat=2 * _HEARTBEAT_SECONDS),
        spec.OpenOk(),
    ):
        theirs.sendall(method_frame(0, method))
        loop.pump()
    channel = connection.channel(on_open_callback=_ignore)
    theirs.sendall(method_frame(1, pika.spec.Channel.OpenOk()) + _HALF_A_FRAME)
    loop.pump()
    return connection.hand_over(channel)


def _difference(handover: Handover, ours: socket.socket, loop: Loop) -> str | None:
    expected = Handover(
        socket=ours,
        framing=Framing(1, _FRAME_MAX),
        heartbeat_seconds=_HEARTBEAT_SECONDS,
        unread=_HALF_A_FRAME,
        unsent=b"",
        blocked_reason=None,
    )
    if handover != expected:
        return f"pika {pika.__version__} hands over something else than expected"
    if loop.has_timers:
        return f"pika {pika.__version__} keeps its heartbeats running"
    return None


def _ignore(_channel: Any) -> None:
    """pika insists on a callback; the handover shows whether the channel is open."""
