"""How far senders may run ahead of receivers, in mode `maximum`. Pure: time is the caller's."""

from __future__ import annotations

from bench_spark.agent.outages import WriteOff
from bench_spark.agent.tally import Tally


class Backlog:
    """In deliveries: every copy of a message counts, and one message is always let out."""

    def __init__(self, tally: Tally, limit_bytes: int, copies: int, is_shared: bool) -> None:
        """`copies` of each message are delivered. `is_shared`: other agents send to and receive
        from the same destinations, and the driver tells how much is in them."""
        self._tally = tally
        self._limit_bytes = limit_bytes
        self._copies = copies
        self._is_shared = is_shared
        self._everyones = 0
        self._sent_at_news = 0
        self._write_off = WriteOff()

    def room(self, body_bytes: int) -> int:
        """How many more messages of that size the limit allows."""
        limit = max(self._copies, self._limit_bytes // body_bytes)
        if self._is_shared:
            sent_since = self._tally.sent - self._sent_at_news
            backlog = self._everyones + sent_since * self._copies
        else:
            backlog = self._out - self._write_off.messages
            if self._write_off.is_due and backlog > limit // 2:
                # Sending on would hide that of all these nothing arrives any more.
                return 0
        return (limit - backlog) // self._copies

    @property
    def _out(self) -> int:
        """Sent by this agent, and neither received by it nor known to have failed."""
        tally = self._tally
        return (tally.sent - tally.freed) * self._copies - tally.received

    def told(self, everyones: int) -> None:
        """The driver says how much all agents together have under way."""
        self._everyones = everyones
        self._sent_at_news = self._tally.sent

    def reopened(self) -> None:
        """A lane is back; nobody knows yet what went down with its connection."""
        self._write_off.reopened()

    def look(self, now_ns: int) -> None:
        """While all lanes are up: write off what will not arrive any more."""
        self._write_off.look(self._out, self._tally.received, now_ns)
