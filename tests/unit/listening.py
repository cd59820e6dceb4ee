"""A handler that only remembers: for tests of both ends of a link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from patience import eventually

from bench_spark.agent.protocol import Message, new_token
from bench_spark.core.clock import Clock
from bench_spark.driver.server import CollectorServer


@dataclass
class Listener:
    """What a server told its handler, in order."""

    joined: list[tuple[int, int]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    messages: list[tuple[int, Message, bytes]] = field(default_factory=list)
    react: Callable[[int, Message], None] = lambda agent, message: None
    greet: Callable[[int], None] = lambda agent: None
    threads: set[str] = field(default_factory=set)
    turns: int = 0

    def on_joined(self, agent: int, attempt: int) -> None:
        self.joined.append((agent, attempt))
        self.threads.add(threading.current_thread().name)
        self.greet(agent)

    def on_message(self, agent: int, message: Message, payload: bytes) -> None:
        self.messages.append((agent, message, payload))
        self.threads.add(threading.current_thread().name)
        self.react(agent, message)

    def on_left(self, agent: int) -> None:
        self.left.append(agent)

    def on_time(self) -> None:
        self.turns += 1


@dataclass
class Collector:
    """A running server and its handler."""

    server: CollectorServer
    listener: Listener
    token: str
    clock: Clock

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port

    @property
    def is_alive(self) -> bool:
        """Whether it still takes its turns."""
        turns = self.listener.turns
        return eventually(lambda: self.listener.turns > turns + 1)


@contextmanager
def collecting(agents: int = 2, clock: Clock | None = None) -> Iterator[Collector]:
    token, clock = new_token(), clock or Clock.local()
    server = CollectorServer(("127.0.0.1", 0), token, agents, clock)
    collector = Collector(server, Listener(), token, clock)
    server.start(collector.listener)
    try:
        yield collector
    finally:
        server.close()
