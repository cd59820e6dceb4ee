"""MQTT's control packets, byte by byte as the standards show them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.errors import ConfigurationError
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.packets import BadPacket, Login


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_lengths_are_those_of_the_standard(length: int, expected: str) -> None:
    written = packets.length_bytes(length)
    assert written.hex() == expected
    assert packets.read_length(written, 0, len(written)) == (length, len(written))


@given(st.integers(0, 268_435_455))
def test_a_length_is_read_back_and_is_nothing_before_its_last_byte(length: int) -> None:
    written = b"\x30" + packets.length_bytes(length) + b"rest"
    end = len(written) - 4
    assert packets.read_length(written, 1, len(written)) == (length, end)
    assert packets.read_length(written, 1, end - 1) is None


def test_a_length_of_five_bytes_is_no_length() -> None:
    with pytest.raises(BadPacket, match="four bytes"):
        packets.read_length(b"\x80\x80\x80\x80\x01", 0, 5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "100d 0004 4d515454 04 02 001e 0001 63"),
        ({"is_clean": False}, "100d 0004 4d515454 04 00 001e 0001 63"),
        (
            {"username": "u", "password": b"p"},
            "1013 0004 4d515454 04 c2 001e 0001 63 0001 75 0001 70",
        ),
        ({"username": "u"}, "1010 0004 4d515454 04 82 001e 0001 63 0001 75"),
        ({"version": "5"}, "100e 0004 4d515454 05 02 001e 00 0001 63"),
        (
            {"version": "5", "session_expiry_seconds": 7, "receive_maximum": 9},
            "1016 0004 4d515454 05 02 001e 08 11 00000007 21 0009 0001 63",
        ),
    ],
)
def test_a_login_says_what_it_should(changes: dict[str, Any], expected: str) -> None:
    plain = {
        "version": "3.1.1",
        "client_id": "c",
        "username": None,
        "password": None,
        "keep_alive_seconds": 30,
    }
    assert Login(**plain | changes).packet.hex() == expected.replace(" ", "")


def test_the_password_is_in_no_representation() -> None:
    login = Login("5", "c", "anna", b"opensesame", 30)
    assert "opensesame" not in f"{login!r} {login}"


@pytest.mark.parametrize(
    ("arguments", "expected", "identifier_at"),
    [
        (("3.1.1", "a/b", 0, False, 2), "30 07 0003 612f62", 7),
        (("3.1.1", "a/b", 1, True, 2), "33 09 0003 612f62 0000", 7),
        (("5", "a/b", 2, False, 2), "34 0a 0003 612f62 0000 00", 7),
        (("5", "a/b", 0, False, 200), "30 ce01 0003 612f62 00", 8),
    ],
)
def test_a_message_begins_as_it_should(
    arguments: tuple[Any, ...], expected: str, identifier_at: int
) -> None:
    start, at = packets.publish_start(*arguments)
    assert start.hex() == expected.replace(" ", "")
    assert at == identifier_at


def test_requests_have_properties_in_version_5_only() -> None:
    assert packets.subscribe("3.1.1", 1, ["a", "b"], 2).hex() == "820a0001000161020001" + "6202"
    assert packets.subscribe("5", 1, ["a"], 1).hex() == "8207" + "000100" + "00016101"
    assert packets.unsubscribe("3.1.1", 2, ["a"]).hex() == "a205" + "0002" + "000161"
    assert packets.unsubscribe("5", 2, ["a"]).hex() == "a206" + "000200" + "000161"
    assert packets.disconnect("3.1.1", ends_session=True).hex() == "e000"
    assert packets.disconnect("5", ends_session=True).hex() == "e007" + "0005" + "1100000000"


@pytest.mark.parametrize(
    ("body", "code", "session"),
    [
        (b"\0\0", 0, False),
        (b"\1\0", 0, True),
        (b"\0\1", 0x84, False),
        (b"\0\4", 0x86, False),
        (b"\0\5", 0x87, False),
        (b"\0\x87\0", 0x87, False),
    ],
)
def test_a_welcome_is_understood_in_both_versions(body: bytes, code: int, session: bool) -> None:
    answer = packets.read_connack(body)
    assert (answer.code, answer.session_present) == (code, session)


def test_a_welcome_in_version_5_tells_the_brokers_limits() -> None:
    properties = (
        b"\x21\x00\x14"  # receive maximum
        b"\x24\x01"  # maximum QoS
        b"\x27\x00\x00\x10\x00"  # maximum packet size
        b"\x12\x00\x02id"
        b"\x26\x00\x01k\x00\x01v"
        b"\x26\x00\x01k\x00\x01w"
        b"\x1f\x00\x02hi"
    )
    answer = packets.read_connack(b"\0\0" + bytes([len(properties)]) + properties)
    assert answer.properties == {
        packets.RECEIVE_MAXIMUM: 20,
        packets.MAXIMUM_QOS: 1,
        packets.MAXIMUM_PACKET_SIZE: 4096,
        0x12: "id",
        0x26: ("k", "w"),
        packets.REASON_STRING: "hi",
    }


@given(st.binary(max_size=40))
def test_properties_of_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        _, end = packets.read_properties(data, 0)
    except BadPacket:
        return
    assert end <= len(data)


def test_a_disconnect_packet_has_its_reason() -> None:
    assert packets.read_disconnect(b"") == (0, "")
    assert packets.read_disconnect(b"\x95") == (0x95, "")
    words = b"\x1f" + struct.pack(">H", 3) + b"bye"
    assert packets.read_disconnect(b"\x8b" + bytes([len(words)]) + words) == (0x8B, "bye")
    assert packets.reason(0x95) == "0x95 packet too large"
    assert packets.reason(0xFE) == "0xfe unknown reason"


def test_answers_to_subscriptions_are_read_in_both_versions() -> None:
    assert packets.read_suback("3.1.1", b"\0\1\1\x80") == (1, b"\1\x80")
    assert packets.read_suback("5", b"\0\1\0\x9e") == (1, b"\x9e")
    with pytest.raises(BadPacket):
        packets.read_suback("3.1.1", b"\0")


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=40), max_size=4))
def test_headers_are_user_properties_and_are_found_among_others(texts: dict[str, str]) -> None:
    headers = {name: value.encode() for name, value in texts.items()}
    start, identifier_at = packets.publish_start(
        "5", "topic", 1, False, 10, packets.user_properties(headers)
    )
    properties = start[identifier_at + 2 :]
    assert packets.read_user_properties(properties) == headers
    expiring = b"\x02" + (77).to_bytes(4)
    length = packets.length_bytes(len(expiring) + len(packets.user_properties(headers)))
    others = length + expiring + packets.user_properties(headers)
    assert packets.read_user_properties(others) == headers


def test_a_header_that_is_no_text_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="header 'id'"):
        packets.user_properties({"id": b"\xff\xfe"})
