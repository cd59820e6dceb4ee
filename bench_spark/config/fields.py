"""What the sections of all files are made of: names, values, secrets, patterns, contradictions.

Regular expressions that files bring along, with an end to every search. They have Python's syntax
and meet data of any kind: bodies, records, command lines. Some patterns take a time that grows
exponentially with the text ("(x+x+)+y" in Python's own engine), so the engine is that of the
package `regex`, which can give up.
"""

from __future__ import annotations

import math
import re
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, AnyStr, ClassVar, Generic, NamedTuple, Self

import regex
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
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


def checked(is_allowed: Callable[[str], object], rule: str) -> Callable[[str], str]:
    """A check that gives a text back, or raises ValueError with what would be allowed."""

    def check(value: str) -> str:
        if not is_allowed(value):
            raise ValueError(f"allowed: {rule}")
        return value

    return check


def byte_length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


plain_name = checked(PLAIN_NAME.fullmatch, PLAIN_NAME_RULE)
# AMQP carries names in 255 bytes; the run's own additions need some of them.
_wire_name = checked(
    lambda name: byte_length(name) <= _WIRE_NAME_BYTES and name.isprintable(),
    f"printable text of at most {_WIRE_NAME_BYTES} bytes",
)
tag_value = checked(
    lambda value: len(value) <= _TAG_CHARACTERS and value.isprintable(),
    f"printable text of at most {_TAG_CHARACTERS} characters",
)


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


Name = Annotated[str, AfterValidator(plain_name)]
TagValue = Annotated[str, AfterValidator(tag_value)]
WireName = Annotated[str, AfterValidator(_wire_name)]
Seconds = Annotated[float, Field(ge=0, le=30 * 86400)]
PhaseSeconds = Annotated[float, Field(gt=0, le=30 * 86400)]
Rate = Annotated[float, Field(gt=0, le=100_000_000)]
PropertyName = Annotated[str, Field(min_length=1, max_length=255)]
PropertyValue = Annotated[str | int | float | bool, BeforeValidator(_plain_value)]
ClientProperties = dict[PropertyName, PropertyValue]


def value_text(value: str | int | float | bool) -> str:
    """As people write it, and as client libraries read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def few_bytes(headers: ClientProperties) -> ClientProperties:
    """Refuses headers that would be more than a message."""
    texts = (text for name, value in headers.items() for text in (name, value_text(value)))
    if sum(map(byte_length, texts)) > _HEADERS_BYTES:
        raise ValueError(f"allowed: names and values of at most {_HEADERS_BYTES} bytes in all")
    return headers


@dataclass(frozen=True)
class FormerKey:
    """A key that was renamed to `now`, or removed for the reason `why`."""

    now: str | None = None
    why: str = ""
    stood_for: object = None
    """Of a removed key: the value that describes what is done without it."""

    @property
    def problem(self) -> str:
        return f"is called {self.now} now" if self.now else self.why


class Section(BaseModel):
    """Keys that belong together. Inputs stay out of errors: a broker's URI may hold a password."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )
    former_keys: ClassVar[Mapping[str, FormerKey]] = {}
    """Keys that earlier versions had: files that name them are refused, stored runs are read."""

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        refuse(list(self.conflicts()))
        return self

    def conflicts(self) -> Iterator[Conflict]:
        """Keys of this section that contradict each other; each section has its own."""
        yield from ()


MASK = "***"

_SECRET_WORDS = ("password", "passwd", "passphrase", "secret", "token", "jaas", "key.pem")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def is_secret_key(key: str) -> bool:
    """Whether values under this name are kept out of whatever is printed."""
    return any(word in key.lower() for word in _SECRET_WORDS)


def mask_uri(uri: str) -> str:
    """The URI without its password. One that cannot be read is masked as far as one may lie."""
    try:
        parts = urllib.parse.urlsplit(uri)
        if parts.password is not None:
            host = parts.netloc.rpartition("@")[2]
            return parts._replace(netloc=f"{parts.username}:{MASK}@{host}").geturl()
    except ValueError:
        return MASK
    before, at, after = uri.rpartition("@")
    scheme, colon, user_info = before.partition("://")
    if not at or ":" not in (user_info if colon else scheme):
        return uri
    # A raw '/', '#' or '?' in a password hides it from urlsplit.
    return f"{scheme}{colon}{MASK}@{after}" if colon else f"{MASK}@{after}"


environment_name = checked(
    _ENVIRONMENT_NAME.fullmatch, "the name of an environment variable, not the password itself"
)


PORT_OUT_OF_RANGE = "has a port out of range; allowed: 1 to 65535"


def uri_problem(
    uri: str,
    schemes: Iterable[str],
    *,
    allows_query: bool = False,
    allows_port_0: bool = False,
    needs_port: bool = False,
) -> str | None:
    """What is wrong with a URI, in words that hold nothing of it: it may contain a password."""
    try:
        parts = urllib.parse.urlsplit(uri)
        port = parts.port
    except ValueError as error:
        if "out of range" in str(error):
            return PORT_OUT_OF_RANGE
        return "is no valid URI; escape special characters of user and password, as in %40 for @"
    if parts.scheme not in schemes:
        return "must start with " + " or ".join(f"{scheme}://" for scheme in schemes)
    if not parts.hostname:
        return f"names no host; write {parts.scheme}://HOST:PORT"
    if port is None and needs_port:
        return f"names no port; write {parts.scheme}://HOST:PORT"
    if port == 0 and not allows_port_0:
        return "has port 0; allowed: 1 to 65535"
    if parts.fragment or (parts.query and not allows_query):
        return "has a '?' or '#' part, which is not supported; in a password write %3F or %23"
    return None


SEARCH_SECONDS = 0.1
"""CPU time that a search may take, and as much again for every so many bytes:"""
_BYTES_PER_SEARCH_SECONDS = 1_000_000


class TooSlow(Exception):
    """A search that was given up; the text names the pattern."""


class Pattern(Generic[AnyStr]):
    def __init__(self, text: AnyStr) -> None:
        """Raises ValueError where the text is no regular expression."""
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                self._compiled: regex.Pattern[AnyStr] = regex.compile(text)
        except (regex.error, OverflowError, RecursionError, MemoryError) as error:
            raise ValueError(f"is no regular expression: {error}") from None
        self._text: AnyStr = text
        self.groups = self._compiled.groups

    def search(self, data: AnyStr) -> regex.Match[AnyStr] | None:
        try:
            return self._compiled.search(data, timeout=_seconds_for(data))
        except TimeoutError:
            raise self._too_slow(data) from None

    def all_in(self, data: AnyStr) -> list[regex.Match[AnyStr]]:
        """All matches that do not overlap."""
        try:
            return list(self._compiled.finditer(data, timeout=_seconds_for(data)))
        except TimeoutError:
            raise self._too_slow(data) from None

    def _too_slow(self, data: AnyStr) -> TooSlow:
        text = self._text if isinstance(self._text, str) else self._text.decode()
        return TooSlow(f"{text} takes longer than {_seconds_for(data):.1f} s")


def _seconds_for(data: AnyStr) -> float:
    return SEARCH_SECONDS * (1 + len(data) / _BYTES_PER_SEARCH_SECONDS)
