"""Waiting for many descriptors at once, with fractions of a millisecond."""

from __future__ import annotations

import select

LONGEST_WAIT_NS = 20_000_000
"""Of the loop: there may be something to do of which no descriptor tells."""

_SELECTABLE = 1024
"""`select` takes no descriptor from here on."""


class Waiting:
    """Waits until one of its descriptors is readable.

    `epoll` rounds its time-out up to a whole millisecond, and `select` fails with high descriptors;
    so `select` waits for the one descriptor of an `epoll`. Make it before the connections, while
    descriptors are still low.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._can_select = self._epoll.fileno() < _SELECTABLE

    def add(self, *descriptors: int) -> None:
        # Both ends of a transport may have one descriptor between them.
        for descriptor in set(descriptors):
            self._epoll.register(descriptor, select.EPOLLIN)

    def wait(self, timeout_seconds: float) -> set[int]:
        """The descriptors that are readable; empty when the time is up."""
        if not self._can_select:
            return {descriptor for descriptor, _ in self._epoll.poll(timeout_seconds)}
        if not select.select([self._epoll.fileno()], [], [], timeout_seconds)[0]:
            return set()
        return {descriptor for descriptor, _ in self._epoll.poll(0)}

    def close(self) -> None:
        self._epoll.close()
