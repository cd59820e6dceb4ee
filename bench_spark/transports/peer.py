"""Asks a broker what it is, and where it does not answer as it should, finds out who does.

A client on the wrong port can only say that the answer makes no sense in its own protocol. So a
peer that accepts connections is greeted in each protocol that we know, with and without TLS, and
recognised by its answer. That happens only after a broker has failed to answer, or while it keeps
us waiting.
"""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from bench_spark.config.broker import Broker
from bench_spark.errors import BrokerUnreachable, WrongProtocol
from bench_spark.transports.base import BrokerFacts, TransportContext
from bench_spark.transports.registry import make_transport

_NAMES = {"amqp": "AMQP", "kafka": "Kafka's protocol", "mqtt": "MQTT", "http": "HTTP"}
"""Kinds that can be told from each other. TCP may carry anything."""

_WAITING_SECONDS = 1.0
"""A broker that has not answered by then may be something else that waits for more."""
_ANSWER_SECONDS = 3.0
"""How long a greeting waits for its answer."""
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
class Peer:
    """What speaks at an address; `protocol` is one of the kinds, None where none is recognised."""

    protocol: str | None
    is_encrypted: bool


def probed(context: TransportContext) -> BrokerFacts:
    """`Transport.probe`, but the error for a peer of another protocol names that protocol.

    Does not wait for the broker's timeout where something else answers sooner.
    """
    answers: queue.SimpleQueue[BrokerFacts | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with closing(make_transport(context)) as transport:
                answers.put(transport.probe())
        except BaseException as error:  # raised again by whoever waits for the answer
            answers.put(error)

    # A daemon: nobody waits for it any longer once the peer is known to be something else.
    threading.Thread(target=ask, name="probe", daemon=True).start()
    is_recognised = False
    try:
        answer = answers.get(timeout=_WAITING_SECONDS)
    except queue.Empty:
        if (other := _wrong_protocol(context.broker)) is not None:
            raise other from None
        is_recognised = True
        answer = answers.get()
    if isinstance(answer, BrokerUnreachable) and not is_recognised:
        raise _wrong_protocol(context.broker) or answer
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _wrong_protocol(broker: Broker) -> WrongProtocol | None:
    """None where nothing is known to speak anything else than the broker file says."""
    if broker.kind not in _NAMES:
        return None
    for host, port in broker.addresses:
        peer = recognise(host, port)
        if peer is None or (peer.protocol is None and peer.is_encrypted == broker.uses_tls):
            continue
        if peer == Peer(broker.kind, broker.uses_tls):
            return None
        return WrongProtocol(f"{host}:{port}: {_difference(peer, broker)}")
    return None


def _difference(peer: Peer, broker: Broker) -> str:
    wanted = _NAMES[broker.kind]
    if peer.protocol is not None and peer.protocol != broker.kind:
        over_tls = " over TLS" if peer.is_encrypted else ""
        return f"speaks {_NAMES[peer.protocol]}{over_tls}, not {wanted}"
    spoken = f"speaks {wanted} " if peer.protocol else "speaks "
    if peer.is_encrypted:
        return f"{spoken}over TLS only" if peer.protocol else f"{spoken}TLS only"
    return f"{spoken}without TLS"


def recognise(host: str, port: int) -> Peer | None:
    """What speaks there; None where nobody takes a connection, or nothing is recognised."""
    try:
        socket.create_connection((host, port), _ANSWER_SECONDS).close()
    except OSError:
        return None
    found: str | None = None
    open_questions = {*_GREETINGS, _TLS}
    for question, answer in _answers(host, port, is_encrypted=False):
        open_questions.discard(question)
        if answer == _TLS:
            inside = (one for _, one in _answers(host, port, is_encrypted=True) if one)
            return Peer(next(inside, None), is_encrypted=True)
        found = answer or found
        # Servers of HTTPS answer plain requests as well, to refuse them.
        if found and (found != "http" or _TLS not in open_questions):
            break
    return Peer(found, is_encrypted=False) if found else None


def _answers(host: str, port: int, is_encrypted: bool) -> Iterator[tuple[str, str | None]]:
    """Each greeting by its protocol, and the protocol of its answer, as they come."""
    arrived: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def ask(question: str) -> None:
        answer = None
        try:
            answer = _answer(host, port, question, is_encrypted)
        finally:
            arrived.put((question, answer))

    questions = [*_GREETINGS] if is_encrypted else [_TLS, *_GREETINGS]
    for question in questions:
        # Daemons: silent peers are not waited for once one greeting was answered.
        threading.Thread(target=ask, args=(question,), name="greeting", daemon=True).start()
    for _ in questions:
        yield arrived.get()


def _answer(host: str, port: int, question: str, is_encrypted: bool) -> str | None:
    """The protocol in which somebody answers this greeting."""
    if question == _TLS:
        return _TLS if _speaks_tls(host, port) else None
    answer = b""
    try:
        with _connected(host, port, is_encrypted) as connection:
            connection.sendall(_GREETINGS[question])
            while len(answer) < _LONGEST_ANSWER_BYTES and (piece := connection.recv(64)):
                answer += piece
                if (protocol := _protocol_of(answer)) is not None:
                    return protocol
    except OSError:
        pass  # hung up, or silent for too long
    return None


def _speaks_tls(host: str, port: int) -> bool:
    try:
        _connected(host, port, is_encrypted=True).close()
    except OSError:
        return False
    return True


def _protocol_of(answer: bytes) -> str | None:
    is_start = answer[:1] == b"\x01" and answer[7:11] == _CONNECTION_START
    if is_start or answer.startswith(b"AMQP"):
        return "amqp"
    if answer[4:8] == _CORRELATION:
        return "kafka"
    if answer.startswith(_CONNACK) and len(answer) == len(_CONNACK) + 2:
        return "mqtt"
    return "http" if answer.startswith(b"HTTP/") else None


def _connected(host: str, port: int, is_encrypted: bool) -> socket.socket:
    connection = socket.create_connection((host, port), _ANSWER_SECONDS)
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
