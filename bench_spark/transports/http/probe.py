"""Whether a server is there, speaks HTTP, and lets us in. What is sent can be no message."""

from __future__ import annotations

import time

from bench_spark.errors import BrokerUnreachable, LoginRefused
from bench_spark.scenario.broker import Credentials
from bench_spark.transports.http.heads import BadMessage, ResponseHead, read_response
from bench_spark.transports.http.requests import login_fields
from bench_spark.transports.sockets.dialling import SocketAccess, dialled
from bench_spark.transports.sockets.places import Place

_LONGEST_HEAD_BYTES = 64 * 1024
_LOGIN_REFUSALS = frozenset({401, 403, 407})


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
