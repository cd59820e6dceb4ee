"""Where producers send and consumers receive, for protocols in which either may be the server.

A broker file names one address. Producers send to it. Consumers listen there too, unless the
scenario gives them an address of their own: then the file's is that of the system under test, and
theirs is where it sends what it has made of the messages. `%d` in a path stands for the
destination's number. Pure, except for `bound`.
"""

from __future__ import annotations

import socket
import urllib.parse
from dataclasses import dataclass, replace

from bench_spark.config.broker import Broker, port_of
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.transports.sockets.listening import listen_at

NUMBER_MARK = "%d"


@dataclass(frozen=True)
class Place:
    """An address, by its URI."""

    uri: str
    is_encrypted: bool

    @classmethod
    def by_scheme(cls, uri: str) -> Place:
        return cls(uri, urllib.parse.urlsplit(uri).scheme.endswith("s"))

    @property
    def _parts(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.uri)

    @property
    def host(self) -> str:
        return self._parts.hostname or "localhost"

    @property
    def port(self) -> int:
        return port_of(self._parts)

    @property
    def host_and_port(self) -> str:
        """Without a login, as it is in the URI."""
        return self._parts.netloc.rpartition("@")[2]

    @property
    def path(self) -> str:
        return self._parts.path or "/"

    @property
    def target(self) -> str:
        """Path and query."""
        query = self._parts.query
        return f"{self.path}?{query}" if query else self.path

    @property
    def name(self) -> str:
        """The URI without a login."""
        return self._parts._replace(netloc=self.host_and_port).geturl()

    def numbered(self, index: int) -> Place:
        return replace(self, uri=self.uri.replace(NUMBER_MARK, str(index)))

    def at_port(self, port: int) -> Place:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return replace(self, uri=self._parts._replace(netloc=f"{host}:{port}").geturl())


@dataclass(frozen=True)
class Places:
    """Of one transport."""

    producers: Place
    consumers: Place
    is_one: bool
    """Whether producers send to our own consumers."""

    @classmethod
    def of(cls, broker: Broker, consumer_uri: str | None, scenario: Scenario) -> Places:
        is_one = consumer_uri is None and scenario.consumers > 0
        named = Place(broker.uri or "", broker.uses_tls)
        return cls(named, Place.by_scheme(consumer_uri) if consumer_uri else named, is_one)

    def sent_to(self, index: int, name: str | None) -> Place:
        """Where producers send what is for the destination of that number and name."""
        if self.is_one and name:
            return replace(self.producers, uri=name)
        return self.producers.numbered(index)


class Doors:
    """The listening socket of a transport, from when its port must be known until it is used."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket: socket.socket | None = None

    @property
    def is_any_port(self) -> bool:
        return self._place.port == 0

    def bound(self) -> Place:
        """The place, with the port that it turned out to have."""
        if self._socket is None:
            self._socket = listen_at(self._place.host, self._place.port)
        return self._place.at_port(self._socket.getsockname()[1])

    def hand_over(self) -> socket.socket:
        """To whoever listens from now on, and closes it."""
        self.bound()
        found, self._socket = self._socket, None
        assert found is not None
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def refuse_impossible(
    scenario: Scenario, places: Places, *, listens: bool, keys: tuple[str, str]
) -> None:
    """What no agent could do with these addresses; `keys` of producers' and consumers' address."""
    if not listens and places.producers.port == 0 and scenario.producers:
        raise ConfigurationError(f"{keys[0]}: port 0 is for consumers that listen")
    is_alone = scenario.agents == 1
    if listens and scenario.consumers and places.consumers.port == 0 and not is_alone:
        raise ConfigurationError(
            f"{keys[1]}: port 0 needs agents: 1: nobody could tell the system under test which "
            "port each of several agents got"
        )
