"""The HTTP transport: puts addresses, requests and answers together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bench_spark.core.clock import NowNs
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import (
    HEAD_ONLY,
    BrokerFacts,
    Lane,
    Part,
    TransportContext,
)
from bench_spark.transports.http.probe import ask
from bench_spark.transports.http.producers import HttpProducers, HttpWire
from bench_spark.transports.http.requests_taken import Peer, Reception
from bench_spark.transports.sockets import places
from bench_spark.transports.sockets.addressed import AddressedTransport
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.listening import ListeningConsumers, server_tls
from bench_spark.transports.sockets.places import NUMBER_MARK, Places
from bench_spark.transports.sockets.plain import PlainProtocol

NAME = "HTTP"


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    own = Places.of(broker, scenario.http.consumer_uri, scenario)
    uri_key = f"broker {broker.name}: uri"
    consumer_key = "http.consumer_uri" if scenario.http.consumer_uri else uri_key
    places.refuse_impossible(scenario, own, listens=True, keys=(uri_key, consumer_key))
    if scenario.consumers and own.consumers.is_encrypted:
        server_tls(broker)
    if scenario.destinations == 1:
        return
    for key, place, is_used in (
        (uri_key, own.producers, scenario.producers),
        (consumer_key, own.consumers, scenario.consumers),
    ):
        if is_used and NUMBER_MARK not in place.path:
            raise ConfigurationError(
                f"{key}: one path for {scenario.destinations} destinations; put %d where the "
                "destination's number goes"
            )
    if scenario.consumers and scenario.agents != 1:
        raise ConfigurationError(
            f"destinations: {scenario.destinations} needs agents: 1 with kind http: agents share "
            "the consumers' port, and none may get what is for another"
        )


class HttpTransport(AddressedTransport):
    confirms = True

    def __init__(self, context: TransportContext) -> None:
        self._http = context.scenario.http
        super().__init__(context, self._http.consumer_uri, listens=True)

    def probe(self) -> BrokerFacts:
        product = "HTTP"
        if self._scenario.producers and not self._places.is_one:
            place = self._places.producers.numbered(0)
            head = ask(self._access(place), place, self._context.credentials)
            told = head.fields.get("server", b"").decode("latin-1").split()
            product = told[0] if told else product
        name, _, version = product.partition("/")
        return BrokerFacts(
            product=name,
            version=version or "unknown",
            platform="HTTP/1.1",
            capabilities=frozenset({"confirms"}),
            client_library="bench-spark's own HTTP",
        )

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> HttpProducers:
        first = lanes[0].destinations[0]
        access = self._access(self._places.sent_to(first.index, first.name))
        return HttpProducers(
            PlainProtocol(NAME, access, HttpWire),
            self._http,
            self._context.credentials,
            self._places.sent_to,
            lanes,
            now_ns,
            self._rule,
        )

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> ListeningConsumers:
        arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
        own = self._places.consumers
        reception = Reception(
            lanes, lambda index: own.numbered(index).path, self._http.status, arrivals
        )
        consumers = ListeningConsumers(
            self._doors.hand_over(),
            server_tls(self._context.broker) if own.is_encrypted else None,
            arrivals,
            now_ns,
            functools.partial(Peer, reception),
            reception.lanes_of,
        )
        self._context.on_opened(len(lanes))
        return consumers
