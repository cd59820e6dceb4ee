"""The HTTP transport: addresses, producers (`producers.py`), and consumers: peers that send us
requests, each received and answered at once (listening itself is in `sockets/listening.py`)."""

from __future__ import annotations

import functools
import http
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.errors import BrokerUnreachable, ConfigurationError, LoginRefused
from bench_spark.transports.base import BrokerFacts, Lane, Producers, TransportContext
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.http import KIND
from bench_spark.transports.http.messages import (
    BadMessage,
    HttpParser,
    RequestHead,
    ResponseHead,
    login_fields,
    read_request,
    read_response,
)
from bench_spark.transports.http.producers import HttpConnection, HttpSender
from bench_spark.transports.sockets.buffers import NO_HEADERS, Arrivals, ReadBuffer
from bench_spark.transports.sockets.connection import SocketConnection
from bench_spark.transports.sockets.lanes import SocketProducers
from bench_spark.transports.sockets.listening import (
    NUMBER_MARK,
    AddressedTransport,
    ListeningConsumers,
    Place,
    Places,
    refuse_impossible_addresses,
    server_tls,
)
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import PlainProtocol, SocketAccess, dialled

NAME = "HTTP"
_LONGEST_HEAD_BYTES = 64 * 1024
_LOGIN_REFUSALS = frozenset({401, 403, 407})
BRINGING = frozenset({"POST", "PUT", "PATCH"})
"""Methods of requests that bring a message."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Serving = tuple[int, int]
"""A lane, and the route by which it gets messages of a destination."""


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    own = Places.of(broker, scenario.http.consumer_uri, scenario)
    uri_key = f"broker {broker.name}: uri"
    consumer_key = "http.consumer_uri" if scenario.http.consumer_uri else uri_key
    refuse_impossible_addresses(scenario, own, listens=True, keys=(uri_key, consumer_key))
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


# -- probe -----------------------------------------------------------------------------------------


def ask(access: SocketAccess, place: Place, credentials: Credentials) -> ResponseHead:
    """What the server answers to a HEAD request, whatever it is: many know POST only."""
    deadline = time.monotonic() + access.timeout_seconds
    fields = {"Host": place.host_and_port, **login_fields(credentials), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"HEAD {place.target} HTTP/1.1\r\n{lines}\r\n".encode()
    answer = bytearray()
    [connected] = dialled(access, 1, deadline)
    try:
        connected.settimeout(max(0.01, deadline - time.monotonic()))
        connected.sendall(request)
        while b"\r\n\r\n" not in answer and len(answer) < _LONGEST_HEAD_BYTES:
            connected.settimeout(max(0.01, deadline - time.monotonic()))
            piece = connected.recv(4096)
            if not piece:
                break
            answer += piece
        head = read_response(bytes(answer.partition(b"\r\n\r\n")[0]))
    except BadMessage as error:
        raise BrokerUnreachable(f"{access.address}: answers, but not in HTTP ({error})") from error
    except TimeoutError as error:
        raise BrokerUnreachable(
            f"{access.address}: accepted the connection, but gave no answer in HTTP within "
            f"{access.timeout_seconds:g} s"
        ) from error
    except OSError as error:
        raise BrokerUnreachable(f"{access.address}: {error.strerror or error}") from error
    finally:
        connected.close()
    if head.status in _LOGIN_REFUSALS:
        user = f"user {credentials.username!r}" if credentials.username else "this token"
        who = user if credentials.password or credentials.username else "nobody in particular"
        raise LoginRefused(f"{access.address}: {who}: the server answers {head.status}")
    return head


# -- requests of others ----------------------------------------------------------------------------


class Reception:
    """What all peers of one agent's consumers share: who gets what, and how it is answered."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        path_of: Callable[[int], str],
        status: int,
        arrivals: Arrivals,
    ) -> None:
        """`path_of` a destination, by its number."""
        self.arrivals = arrivals
        self.lanes = len(lanes)
        self._serving: dict[str, list[Serving]] = {}
        for number, lane in enumerate(lanes):
            for route, destination in enumerate(lane.destinations):
                self._serving.setdefault(path_of(destination.index), []).append((number, route))
        self.taken = _response(status)
        self.unknown_path = _response(404, "no consumer has this path")
        self.wrong_method = _response(405, "messages come by POST", {"Allow": "POST, PUT, PATCH"})
        self.not_understood = _response(400, "no HTTP/1.1", {"Connection": "close"})

    def serving(self, peer: int) -> Mapping[str, Serving]:
        """By path: who gets the messages of the peer of that number."""
        return {path: all_of[peer % len(all_of)] for path, all_of in self._serving.items()}

    def lanes_of(self, peer: int) -> set[int]:
        return {lane for lane, _ in self.serving(peer).values()}


def _response(status: int, words: str = "", fields: Mapping[str, str] | None = None) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Other"
    body = "" if status == http.HTTPStatus.NO_CONTENT else words
    lines = dict(fields or {})
    if status != http.HTTPStatus.NO_CONTENT:
        lines["Content-Length"] = str(len(body))
    told = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {phrase}\r\n{told}\r\n{body}".encode()


class RequestConnection(SocketConnection):
    """A connection on which requests come."""

    def __init__(
        self,
        reception: Reception,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        number: int,
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer)
        self._reception = reception
        self._arrivals = reception.arrivals
        self._serving = reception.serving(number)
        self._answers: list[bytes] = []
        self._is_last = False
        kept_bytes = None if self._arrivals.wants_bodies else ENVELOPE_BYTES
        self._parser = HttpParser(
            read_request,
            self._on_request,
            kept_bytes,
            self._on_head,
            self._arrivals.most_bytes,
        )

    def _parse_first(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        try:
            done = self._parser.parse(buffer, end, at_ns)
        except BadMessage:
            self._answers.append(self._reception.not_understood)
            self._answer()
            raise
        self._answer()
        if self._is_last:
            self._loop.call_soon(self.close)
        return done

    def _answer(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self.send(b"".join(answers))

    def _on_head(self, head: RequestHead) -> None:
        if head.expects_continue and head.body_bytes:
            self._answers.append(_CONTINUE)
            # The body is not sent before this is read.
            self._answer()

    def _on_request(self, head: RequestHead, size: int, body: bytes, at_ns: int) -> None:
        if self._is_last:
            return  # it said that there would be no more
        serving = self._serving.get(head.path)
        if serving is None:
            answer = self._reception.unknown_path
        elif head.method not in BRINGING:
            answer = self._reception.wrong_method
        else:
            lane, route = serving
            headers = head.fields if self._arrivals.wants_headers else NO_HEADERS
            self._arrivals.add_row((at_ns, lane, route, 0, 0, size, body, headers))
            answer = self._reception.taken
        if not head.keeps_alive:
            self._is_last = True
            answer = answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        self._answers.append(answer)


class HttpTransport(AddressedTransport):
    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
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

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        first = lanes[0].destinations[0]
        access = self._access(self._places.sent_to(first.index, first.name))
        sender = HttpSender(self._http, self._context.credentials, self._places.sent_to)
        protocol = PlainProtocol(NAME, access, HttpConnection)
        return SocketProducers(sender, protocol, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> ListeningConsumers:
        arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
        own = self._places.consumers
        reception = Reception(
            lanes, lambda index: own.numbered(index).path, self._http.status, arrivals
        )
        make_peer = functools.partial(RequestConnection, reception)
        return self._listening_consumers(
            len(lanes), arrivals, now_ns, make_peer, reception.lanes_of
        )
