"""A draft of a scenario and a broker file: addresses, values, and how the files are written."""

from __future__ import annotations

import json
import math
import re
import textwrap
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.config.fields import PLAIN_NAME, uri_problem
from bench_spark.config.models import Scenario
from bench_spark.config.problems import shown_text, shown_value, validated
from bench_spark.config.yaml_text import plain_scalar
from bench_spark.errors import ConfigurationError

Path = tuple[str, ...]

_LONGEST_NAME = 80
"""Shorter than a name may be: runs and files add to it."""


@dataclass(frozen=True)
class Remark:
    """Something about an option that its user should know; never holds a password."""

    option: str
    text: str

    def __str__(self) -> str:
        return f"{self.option}: {self.text}"


@dataclass(frozen=True)
class FileKeys:
    """The keys of one file. Their order is the one they are written in."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    """What to say beside a key: the option it comes from."""

    def put(self, path: Path, value: Any, origin: str = "") -> None:
        section = self.values
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
        self.origins[path] = origin

    def set(self, dotted: str, value: Any, origin: str = "") -> None:
        """`put` for keys without dots in their names."""
        self.put(tuple(dotted.split(".")), value, origin)

    def get(self, dotted: str) -> Any:
        """The value, None where it was not set."""
        section: Any = self.values
        for name in dotted.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        return section


@dataclass
class Draft:
    """What has been understood so far."""

    name: str
    scenario: FileKeys = field(default_factory=FileKeys)
    broker: FileKeys = field(default_factory=FileKeys)
    left_out: list[Remark] = field(default_factory=list)
    """Options without a counterpart, and why."""
    remarks: list[Remark] = field(default_factory=list)
    """Options that were understood, but mean something else here, or nothing more."""
    has_password: bool = False
    """Whether the source held a password, which was dropped."""

    def leave_out(self, option: str, reason: str) -> None:
        self.left_out.append(Remark(option, reason))

    def remark(self, option: str, text: str) -> None:
        self.remarks.append(Remark(option, text))

    @property
    def password_variable(self) -> str:
        """The environment variable that is to hold the password."""
        return password_variable(self.name)

    def check(self, source: str) -> None:
        """Refuse what our own files could not say; `source` names where it came from."""
        validated(Scenario, self.scenario.values, source, strict=True)
        if self.broker.values:
            validated(Broker, self.broker.values, source, strict=True)


def table_rows(table: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The options of another tool, each with the keys of ours that it decides and what differs, as
    they stand in lines `OPTION, OPTION | KEY KEY | TEXT`; without keys the text says why there is
    no counterpart. What is indented goes on with the line before."""
    for row in table.replace("\n    ", " ").strip().splitlines():
        options, keys, text = (cell.strip() for cell in row.split("|"))
        for option in options.split(", "):
            yield option, tuple(keys.split()), text


def password_variable(name: str) -> str:
    """What to call the environment variable with the password of a broker of this name."""
    plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    return f"{plain}_PASSWORD" if plain[:1].isalpha() else f"BENCH_{plain}_PASSWORD"


def plain_name(text: str, otherwise: str) -> str:
    """A name that files and runs may have, as near to `text` as can be."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_LONGEST_NAME].rstrip("-._")
    return plain if PLAIN_NAME.fullmatch(plain) else otherwise


def take_uri(draft: Draft, option: str, uri: str, schemes: tuple[str, ...]) -> None:
    """Put an address into the broker file: its user as `username`, its password as the name of an
    environment variable."""
    uri = uri.strip()
    if "://" not in uri:
        uri = f"{schemes[0]}://{uri}"
    bare, question, _ = uri.partition("?")
    if problem := uri_problem(bare, schemes):
        raise ConfigurationError(f"{option}: {problem}")
    if question:
        draft.leave_out(f"{option} ...?...", "addresses have no parameters behind a '?' here")
    parts = urllib.parse.urlsplit(bare)
    host = parts.netloc.rpartition("@")[2]
    draft.broker.set("uri", parts._replace(netloc=host, path=parts.path or "/").geturl(), option)
    if parts.username:
        draft.broker.set("username", urllib.parse.unquote(parts.username), option)
    if parts.password is not None:
        take_password(draft, option)


def take_password(draft: Draft, option: str) -> None:
    """There is a password: name the variable that is to hold it. The password itself is dropped."""
    draft.has_password = True
    draft.broker.set(
        "password_env", draft.password_variable, f"the variable that holds the password of {option}"
    )


_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(?P<number>[0-9]+)\s*(?P<unit>[kmgt]b)?", re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?",
    re.IGNORECASE,
)


def whole_number(option: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise _refused(option, text, "a whole number") from None


def number(option: str, text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refused(option, text, "a number")
    return value


def truth(option: str, text: str) -> bool:
    known = {"true": True, "false": False}
    if text.strip().lower() not in known:
        raise _refused(option, text, "true or false")
    return known[text.strip().lower()]


def size_bytes(option: str, text: str) -> int:
    """`500`, `20mb`, `1gb`: units are powers of 1000."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _refused(option, text, "bytes, as in 500000 or 500kb, mb, gb, tb")
    return int(match["number"]) * _UNITS[(match["unit"] or "").lower()]


def iso_seconds(option: str, text: str) -> int:
    """`PT10M30S`, `P5DT8H`."""
    match = _ISO_DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise _refused(option, text, "an ISO 8601 duration such as PT10M30S")
    lengths = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    return sum(int(match[name] or 0) * seconds for name, seconds in lengths.items())


def pairs(option: str, texts: Iterable[str]) -> dict[str, str | int | bool]:
    """`KEY=VALUE`, the value a number or true or false where it reads like one."""
    found: dict[str, str | int | bool] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"{option}: allowed: KEY=VALUE, separated by commas")
        found[key.strip()] = _plain(value.strip())
    return found


def _plain(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else text


def _refused(option: str, text: str, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{option}: {shown_value(text)} is not allowed; allowed: {allowed}")


_COMMENT_COLUMN = 40
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./:@+-]*")
_LONGEST_COMMENT = 92


def yaml_file(heading: Iterable[str], settings: FileKeys) -> str:
    """A comment for each line of the heading (empty ones part paragraphs), then the keys."""
    lines = [f"# {line}".rstrip() for text in heading for line in _wrapped(text)]
    return "\n".join([*lines, "", *_mapping(settings.values, (), settings.origins), ""])


def _mapping(values: Mapping[str, Any], path: Path, origins: Mapping[Path, str]) -> Iterator[str]:
    indent = "  " * len(path)
    for name, value in values.items():
        here = (*path, name)
        key = f"{indent}{_scalar(name)}:"
        origin = origins.get(here, "")
        if isinstance(value, Mapping) and value:
            yield _commented(key, origin)
            yield from _mapping(value, here, origins)
        else:
            yield _commented(f"{key} {_value(value)}", origin)


def _commented(text: str, comment: str) -> str:
    if not comment:
        return text
    return f"{text:<{_COMMENT_COLUMN}}  # {shown_text(comment)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_scalar(name)}: {_value(item)}" for name, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _scalar(value)


def _scalar(value: str | int | float | bool | None) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and plain_scalar(value) == value
        # A plain text may not end in a colon, nor hold ': ' (which the pattern excludes).
        return value if is_plain and not value.endswith(":") else json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) < 2**53 else repr(value)
    return json.dumps(value)


def _wrapped(text: str) -> list[str]:
    """Lines short enough for a comment, without anything that could end it."""
    lines = textwrap.wrap(text, _LONGEST_COMMENT, subsequent_indent="    ", break_on_hyphens=False)
    return [shown_text(line, _LONGEST_COMMENT) for line in lines] or [""]


@dataclass(frozen=True)
class NewFile:
    name: str
    text: str


def files_of(draft: Draft, made_by: str) -> list[NewFile]:
    """What to write; `made_by` is the first line of each."""
    scenario, broker = f"{draft.name}.yaml", f"{draft.name}-broker.yaml"
    has_broker = bool(draft.broker.values)
    heading = [
        made_by,
        "",
        f"    bench-spark run {scenario} --broker {broker if has_broker else 'BROKER'}",
        *_listed("Left out, without a counterpart:", draft.left_out),
        *_listed("Notes:", draft.remarks),
    ]
    files = [NewFile(scenario, yaml_file(heading, draft.scenario))]
    if has_broker:
        files.append(NewFile(broker, yaml_file(_broker_heading(draft, made_by), draft.broker)))
    return files


def _listed(title: str, remarks: Sequence[object]) -> Iterator[str]:
    if remarks:
        yield from ("", title)
        yield from (f"- {remark}" for remark in remarks)


def _broker_heading(draft: Draft, made_by: str) -> Iterator[str]:
    yield made_by
    if draft.has_password:
        yield ""
        yield "The password is not here. Before a run:"
        yield f"    export {draft.password_variable}=..."
