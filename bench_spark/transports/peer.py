"""Asks a broker what it is, and where it does not answer as it should, finds out who does.

A client on the wrong port can only say that the answer makes no sense in its own protocol. So a
peer that accepts connections is greeted in each protocol that we know, with and without TLS, and
recognised by its answer. That happens only after a broker has failed to answer, or while it keeps
us waiting.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.errors import BrokerUnreachable, WrongProtocol
from bench_spark.process import in_background
from bench_spark.transports.base import BrokerFacts, Transport, TransportContext
from bench_spark.transports.registry import make_transport

_NAMES = {"amqp": "AMQP", "kafka": "Kafka's protocol", "mqtt": "MQTT", "http": "HTTP"}
"""Kinds that can be told from each other. TCP may carry anything."""

_WAITING_SECONDS = 1.0
"""A broker that has not answered by then may be something else that waits for more."""
_ANSWER_SECONDS = 3.0
"""How long greetings wait for their answers."""
_LONGEST_ANSWER_BYTES = 64

_CORRELATION = b"benc"
_API_VERSIONS = struct.pack(">hh4sh", 18, 0, _CORRELATION, -1)
_CONNECT = b"\x00\x04MQTT\x04\x02\x00\x0a\x00\x0bbench-spark"
_GREETINGS = {
    "amqp": b"AMQP\x00\x00\x09\x01",
    "kafka": struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS,
    "mqtt": bytes([0x10, len(_CONNECT)]) + _CONNECT,
    "http": b"HEAD / HTTP/1.0\r\n\r\n",
}
_TLS = "tls"
_CONNECTION_START = b"\x00\x0a\x00\x0a"
_CONNACK = b"\x20\x02"


@dataclass(frozen=True)
class PeerProtocol:
    """What speaks at an address; `protocol` is one of the kinds, None where none is recognised."""

    protocol: str | None
    is_encrypted: bool


def probed(context: TransportContext, silent_seconds: float | None = None) -> BrokerFacts:
    """`Transport.probe`, but the error for a peer of another protocol names that protocol.

    Does not wait for the broker's timeout where something else answers sooner. `silent_seconds`:
    how long to wait for a peer that does not even answer a greeting; unset: as long as for one that
    does.
    """
    # Before the clock: to import a client library may take longer than to ask.
    transport = make_transport(context)
    deadline = None if silent_seconds is None else time.monotonic() + silent_seconds
    probing = in_background("probe", partial(_probe, transport))
    if _has_ended(probing, time.monotonic() + _WAITING_SECONDS):
        error = probing.exception()
        if not isinstance(error, BrokerUnreachable):
            return probing.result()
    until = time.monotonic() + _ANSWER_SECONDS if deadline is None else deadline
    recognising = in_background("recognise", partial(_spoken_at, context.broker, until))
    found = recognising.result() if _has_ended(recognising, deadline) else None
    if isinstance(found, WrongProtocol):
        raise found
    # A broker that greets is there, and may take its time.
    if not _has_ended(probing, None if found is Spoken.AS_WANTED else deadline):
        where = ", ".join(f"{host}:{port}" for host, port in context.broker.addresses)
        raise BrokerUnreachable(
            f"{where}: no answer within {silent_seconds:g} s; connect_timeout_seconds in the "
            "broker file sets how long to wait"
        )
    return probing.result()


def _probe(transport: Transport) -> BrokerFacts:
    with closing(transport):
        return transport.probe()


def _has_ended(work: Future[Any], deadline: float | None) -> bool:
    """Whether it has ended until then; without a deadline it is waited for."""
    wait([work], None if deadline is None else max(0.0, deadline - time.monotonic()))
    return work.done()


class Spoken(Enum):
    """What is known of the protocol that a broker's addresses speak, if it is not another."""

    AS_WANTED = "as the broker file says"
    UNKNOWN = "nothing is recognised"


def _spoken_at(broker: Broker, until: float) -> WrongProtocol | Spoken:
    """The error for what the broker's addresses speak, if that is not what the broker file says."""
    if broker.kind not in _NAMES:
        return Spoken.UNKNOWN
    for host, port in broker.addresses:
        peer = recognise(host, port, until)
        if peer is None or (peer.protocol is None and peer.is_encrypted == broker.uses_tls):
            continue
        if peer == PeerProtocol(broker.kind, broker.uses_tls):
            return Spoken.AS_WANTED
        return WrongProtocol(f"{host}:{port}: {_difference(peer, broker)}")
    return Spoken.UNKNOWN


def _difference(peer: PeerProtocol, broker: Broker) -> str:
    wanted = _NAMES[broker.kind]
    if peer.protocol is not None and peer.protocol != broker.kind:
        over_tls = " over TLS" if peer.is_encrypted else ""
        return f"speaks {_NAMES[peer.protocol]}{over_tls}, not {wanted}"
    spoken = f"speaks {wanted} " if peer.protocol else "speaks "
    if peer.is_encrypted:
        return f"{spoken}over TLS only" if peer.protocol else f"{spoken}TLS only"
    return f"{spoken}without TLS"


def recognise(host: str, port: int, until: float) -> PeerProtocol | None:
    """What speaks there; None where nobody takes a connection, or nothing is recognised.

    `until`: when to give up, on the monotonic clock.
    """
    try:
        socket.create_connection((host, port), _left(until)).close()
    except OSError:
        return None
    found: str | None = None
    open_questions = {*_GREETINGS, _TLS}
    for question, answer in _answers(host, port, False, until):
        open_questions.discard(question)
        if answer == _TLS:
            inside = (one for _, one in _answers(host, port, True, until) if one)
            return PeerProtocol(next(inside, None), is_encrypted=True)
        found = answer or found
        # Servers of HTTPS answer plain requests as well, to refuse them.
        if found and (found != "http" or _TLS not in open_questions):
            break
    return PeerProtocol(found, is_encrypted=False) if found else None


def _left(until: float) -> float:
    return max(0.05, until - time.monotonic())


def _answers(
    host: str, port: int, is_encrypted: bool, until: float
) -> Iterator[tuple[str, str | None]]:
    """Each greeting by its protocol, and the protocol of its answer, as they come."""
    questions = [*_GREETINGS] if is_encrypted else [_TLS, *_GREETINGS]
    # Silent peers are not waited for once one greeting was answered.
    asked = {
        in_background("greeting", partial(_answer, host, port, question, is_encrypted, until)): (
            question
        )
        for question in questions
    }
    with suppress(TimeoutError):
        for answered in as_completed(asked, _left(until)):
            yield asked[answered], answered.result()


def _answer(host: str, port: int, question: str, is_encrypted: bool, until: float) -> str | None:
    """The protocol in which somebody answers this greeting."""
    answer = b""
    try:
        if question == _TLS:
            _connected(host, port, True, until).close()
            return _TLS
        with _connected(host, port, is_encrypted, until) as connection:
            connection.sendall(_GREETINGS[question])
            while len(answer) < _LONGEST_ANSWER_BYTES and (piece := connection.recv(64)):
                answer += piece
                if (protocol := _protocol_of(answer)) is not None:
                    return protocol
    except OSError:
        pass  # closed by the peer, or silent for too long
    return None


def _protocol_of(answer: bytes) -> str | None:
    is_start = answer[:1] == b"\x01" and answer[7:11] == _CONNECTION_START
    if is_start or answer.startswith(b"AMQP"):
        return "amqp"
    if answer[4:8] == _CORRELATION:
        return "kafka"
    if answer.startswith(_CONNACK) and len(answer) == len(_CONNACK) + 2:
        return "mqtt"
    return "http" if answer.startswith(b"HTTP/") else None


def _connected(host: str, port: int, is_encrypted: bool, until: float) -> socket.socket:
    connection = socket.create_connection((host, port), _left(until))
    if not is_encrypted:
        return connection
    # Only the protocol is of interest here: nothing secret is sent, whoever answers.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except OSError:
        connection.close()
        raise
