"""From an address to connected sockets: name, TCP, TLS; what went wrong, in words for people.

Every wait has a deadline; there are no retries here (reopening.py has them).
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.config.broker import Broker, Tls
from bench_spark.errors import BrokerUnreachable, ConfigurationError
from bench_spark.process import watched
from bench_spark.transports.base import OpeningPace

_ADDRESS_INFO = tuple[Any, ...]


@dataclass(frozen=True)
class SocketAccess:
    """Where a broker is, and how it is connected to; made once per transport."""

    host: str
    port: int
    timeout_seconds: float
    tls_context: ssl.SSLContext | None
    tls_name: str
    pace: OpeningPace
    """How fast connections may be opened."""
    on_opened: Callable[[int], None]
    """Called with how many more lanes are open."""

    @property
    def address(self) -> str:
        """Host and port, for messages to people."""
        return f"{self.host}:{self.port}"


def tls_context(broker: Broker) -> ssl.SSLContext | None:
    """None where nothing is encrypted."""
    return client_tls(broker) if broker.uses_tls else None


def client_tls(broker: Broker) -> ssl.SSLContext:
    return _tls_context(broker.tls or Tls())


def tls_name(broker: Broker) -> str:
    """The name that the server's certificate must carry."""
    return broker.tls.server_name if broker.tls and broker.tls.server_name else broker.host


def dialled(access: SocketAccess, count: int, deadline: float) -> Iterator[socket.socket]:
    """Sockets, connected and encrypted where asked for, that never block; made one by one."""
    addresses = _resolve(access, deadline)
    for _ in range(count):
        yield _connect(access, addresses, deadline)


def _resolve(access: SocketAccess, deadline: float) -> list[_ADDRESS_INFO]:
    """Addresses of the host. In a thread: the system's resolver has no timeout of its own."""
    answers: queue.SimpleQueue[list[_ADDRESS_INFO] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)
            answers.put(list(found))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=watched(ask), name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.01, deadline - time.monotonic()))
    except queue.Empty:
        raise _no_answer(access, "name not resolved") from None
    if isinstance(answer, OSError):
        raise BrokerUnreachable(f"{access.address}: {_reason(answer)}") from answer
    return answer


def _connect(
    access: SocketAccess, addresses: Sequence[_ADDRESS_INFO], deadline: float
) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.settimeout(max(0.01, deadline - time.monotonic()))
            candidate.connect(address)
            candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls_context is not None:
                candidate = access.tls_context.wrap_socket(
                    candidate, server_hostname=access.tls_name
                )
            candidate.setblocking(False)
            return candidate
        except OSError as error:
            candidate.close()
            failure = error
    if isinstance(failure, TimeoutError):
        raise _no_answer(access, "no answer") from failure
    tls = "TLS: " if isinstance(failure, ssl.SSLError) else ""
    raise BrokerUnreachable(f"{access.address}: {tls}{_reason(failure)}") from failure


def _no_answer(access: SocketAccess, what: str) -> BrokerUnreachable:
    return BrokerUnreachable(f"{access.address}: {what} within {access.timeout_seconds:g} s")


def _reason(error: OSError | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror if error else None) or str(error)


def _tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.ca_file, tls.certificate_file, tls.key_file)))
        raise ConfigurationError(f"tls: cannot load {files}: {_reason(error)}") from error
    return context
