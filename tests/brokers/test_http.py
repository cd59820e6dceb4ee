"""What is HTTP's own: answers, connections that servers end, logins, TLS, requests of others."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import run_load
from contract import (
    Settled,
    batch,
    collect,
    column,
    consuming,
    declared,
    envelopes,
    eventually,
    joined,
    open_transport,
    producing,
    receive_into,
    send_all,
)
from proxy import Proxy
from relay import Relay, relaying
from tls_files import self_signed

from bench_spark.config.broker import Broker, Tls
from bench_spark.config.models import Scenario
from bench_spark.errors import BrokerUnreachable, LoginRefused
from bench_spark.plan import make_plan
from bench_spark.transports.base import Producers, SignalKind
from bench_spark.transports.batches import OutcomeKind, Outcomes, Part, Received
from bench_spark.transports.sockets.lanes import SocketProducers


def open_at(port: int, **scenario: Any) -> Any:
    """A transport that only sends, to a server at that port."""
    broker = Broker(kind="http", uri=f"http://127.0.0.1:{port}/in")
    return open_transport(broker, consumers=0, **scenario)


def posted(
    relay: Relay, count: int, lanes: int = 1, reconnect_seconds: float = 30, **http: Any
) -> tuple[Settled, SocketProducers]:
    """Send so many to a relay that is running, and wait for all answers."""
    transport = open_at(relay.port, producers=lanes, reconnect_seconds=reconnect_seconds, http=http)
    with declared(transport) as made, producing(transport, *[made] * lanes) as producers:
        numbers = [number % lanes for number in range(count)]
        settled = send_all(producers, batch(envelopes(count), numbers), expected_outcomes=count)
        assert producers.signals() == []
    assert isinstance(producers, SocketProducers)
    return settled, producers


def test_2xx_confirms_and_every_other_status_refuses_and_is_counted() -> None:
    statuses = [200, 202, 404, 503, 204, 503]
    with relaying(Relay(None, answer=lambda number: (statuses[number], {}, b""))) as relay:
        settled, producers = posted(relay, len(statuses))
    assert settled.kinds == [
        OutcomeKind.CONFIRMED if status < 300 else OutcomeKind.REFUSED for status in statuses
    ]
    assert settled.envelopes["sequence"].tolist() == list(range(len(statuses)))
    counted = {"200": 1, "202": 1, "204": 1, "404": 1, "503": 2}
    assert producers.answers_by_status == counted


@pytest.mark.parametrize(
    "section", [{"answer": "body"}, {"answer": "header", "answer_header": "x-given-id"}]
)
def test_the_id_that_a_server_gives_a_message_comes_with_its_outcome(
    section: dict[str, Any],
) -> None:
    def answer(number: int) -> tuple[int, dict[str, str], bytes]:
        return 201, {"X-Given-Id": f"id-{number}"}, b"id-%d" % number

    with relaying(Relay(None, answer=answer)) as relay:
        settled, _ = posted(relay, 20, **section)
    answers = [one for part in settled.parts for one in part.answers or ()]
    assert answers == [b"id-%d" % number for number in range(20)]


def test_requests_wait_for_their_answers_unless_pipelining_is_asked_for() -> None:
    """A server that answers nothing shows how many requests come."""
    with relaying(Relay(None, answer=never)) as relay:
        for in_flight in (1, 7):
            transport = open_at(relay.port, http={"in_flight": in_flight})
            with declared(transport) as made, producing(transport, made) as producers:
                assert producers.send(batch(envelopes(50))) == in_flight
                assert producers.in_flight() == in_flight
                producers._open[0].connection.abort("the test said so")  # type: ignore[attr-defined]


def never(number: int) -> tuple[int, dict[str, str], bytes]:
    time.sleep(1)
    raise ConnectionError("not answered")


def test_requests_have_the_path_method_and_headers_that_were_asked_for() -> None:
    with relaying(Relay(None)) as relay:
        posted(relay, 1, method="PUT", content_type="text/csv", headers={"X-Kind": "order"})
    [seen] = relay.seen
    assert (seen["method"], seen["path"]) == ("PUT", "/in")
    assert seen["headers"]["Content-Type"] == "text/csv"
    assert seen["headers"]["X-Kind"] == "order"


def test_a_connection_that_the_server_ends_between_requests_is_no_loss() -> None:
    with relaying(Relay(None, requests_per_connection=10)) as relay:
        settled, _ = posted(relay, 100, lanes=2, reconnect_seconds=0)
        assert set(settled.kinds) == {OutcomeKind.CONFIRMED}
        assert relay.connections >= 10


def outcomes_until(producers: Producers, is_enough: Callable[[list[Outcomes]], bool]) -> Any:
    parts: list[Outcomes] = []

    def collected() -> bool:
        parts.append(producers.outcomes())
        return is_enough(parts)

    assert eventually(collected)
    return parts


def test_what_was_unanswered_when_a_connection_was_lost_is_unknown_and_the_lane_comes_back() -> (
    None
):
    with relaying(Relay(None)) as relay:
        proxy = Proxy("127.0.0.1", relay.port)
        transport = open_at(proxy.port)
        with declared(transport) as made, producing(transport, made) as producers:
            send_all(producers, batch(envelopes(3)), expected_outcomes=3)
            proxy.is_mute = True
            assert producers.send(batch(envelopes(1, first=3))) == 1
            proxy.cut()
            [unknown] = [
                part
                for part in outcomes_until(producers, lambda found: any(map(len, found)))
                if len(part)
            ]
            assert unknown.kind.tolist() == [OutcomeKind.UNKNOWN]
            assert unknown.envelope["sequence"].tolist() == [3]
            proxy.is_mute = False
            signals = list(producers.signals())

            def is_back() -> bool:
                producers.outcomes()
                signals.extend(producers.signals())
                return any(one.kind is SignalKind.REOPENED for one in signals)

            assert eventually(is_back)
            assert [one.kind for one in signals] == [SignalKind.LOST, SignalKind.REOPENED]
            send_all(producers, batch(envelopes(2, first=4)), expected_outcomes=2)
        proxy.close()


def test_a_server_that_refuses_the_login_is_named_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENCH_TOKEN", "s3cret")
    with relaying(Relay(None, head_status=401)) as relay:
        uri = f"http://127.0.0.1:{relay.port}/in"
        broker = Broker(kind="http", uri=uri, password_env="BENCH_TOKEN")
        with pytest.raises(LoginRefused, match=f"127.0.0.1:{relay.port}.*401") as refused:
            open_transport(broker, consumers=0).probe()
    assert "s3cret" not in str(refused.value)
    [asked] = relay.seen
    assert asked["headers"]["Authorization"] == "Bearer s3cret"


# -- requests of others ----------------------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[tuple[Any, int]]:
    """Consumers that are asked again and again, and their port."""
    broker = Broker(kind="http", uri="http://127.0.0.1:0/in")
    transport = open_transport(broker, producers=0, http={"status": 202})
    with declared(transport) as made:
        want = frozenset({Part.BODY, Part.HEADERS})
        with consuming(transport, made, want=want) as consumers:
            yield consumers, int((made[0].name or "").rpartition(":")[2].partition("/")[0])


def asking(port: int, ask: Callable[[http.client.HTTPConnection], None], consumers: Any) -> Any:
    """Let a client of Python's ask, while the consumers are served; what they received."""
    failed: list[BaseException] = []

    def go() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            ask(connection)
        except BaseException as error:  # told below, in the test's own thread
            failed.append(error)
        finally:
            connection.close()

    client = threading.Thread(target=go)
    client.start()
    parts: list[Received] = []
    while client.is_alive():
        receive_into(parts, consumers, 0.02, acknowledge=False)
    client.join()
    receive_into(parts, consumers, 0, acknowledge=False)
    if failed:
        raise failed[0]
    return parts


def said(connection: http.client.HTTPConnection) -> int:
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_messages_of_a_foreign_client_are_taken_in_all_forms_of_a_body(listening: Any) -> None:
    consumers, port = listening
    large = bytes(range(256)) * 2000

    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/in", b"plain", {"X-Id": "1"})
        assert said(connection) == 202
        connection.request("PUT", "/in?query=1", iter([b"in ", b"chunks"]), encode_chunked=True)
        assert said(connection) == 202
        connection.request("POST", "/in", large)
        assert said(connection) == 202
        connection.request("POST", "/in", b"")
        assert said(connection) == 202

    parts = asking(port, ask, consumers)
    assert column(parts, "bodies") == [b"plain", b"in chunks", large, b""]
    assert joined(parts, "size").tolist() == [5, 9, len(large), 0]
    assert column(parts, "headers")[0]["x-id"] == b"1"


def test_what_is_no_message_is_answered_and_not_received(listening: Any) -> None:
    consumers, port = listening

    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/elsewhere", b"x")
        assert said(connection) == 404
        connection.request("GET", "/in")
        assert said(connection) == 405
        connection.request("POST", "/in", b"still open", {"Connection": "close"})
        assert said(connection) == 202
        assert connection.sock is None

    assert column(asking(port, ask, consumers), "bodies") == [b"still open"]


def test_a_client_that_waits_for_leave_gets_it(listening: Any) -> None:
    consumers, port = listening

    def ask(connection: http.client.HTTPConnection) -> None:
        connection.connect()
        fields = b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        connection.sock.sendall(b"POST /in HTTP/1.1\r\nHost: x\r\n" + fields)
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sock.sendall(b"body")
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 202 ")
        connection.sock.sendall(b"nonsense\r\n\r\n")
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 400 ")

    assert column(asking(port, ask, consumers), "bodies") == [b"body"]


# -- both ends -------------------------------------------------------------------------------------


def test_messages_travel_over_tls(tmp_path: Path) -> None:
    made_by, key = self_signed(tmp_path)
    tls = Tls(
        ca_file=str(made_by),
        certificate_file=str(made_by),
        key_file=str(key),
        server_name="localhost",
        insecure=True,
    )
    transport = open_transport(Broker(kind="http", uri="https://127.0.0.1:0/in", tls=tls))
    with declared(transport) as made:
        want = frozenset({Part.BODY})
        with consuming(transport, made, want=want) as consumers:
            opening = transport_in_thread(transport, made, consumers)
            parts = collect(consumers, 300)
            opening.join()
    assert sum(map(len, parts)) == 300
    assert set(joined(parts, "size").tolist()) == {40_000}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made_by, key)
    with relaying(Relay(None), context) as relay:
        trusting = Tls(ca_file=str(made_by), server_name="localhost")
        uri = f"https://127.0.0.1:{relay.port}/in"
        with pytest.raises(BrokerUnreachable, match="TLS: certificate"):
            open_transport(Broker(kind="http", uri=uri), consumers=0).probe()
        facts = open_transport(Broker(kind="http", uri=uri, tls=trusting), consumers=0).probe()
        assert (facts.product, facts.version) == ("Relay", "1.5")


def transport_in_thread(transport: Any, made: Any, consumers: Any) -> threading.Thread:
    """A handshake needs both sides at once."""

    def go() -> None:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(300), body_bytes=40_000), expected_outcomes=300)

    thread = threading.Thread(target=go)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", ["http", "tcp"])
def test_a_load_over_connections_of_our_own_is_accounted_for(kind: str) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 3,
            "consumers": 2,
            "load": {"rate_per_second": 300},
            "phases": {"warmup_seconds": 0.2, "measure_seconds": 1, "drain_seconds": 30},
        }
    )
    plan = make_plan(scenario, f"own-{kind}-{time.time_ns()}")
    load = run_load(plan, Broker(kind=kind, uri=f"{kind}://127.0.0.1:0"))
    accounts = load.accounts()
    assert accounts.sent == 300
    assert (accounts.received_once, accounts.lost, accounts.failed) == (300, 0, 0)
    confirmed = load.total("producer", "confirmed")
    assert confirmed == (300 if kind == "http" else 0)
    [state] = load.control.agents
    sent_in_all = load.total_of_all_phases("producer", "sent")
    answered = {"answers_by_status": {"200": sent_in_all}} if kind == "http" else {}
    assert {key: state.reports["closed"][key] for key in answered} == answered
