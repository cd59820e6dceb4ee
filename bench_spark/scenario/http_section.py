"""The section `http` of a scenario."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from bench_spark.scenario.fields import Conflict, Section, refuse
from bench_spark.scenario.secrets import uri_problem

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]{0,8000}")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization"})


def field_name(value: str) -> str:
    """The name of a header."""
    if not _TOKEN.fullmatch(value):
        raise ValueError("allowed: letters, digits and !#$%&'*+.^_`|~-, at most 200")
    return value


def _own_field_name(value: str) -> str:
    if value.lower() in _OURS:
        raise ValueError("is set by bench-spark; a login belongs to the broker file")
    return field_name(value)


def _field_value(value: str) -> str:
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError("allowed: one line of text")
    return value


def _http_uri(value: str) -> str:
    problem = uri_problem(value, ("http", "https"), allows_query=True, allows_port_0=True)
    if problem:
        raise ValueError(problem)
    return value


class Http(Section):
    """HTTP only; other protocols ignore it."""

    method: Annotated[str, AfterValidator(field_name)] = "POST"
    """Method of a producer's requests, each of which carries one message. They go to the path of
    the broker file's `uri`, in which `%d` stands for the destination's number."""
    content_type: Annotated[str, AfterValidator(_field_value)] = "application/octet-stream"
    """What requests say of their bodies; empty: nothing."""
    headers: dict[
        Annotated[str, AfterValidator(_own_field_name)],
        Annotated[str, AfterValidator(_field_value)],
    ] = Field(default_factory=dict, max_length=100)
    """More headers of every request."""
    in_flight: int = Field(1, ge=1, le=100_000)
    """Requests without an answer per producer. More than 1 is pipelining: the next request is sent
    before the last one was answered, which not every server takes. Without it, more producers
    are what makes more load."""
    answer: Literal["none", "body", "header"] = "none"
    """What of an answer holds the ID that the system gave the message (identity carrier
    `acknowledgement`): nothing, the body, or the header `answer_header`."""
    answer_header: Annotated[str, AfterValidator(field_name)] | None = None
    """With `answer: header`: its name."""
    consumer_uri: Annotated[str, AfterValidator(_http_uri)] | None = None
    """Where consumers listen, `http://HOST:PORT/PATH` with port 0 for any free one, `%d` in the
    path for the destination's number. Unset: the `uri` of the broker file, which is then their own
    address and not that of a server."""
    status: int = Field(200, ge=200, le=599)
    """What consumers answer to each message that they take."""

    @model_validator(mode="after")
    def _answer_is_named(self) -> Http:
        if (self.answer == "header") != (self.answer_header is not None):
            missing = "missing; answer: header needs it"
            problem = missing if self.answer == "header" else f"excludes answer: {self.answer}"
            refuse([Conflict(("answer_header", "answer"), problem)])
        return self
