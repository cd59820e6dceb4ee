"""What reading from many connections costs at least: epoll and recv, and nothing done with it."""

from __future__ import annotations

import resource
import select
import socket
import time
from contextlib import ExitStack

from benchmarks.figures import CLIENT_CPU, Figures

BARE_SOCKETS = "epoll and recv alone"
ROUNDS = 30
LISTEN_BACKLOG = 2048
READ_BYTES = 65_536


def run(connections: int, packet_bytes: int) -> Figures:
    """CPU per packet where each connection gets one, all at once, and is read once."""
    _make_room(2 * connections)
    buffer = memoryview(bytearray(READ_BYTES))
    packet = bytes(packet_bytes)
    with ExitStack() as opened:
        epoll = opened.enter_context(select.epoll())
        listener = opened.enter_context(
            socket.create_server(("127.0.0.1", 0), backlog=LISTEN_BACKLOG)
        )
        senders, readers = [], {}
        for _ in range(connections):
            sender = opened.enter_context(socket.create_connection(listener.getsockname()))
            reader = opened.enter_context(listener.accept()[0])
            reader.setblocking(False)
            epoll.register(reader, select.EPOLLIN)
            senders.append(sender)
            readers[reader.fileno()] = reader.recv_into
        used_seconds, packets = 0.0, 0
        for _ in range(ROUNDS):
            for sender in senders:
                sender.sendall(packet)
            began = time.process_time()
            for descriptor, _ in epoll.poll(1, connections):
                packets += readers[descriptor](buffer) // packet_bytes
            used_seconds += time.process_time() - began
    return {CLIENT_CPU: used_seconds * 1e6 / packets}


def _make_room(descriptors: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
