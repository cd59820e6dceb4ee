"""Carriers: what they put in is found again, and without it the record is as it was."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.envelope import empty_envelopes, encode_ids, id_texts
from bench_spark.data.carriers import (
    NO_ID,
    Carried,
    Carrier,
    NoPlace,
    make_carrier,
    refuse_carrier,
)
from bench_spark.data.scanning import Records
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import RECEIVED_DTYPE, Received

TEXT = st.binary(max_size=80)
CARRIERS: list[dict[str, Any]] = [
    {"carrier": "prefix"},
    {"carrier": "append"},
    {"carrier": "header"},
    {"carrier": "key"},
    {"carrier": "prefix", "find": "^(.{32})"},
    {"carrier": "regex", "insert": "^()", "find": "^([0-9a-f]{32})"},
    {"carrier": "regex", "insert": r"\Z", "find": r"([0-9a-f]{32})\Z"},
]


def carrier_of(**identity: Any) -> Carrier:
    dataset = {"path": "records.txt"}
    carrier = make_carrier(Scenario.model_validate({"dataset": dataset, "identity": identity}))
    assert carrier is not None
    return carrier


def ids(count: int) -> list[bytes]:
    envelopes = empty_envelopes(count)
    envelopes["run_tag"], envelopes["producer"] = 0xC0FFEE, 3
    envelopes["sequence"] = np.arange(count)
    return id_texts(encode_ids(envelopes))


def arrived(carried: Carried) -> Received:
    rows = np.zeros(len(carried.bodies), RECEIVED_DTYPE)
    return Received(rows, bodies=carried.bodies, keys=carried.keys, headers=carried.headers)


@pytest.mark.parametrize("identity", CARRIERS, ids=lambda one: " ".join(one.values()))
@given(records=st.lists(TEXT, min_size=1, max_size=8))
def test_without_its_id_a_body_is_the_record_that_was_read(
    identity: dict[str, Any], records: list[bytes]
) -> None:
    if "find" in identity:  # a dot and a `$` mean something else where lines end
        records = [record.replace(b"\n", b" ") for record in records]
    carrier = carrier_of(**identity)
    given_ids = ids(len(records))
    carried = carrier.put(given_ids, Records(records))
    assert carrier.find(arrived(carried)) == given_ids
    assert list(carrier.contents(arrived(carried))) == records
    for body, record in zip(carried.bodies, records, strict=True):
        assert len(body) == len(record) + carrier.added_bytes


@given(
    before=st.text('abc" :,{}', max_size=20),
    behind=st.text('abc" :,{}', max_size=20),
)
def test_a_pattern_says_where_in_the_record_the_id_goes(before: str, behind: str) -> None:
    record = f'{before}"id": "42{behind}'.encode()
    grouped = carrier_of(carrier="regex", insert='"id": "()')
    behind_match = carrier_of(carrier="regex", insert='"id": "')
    [one] = ids(1)
    wanted = f'{before}"id": "'.encode() + one + f"42{behind}".encode()
    # The default pattern takes no digits at the edge of an ID for granted; here 42 adjoins it.
    for carrier in (grouped, behind_match):
        assert carrier.put([one], Records([record])).bodies == [wanted]
    finding = carrier_of(carrier="regex", insert='"id": "()', find='"id": "([0-9a-f]{32})42')
    assert finding.find(arrived(Carried([wanted]))) == [one]
    assert finding.contents(arrived(Carried([wanted]))) == [record]


def test_a_record_without_a_place_for_the_id_is_named() -> None:
    carrier = carrier_of(carrier="regex", insert="id=()")
    with pytest.raises(NoPlace, match="does not match") as raised:
        carrier.put(ids(2), Records([b"id=1", b"no=1"]))
    assert raised.value.place == 1


@pytest.mark.parametrize(
    ("identity", "record", "told"),
    [
        ({"carrier": "regex", "insert": "id=()"}, b"no=1", "insert does not match"),
        ({"carrier": "regex", "insert": "id=()"}, b"id=x id=y", "insert matches 2 times"),
        ({"carrier": "regex", "insert": "(x)?y"}, b"y", "insert does not match"),
        ({"carrier": "regex", "insert": "id=()"}, b"id=4", "find does not match"),
        ({"carrier": "regex", "insert": "id="}, b"id=;" + b"f" * 32, "find matches 2 times"),
        ({"carrier": "regex", "insert": "id="}, b"f" * 32 + b";id=", "something else"),
        ({"carrier": "append", "find": "<([0-9a-f]{32})>"}, b"a", None),
        ({"carrier": "regex", "insert": "(x+x+)+y"}, b"x" * 5000, "insert: (x+x+)+y takes longer"),
        ({"carrier": "regex", "insert": "id="}, b"id=;", None),
        ({"carrier": "prefix"}, b"f" * 64, None),
        ({"carrier": "header"}, b"", None),
    ],
)
def test_records_in_which_an_id_is_ambiguous_are_told_why(
    identity: dict[str, Any], record: bytes, told: str | None
) -> None:
    problem = carrier_of(**identity).ambiguity(record)
    assert (problem is None) == (told is None)
    if told is not None:
        assert told in (problem or "")


def test_an_id_is_found_by_a_pattern_in_a_body_that_was_wrapped() -> None:
    [one] = ids(1)
    carrier = carrier_of(carrier="prefix", find="([0-9A-Fa-f]{32})")
    bodies = [b'{"wrapped": "' + one.upper() + b'RECORD"}', b"nothing"]
    assert carrier.find(arrived(Carried(bodies))) == [one.upper(), NO_ID]


def test_a_header_is_found_whatever_the_case_of_its_name_and_the_type_of_its_value() -> None:
    [one] = ids(1)
    carrier = carrier_of(carrier="header", name="X-Id")
    received = arrived(Carried([b""] * 4))
    received.headers = [{"x-id": one}, {"X-Id": one.decode()}, {}, {"X-Id": 5}]  # type: ignore[dict-item]
    assert carrier.find(received) == [one, one, NO_ID, NO_ID]


def test_headers_of_the_data_set_go_along_with_the_id() -> None:
    carried = carrier_of(carrier="header").put(ids(1), Records([b"a"], headers=[{"own": b"1"}]))
    assert carried.headers == [{"own": b"1", "bench-spark-id": ids(1)[0]}]


@pytest.mark.parametrize(
    ("kind", "keys", "told"),
    [
        ("mqtt", {"identity": {"carrier": "header"}}, "identity.carrier: header: .*mqtt 3.1.1 .*5"),
        (
            "mqtt",
            {"identity": {"carrier": "key"}},
            "identity.carrier: key: .*mqtt 3.1.1 have no key",
        ),
        ("amqp", {"identity": {"carrier": "key"}}, "identity.carrier: key: .*amqp have no key"),
        ("amqp", {"identity": {"carrier": "prefx"}}, "prefx is not installed.*mean prefix"),
        (
            "amqp",
            {"dataset": {"table": "t", "columns": {"key": "k"}}},
            "dataset.columns.key: k: .*no key",
        ),
        (
            "mqtt",
            {"dataset": {"table": "t", "columns": {"headers": "h"}}},
            "dataset.columns.headers: h: .*no headers",
        ),
        ("amqp", {"identity": {"carrier": "acknowledgement"}}, "kind amqp gives no IDs"),
        ("http", {"identity": {"carrier": "acknowledgement"}}, "http.answer is none"),
        ("http", {"identity": {"carrier": "acknowledgement"}, "http": {"answer": "body"}}, None),
        ("http", {"identity": {"carrier": "header"}}, None),
        ("kafka", {"identity": {"carrier": "key"}}, None),
        ("kafka", {"identity": {"carrier": "header"}}, None),
        ("mqtt", {"identity": {"carrier": "header"}, "mqtt": {"version": "5"}}, None),
        ("mqtt", {"identity": {"carrier": "append"}}, None),
    ],
)
def test_a_carrier_that_the_protocol_lacks_is_refused(
    kind: str, keys: dict[str, Any], told: str | None
) -> None:
    uris = {
        "amqp": {"uri": "amqp://h/"},
        "mqtt": {"uri": "mqtt://h"},
        "http": {"uri": "http://h/"},
    }
    kafka = {"bootstrap_servers": "h:1"}
    broker = Broker.model_validate({"kind": kind, **uris.get(kind, kafka)})
    scenario = Scenario.model_validate(keys)
    if told is None:
        refuse_carrier(scenario, broker)
        return
    with pytest.raises(ConfigurationError, match=re.compile(told)):
        refuse_carrier(scenario, broker)
