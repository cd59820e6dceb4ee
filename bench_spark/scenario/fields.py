"""What the sections of all files are made of: names, values, and how contradictions are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
PLAIN_NAME_RULE = "letters, digits, '.', '_' and '-', at most 120, the first a letter or digit"
_WIRE_NAME_BYTES = 200
_TAG_CHARACTERS = 1000
_HEADERS_BYTES = 64 * 1024


class Conflict(NamedTuple):
    """Keys that contradict each other: the first is the one to name, relative to its section."""

    keys: tuple[str, ...]
    problem: str


def refuse(conflicts: Sequence[Conflict]) -> None:
    """Raise for all conflicts at once, in a form from which `problems.py` can name each key."""
    if conflicts:
        text = "; ".join(
            f"{'.'.join(conflict.keys[:1])}: {conflict.problem}" for conflict in conflicts
        )
        raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicts})


def plain_name(value: str) -> str:
    if not PLAIN_NAME.fullmatch(value):
        raise ValueError(f"allowed: {PLAIN_NAME_RULE}")
    return value


def _wire_name(value: str) -> str:
    """AMQP carries names in 255 bytes; the run's own additions need some of them."""
    if len(value.encode("utf-8", "replace")) > _WIRE_NAME_BYTES or not value.isprintable():
        raise ValueError(f"allowed: printable text of at most {_WIRE_NAME_BYTES} bytes")
    return value


def _plain_value(value: object) -> object:
    """One refusal for all of `str | int | float | bool`, where the union would give four."""
    is_plain = (
        isinstance(value, str)
        or (isinstance(value, int) and abs(value) < 2**63)
        or (isinstance(value, float) and math.isfinite(value))
    )
    if not is_plain:
        raise ValueError("allowed: text, a number, true or false")
    return value


def tag_value(value: str) -> str:
    if len(value) > _TAG_CHARACTERS or not value.isprintable():
        raise ValueError(f"allowed: printable text of at most {_TAG_CHARACTERS} characters")
    return value


Name = Annotated[str, AfterValidator(plain_name)]
TagValue = Annotated[str, AfterValidator(tag_value)]
WireName = Annotated[str, AfterValidator(_wire_name)]
Seconds = Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=100_000_000, allow_inf_nan=False)]
PropertyName = Annotated[str, Field(min_length=1, max_length=255)]
PropertyValue = Annotated[str | int | float | bool, BeforeValidator(_plain_value)]
ClientProperties = dict[PropertyName, PropertyValue]


def value_text(value: str | int | float | bool) -> str:
    """As people write it, and as client libraries read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def few_bytes(headers: ClientProperties) -> ClientProperties:
    """Refuses headers that would be more than a message."""
    texts = (text for name, value in headers.items() for text in (name, value_text(value)))
    if sum(len(text.encode("utf-8", "replace")) for text in texts) > _HEADERS_BYTES:
        raise ValueError(f"allowed: names and values of at most {_HEADERS_BYTES} bytes in all")
    return headers


class Section(BaseModel):
    """Keys that belong together. Inputs stay out of errors: a broker's URI may hold a password."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )
    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had, and why they are refused now."""
