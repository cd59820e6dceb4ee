"""What transports share whose destinations are addresses: nothing is made or kept there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench_spark.transports.base import Destination, Subscription, TransportContext
from bench_spark.transports.sockets.dialling import SocketAccess
from bench_spark.transports.sockets.places import Doors, Place, Places
from bench_spark.transports.sockets.plain import access_to
from bench_spark.transports.sockets.reopening import ReopeningRule


class AddressedTransport:
    def __init__(self, context: TransportContext, consumer_uri: str | None, listens: bool) -> None:
        """`listens`: whether consumers are connected to, and do not connect themselves."""
        self._context = context
        self._scenario = context.scenario
        self._listens = listens
        self._places = Places.of(context.broker, consumer_uri, context.scenario)
        self._doors = Doors(self._places.consumers)
        seconds = context.scenario.reconnect_seconds
        self._rule = ReopeningRule(seconds, _nothing_to_restore) if seconds else None

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """An address needs no making; one at any free port is known once it is listened at."""
        place = self._places.producers
        is_own = self._listens and self._scenario.consumers > 0
        if is_own:
            place = self._doors.bound() if self._doors.is_any_port else self._places.consumers
        return tuple(
            replace(one, name=place.numbered(one.index).name, declared=is_own)
            for one in destinations
        )

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        return self.declare(destinations)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """An address keeps nothing: what did not arrive is lost."""
        return tuple(0 for _ in subscriptions)

    def delete(self, destinations: Sequence[Destination]) -> None:
        self._doors.close()

    def close(self) -> None:
        self._doors.close()

    def _access(self, place: Place) -> SocketAccess:
        return access_to(self._context, place.host, place.port, place.is_encrypted)


def _nothing_to_restore(destinations: Sequence[Destination]) -> None:
    """An address cannot be forgotten."""
