"""What kinds http and tcp can never do is refused from the files alone; and where they are."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.config.broker import Broker, Tls
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import Part
from bench_spark.transports.registry import fitted, kind_of
from bench_spark.transports.sockets.listening import Place, Places


def refused(kind: str, uri: str, tls: Tls | None = None, **scenario: Any) -> str:
    broker = Broker(name="b", kind=kind, uri=uri, tls=tls)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as error:
        fitted(Scenario.model_validate(scenario), broker)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "uri", "scenario", "named"),
    [
        ("http", "http://h:0/", {"agents": 2, "consumers": 2, "producers": 2}, "uri: port 0"),
        (
            "http",
            "http://h:8080/",
            {"agents": 2, "http": {"consumer_uri": "http://h:0/"}},
            "http.consumer_uri: port 0",
        ),
        (
            "http",
            "http://h/one",
            {"destinations": 2, "producers": 2, "consumers": 2},
            "broker b: uri: one path for 2 destinations",
        ),
        (
            "http",
            "http://h/%d",
            {
                "destinations": 2,
                "producers": 2,
                "consumers": 2,
                "http": {"consumer_uri": "http://h:1/one"},
            },
            "http.consumer_uri: one path",
        ),
        (
            "http",
            "http://h/%d",
            {"destinations": 2, "producers": 2, "consumers": 2, "agents": 2},
            "destinations: 2 needs agents: 1",
        ),
        ("http", "https://h/", {}, "tls.certificate_file: missing"),
        ("http", "http://h/", {"delivery": "exactly_once"}, "delivery: exactly_once"),
        ("tcp", "tcp://h:1", {"delivery": "at_least_once"}, "delivery: at_least_once"),
        ("tcp", "tcps://h:1", {}, "tls.certificate_file: missing"),
        (
            "tcp",
            "tcp://h:1",
            {"destinations": 2, "producers": 2, "consumers": 2},
            "destinations: 2 is too many",
        ),
        ("tcp", "tcp://h:1", {"tcp": {"consumer": "connect"}}, "needs tcp.consumer_uri"),
        ("tcp", "tcp://h:1", {"tcp": {"framing": "line"}}, "tcp.framing: line needs"),
        (
            "tcp",
            "tcp://h:1",
            {"tcp": {"length_bytes": 1}, "message": {"bytes": 300}},
            "tcp.length_bytes: 1 is too few for message.bytes: 300",
        ),
        (
            "tcp",
            "tcp://h:0",
            {"tcp": {"consumer": "connect", "consumer_uri": "tcp://h:2"}},
            "port 0 is for consumers that listen",
        ),
    ],
)
def test_what_an_address_cannot_be_is_refused_by_its_key(
    kind: str, uri: str, scenario: dict[str, Any], named: str
) -> None:
    assert named in refused(kind, uri, **scenario)


@pytest.mark.parametrize(
    ("kind", "uri", "scenario"),
    [
        ("http", "https://h/", {"consumers": 0}),
        ("http", "http://h/", {"delivery": "at_least_once"}),
        ("http", "http://h/%d", {"destinations": 2, "producers": 2, "consumers": 2}),
        ("tcp", "tcp://h:1", {"delivery": "at_most_once"}),
        ("tcp", "tcp://h:1", {"tcp": {"consumer": "connect", "consumer_uri": "tcp://h:2"}}),
        ("tcp", "tcp://h:1", {"tcp": {"consumer": "connect"}, "producers": 0}),
    ],
)
def test_what_is_possible_is_not_refused(kind: str, uri: str, scenario: dict[str, Any]) -> None:
    broker = Broker(kind=kind, uri=uri)  # type: ignore[arg-type]
    assert fitted(Scenario.model_validate(scenario), broker).producers >= 0


def test_producers_send_to_the_file_and_consumers_listen_where_the_scenario_says() -> None:
    broker = Broker(kind="http", uri="http://user:secret@h/in/%d")
    own = Places.of(broker, "https://[::1]:9/out/%d", Scenario())
    assert own.sent_to(3, "anything").name == "http://h/in/3"
    assert (own.consumers.host, own.consumers.port) == ("::1", 9)
    assert own.consumers.numbered(1).path == "/out/1"
    assert own.consumers.is_encrypted
    assert not own.producers.is_encrypted
    assert own.consumers.at_port(77).name == "https://[::1]:77/out/%d"


def test_without_an_address_of_their_own_producers_send_to_our_consumers() -> None:
    own = Places.of(Broker(kind="tcp", uri="tcp://127.0.0.1:0"), None, Scenario())
    assert own.is_one
    assert own.sent_to(0, "tcp://127.0.0.1:5555").port == 5555
    only_sending = Places.of(Broker(kind="tcp", uri="tcp://h:7"), None, Scenario(consumers=0))
    assert not only_sending.is_one
    assert only_sending.sent_to(0, None) == Place.by_scheme("tcp://h:7")


@pytest.mark.parametrize(
    ("broker", "section", "parts"),
    [
        ({"kind": "amqp", "uri": "amqp://h"}, {}, {Part.BODY, Part.HEADERS}),
        ({"kind": "kafka", "bootstrap_servers": "h"}, {}, set(Part)),
        ({"kind": "mqtt", "uri": "mqtt://h"}, {}, {Part.BODY}),
        ({"kind": "mqtt", "uri": "mqtt://h"}, {"mqtt": {"version": 5}}, {Part.BODY, Part.HEADERS}),
        ({"kind": "http", "uri": "http://h"}, {}, {Part.BODY, Part.HEADERS}),
        ({"kind": "tcp", "uri": "tcp://h:1"}, {}, {Part.BODY}),
        ({"kind": "loopback"}, {}, set(Part)),
    ],
)
def test_each_protocol_has_the_parts_that_its_messages_have(
    broker: dict[str, Any], section: dict[str, Any], parts: set[Part]
) -> None:
    scenario = Scenario.model_validate(section)
    assert kind_of(Broker.model_validate(broker)).capabilities(scenario).parts == parts
