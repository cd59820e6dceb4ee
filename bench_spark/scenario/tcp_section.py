"""The section `tcp` of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from bench_spark.scenario.fields import Section
from bench_spark.scenario.secrets import uri_problem


def _tcp_uri(value: str) -> str:
    problem = uri_problem(value, ("tcp", "tcps"), allows_port_0=True, needs_port=True)
    if problem:
        raise ValueError(problem)
    return value


class Tcp(Section):
    """TCP only; other protocols ignore it."""

    framing: Literal["length", "line"] = "length"
    """Where a message ends. `length`: each begins with its size. `line`: each ends with a line feed
    (byte 10), which none may contain; only data of one's own, with an ID as text, can be so."""
    length_bytes: Literal[1, 2, 4, 8] = 4
    """With `framing: length`: of how many bytes the size is, which does not count itself."""
    byte_order: Literal["big", "little"] = "big"
    """With `framing: length`: whether the size begins with its highest or its lowest byte."""
    consumer: Literal["listen", "connect"] = "listen"
    """Whether consumers wait for whoever sends to connect to them, or connect to a server that
    sends. Producers always connect."""
    consumer_uri: Annotated[str, AfterValidator(_tcp_uri)] | None = None
    """Where consumers listen, or what they connect to: `tcp://HOST:PORT`, for listening with port
    0 for any free one. Unset: the `uri` of the broker file."""
